"""Runs killed at random moments and resumed, or stopped in a phase that has no step, beside one never stopped.

`kill.toml` trains a small BERT with dropout, evaluates, keeps its best weights and writes a checkpoint every 3 steps.
The variable KILL names another recipe and its stage to kill at random moments, and further words of `bertrelay run`:

    KILL='multilingual-files student --set vars.data=DIR' python -m pytest -m slow tests/slow/test_kill.py -k random
"""

import hashlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent
RECIPE = FOLDER / "kill.toml"
KILLED = shlex.split(os.environ.get("KILL", f"{RECIPE} training"))
KILLS = 20
FRACTION_BETWEEN_KILLS = 0.3  # of the time that a whole training takes, at most
SECONDS_BETWEEN_DEATHS, SECONDS_BETWEEN_CHECKS = 0.3, 0.002
PHASES = {
    "evaluation": ("training", "teachers.train", "TeacherTask.evaluate", 2),
    "saving": ("training", "bertrelay.model.encoder", "SentenceEncoder.save", 1),
    "averaging": ("student", "students.distill.retention", "_load_between", 3),
    "calibration": ("entities", "domain.biomedical.ner.train", "NerTask.temperature", 1),
}
"""The stage that is stopped, and which call of which function stops it."""


class Run:
    """`bertrelay run` of a stage of a recipe, in a process group of its own."""

    def __init__(self, runs, recipe, stage, *words, processes=1, signal_at_call=()):
        """signal_at_call: module, function, call and signal, of a process that sends itself one."""
        self.runs, self.stage = runs, runs / Path(recipe).stem / stage
        runs.mkdir(exist_ok=True)
        script = [FOLDER / "signal_at_call.py", *signal_at_call] if signal_at_call else ["-P", "-m", "pipelines"]
        command = [sys.executable, *script, "run", recipe, "--runs", runs, "--only", stage, *words]
        command += ["--processes", processes] if processes > 1 else []
        with (runs / "output.txt").open("ab") as output:
            self.process = subprocess.Popen(
                list(map(str, command)), stdout=output, stderr=output, start_new_session=True
            )

    @property
    def log(self):
        return next(self.stage.glob("**/metrics.jsonl"), None)

    def log_time(self):
        """Time of the last line of the log, in nanoseconds; 0 before there is one."""
        with suppress(FileNotFoundError):
            return self.log.stat().st_mtime_ns if self.log else 0
        return 0

    def last_step(self):
        """The newest whole line of the log about steps; step 0 before there is one."""
        lines = self.log.read_text().split("\n")[:-1] if self.log else []
        steps = [line for line in map(json.loads, lines) if "seconds" in line]
        return steps[-1] if steps else {"step": 0}

    def kill(self, chance):
        """Kills all processes at once, or one worker a moment before the rest."""
        workers = psutil.Process(self.process.pid).children(recursive=True)
        if len(workers) > 1 and chance.random() < 0.5:
            with suppress(psutil.NoSuchProcess):
                chance.choice(workers).kill()
            time.sleep(chance.uniform(0, SECONDS_BETWEEN_DEATHS))
        self.process.kill()
        for worker in workers:
            with suppress(psutil.NoSuchProcess):
                worker.kill()
        self.process.wait()

    def kill_while_training(self, longest_seconds, chance):
        """Kills within `longest_seconds` after training resumed; False when it ended before."""
        before = self.log_time()
        while self.log_time() == before and self.process.poll() is None:
            time.sleep(SECONDS_BETWEEN_CHECKS)
        time.sleep(chance.uniform(0, longest_seconds))
        if self.process.poll() is not None:
            return False
        self.kill(chance)
        return True

    def weights(self):
        """Waits for the end. Returns the digest of the trained weights."""
        assert self.process.wait() == 0, (self.runs / "output.txt").read_text()
        files = sorted(self.stage.glob("latest/model/**/*.safetensors"))
        return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()


@pytest.mark.promise(
    "A run killed at 20 random moments, with one process and with two, ends with the same weights", about="resume"
)
@pytest.mark.parametrize("processes", [1, 2])
def test_runs_killed_at_random_moments_end_with_the_weights_of_one_never_stopped(processes, tmp_path):
    run = Run(tmp_path / "whole", *KILLED, processes=processes)
    expected, longest = run.weights(), run.last_step()["seconds"] * FRACTION_BETWEEN_KILLS
    chance, steps = random.Random(0), []
    while len(steps) < KILLS:
        folder = tmp_path / f"killed-after-{len(steps)}"
        run = Run(folder, *KILLED, processes=processes)
        while len(steps) < KILLS and run.kill_while_training(longest, chance):
            steps.append(run.last_step()["step"])
            run = Run(folder, *KILLED, processes=processes)
        assert run.weights() == expected, f"killed after steps {steps}"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of runs that were never stopped, and the weights of their stages."""
    runs = tmp_path_factory.mktemp("phases") / "whole"
    return runs, {stage: Run(runs, RECIPE, stage).weights() for stage in ("training", "student", "entities")}


@pytest.mark.promise(
    "A run stopped while it evaluates, averages, calibrates or saves ends with the same weights", about="resume"
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("phase", PHASES)
def test_stopped_in_a_phase_without_steps_it_ends_with_the_same_weights(phase, number, whole, tmp_path):
    stage, *function_and_call = PHASES[phase]
    runs, weights = whole
    folder = tmp_path / "runs"
    shutil.copytree(runs, folder, symlinks=True)
    shutil.rmtree(folder / "kill" / stage)
    stopped = Run(folder, RECIPE, stage, signal_at_call=(*function_and_call, int(number)))
    assert stopped.process.wait() in (-number, 128 + number)
    assert Run(folder, RECIPE, stage).weights() == weights[stage]
    steps = re.findall(r"resuming after step ([\d,]+) of ([\d,]+)", (folder / "output.txt").read_text())
    if phase != "evaluation":  # after the last step, of which none is trained twice
        ((resumed, last),) = steps
        assert resumed == last
