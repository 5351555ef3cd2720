"""Trainings killed by SIGKILL at random moments and resumed, beside one that was never stopped; and stages stopped by
SIGTERM and SIGKILL in each phase that has no step: evaluation, averaging with the start, calibration and saving.

Claims: the weights at the end are the same, bit for bit, with one process and with two; no step is trained twice when
a phase after the last one is stopped.

    python -m benchmarks.kill --times 20
    python -m benchmarks.kill --times 10 --processes 1 --recipe multilingual --stage student --set vars.data=DIR

`kill.toml`, the default, trains a small BERT with dropout, evaluates, keeps its best weights and writes a checkpoint
every 3 steps. `bertrelay run` and all its processes are killed within a random time after training resumed, until it
ends; then the next training starts, until the number of kills is reached. Of two processes sometimes one dies a moment
before the rest.
"""

import hashlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.harness import Claim, main

RECIPE, STAGE = Path(__file__).with_suffix(".toml"), "training"
SHARE_BETWEEN_KILLS = 0.3  # of the time that a whole training takes, at most
SECONDS_BETWEEN_DEATHS, SECONDS_BETWEEN_CHECKS = 0.3, 0.002
PHASES = {
    "evaluation": ("training", "teachers.train", "TeacherTask.evaluate", 2),
    "saving": ("training", "bertrelay.model.encoder", "SentenceEncoder.save", 1),
    "averaging": ("student", "students.distill.retention", "_load_between", 3),
    "calibration": ("entities", "domain.biomedical.ner.train", "NerTask.temperature", 1),
}
"""The stage that is stopped, and which call of which function stops it."""
WITH_SIGNAL = "import sys; from benchmarks.kill import main_with_signal; main_with_signal(*sys.argv[1:5])"


class Run:
    """`bertrelay run` of the stage in a folder and a process group of its own."""

    def __init__(self, options: Namespace, runs: Path, processes: int, signalled: Sequence[object] = ()) -> None:
        """signalled: module, function, call and signal, of a process that sends itself one."""
        self.runs, self.stage = runs, runs / Path(options.recipe).stem / options.stage
        runs.mkdir(exist_ok=True)
        start = ["-c", WITH_SIGNAL, *map(str, signalled)] if signalled else ["-P", "-m", "pipelines"]
        command = [sys.executable, *start, "run", options.recipe, "--runs", str(runs)]
        command += ["--only", options.stage, *(part for change in options.set for part in ("--set", change))]
        command += ["--processes", str(processes)] if processes > 1 else []
        with (runs / "output.txt").open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)

    @property
    def log(self) -> Path | None:
        return next(self.stage.glob("**/metrics.jsonl"), None)

    def written(self) -> int:
        with suppress(FileNotFoundError):
            return self.log.stat().st_mtime_ns if self.log else 0
        return 0

    def last(self) -> dict[str, float]:
        """The newest whole line of the log about steps; step 0 before there is one."""
        lines = self.log.read_text().split("\n")[:-1] if self.log else []
        found = [line for line in map(json.loads, lines) if "seconds" in line]
        return found[-1] if found else {"step": 0}

    def kill(self, chance: random.Random) -> None:
        """All processes at once, or one worker a moment before the rest."""
        workers = descendants(self.process.pid)
        if len(workers) > 1 and chance.random() < 0.5:
            with suppress(ProcessLookupError):
                os.kill(chance.choice(workers), signal.SIGKILL)
            time.sleep(chance.uniform(0, SECONDS_BETWEEN_DEATHS))
        for process in [self.process.pid, *workers]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()

    def end(self) -> str:
        """Waits, and gives the digest of the trained weights."""
        if self.process.wait():
            sys.exit(f"a training that was not killed failed:\n{(self.runs / 'output.txt').read_text()}")
        weights = sorted(self.stage.glob("latest/model/**/*.safetensors"))
        return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in weights)).hexdigest()


def descendants(process: int) -> list[int]:
    """Processes that a process started, and those that they started."""
    found = []
    with suppress(OSError):
        for file in Path(f"/proc/{process}/task").glob("*/children"):
            for child in map(int, file.read_text().split()):
                found += [child, *descendants(child)]
    return found


def was_killed(run: Run, longest_seconds: float, chance: random.Random) -> bool:
    """Kills within `longest_seconds` after training resumed; False when it ended before."""
    before = run.written()
    while run.written() == before and run.process.poll() is None:
        time.sleep(SECONDS_BETWEEN_CHECKS)
    time.sleep(chance.uniform(0, longest_seconds))
    if run.process.poll() is not None:
        return False
    run.kill(chance)
    return True


def kill_and_compare(options: Namespace, processes: int) -> dict[str, Any]:
    """steps: the last logged step before each kill; while_writing: kills that left a half-written checkpoint."""
    run = Run(options, options.scratch / f"whole-{processes}", processes)
    expected, longest = run.end(), float(run.last()["seconds"]) * SHARE_BETWEEN_KILLS
    chance, steps = random.Random(options.seed), list[int]()
    trainings = exact = while_writing = 0
    while len(steps) < options.times:
        folder = options.scratch / f"killed-{processes}-{trainings}"
        run = Run(options, folder, processes)
        while len(steps) < options.times and was_killed(run, longest, chance):
            steps.append(int(run.last()["step"]))
            while_writing += any(run.stage.glob("**/checkpoint-*.partial"))
            run = Run(options, folder, processes)
        trainings += 1
        exact += run.end() == expected
    return {"trainings": trainings, "exact": exact, "steps": steps, "while_writing": while_writing}


def main_with_signal(module: str, function: str, call: str, number: str) -> None:
    """Runs `bertrelay` in a process that sends itself the signal `number` at the `call`th call of the function."""
    import importlib

    from pipelines.cli import main as run_command

    *outer, name = function.split(".")
    owner = importlib.import_module(module)
    for each in outer:
        owner = getattr(owner, each)
    whole, calls = getattr(owner, name), itertools.count(1)

    def signalling(*arguments: Any, **named: Any) -> Any:
        if next(calls) == int(call):
            os.kill(os.getpid(), int(number))
        return whole(*arguments, **named)

    setattr(owner, name, signalling)
    run_command(sys.argv[5:])


def stop_in_phases(options: Namespace) -> dict[str, Any]:
    """By phase and signal: whether the weights are those of a stage never stopped, and the step that it resumed at."""
    found: dict[str, Any] = {}
    whole = {}
    for phase, (stage, *place) in PHASES.items():
        options = Namespace(**{**vars(options), "stage": stage})
        if stage not in whole:
            whole[stage] = Run(options, options.scratch / "whole-phases", 1).end()
        for number in (signal.SIGTERM, signal.SIGKILL):
            folder = options.scratch / f"{phase}-{number}"
            shutil.copytree(options.scratch / "whole-phases", folder, symlinks=True)
            shutil.rmtree(folder / Path(options.recipe).stem / stage)
            stopped = Run(options, folder, 1, (*place, int(number))).process.wait()
            is_exact = Run(options, folder, 1).end() == whole[stage]
            resumed = re.findall(r"resuming after step ([\d,]+) of ([\d,]+)", (folder / "output.txt").read_text())
            found[f"{phase}, {number.name}"] = {
                "stopped": stopped in (-number, 128 + number), "exact": is_exact, "resumed": resumed
            }  # fmt: skip
    return found


def claims_of_phases(found: dict[str, Any]) -> list[Claim]:
    exact = [each["exact"] and each["stopped"] for each in found.values()]
    after = {name: each["resumed"] for name, each in found.items() if not name.startswith("evaluation")}
    at_end = [len(steps) == 1 and steps[0][0] == steps[0][1] for steps in after.values()]
    return [
        Claim("stopped in a phase without steps: weights exact", f"{sum(exact)} of {len(exact)}", all(exact)),
        Claim("stopped after the last step: no step twice", f"{sum(at_end)} of {len(at_end)}", all(at_end)),
    ]


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    claims, tallies = [], {}
    for processes in options.processes:
        tallies[processes] = tally = kill_and_compare(options, processes)
        print(f"{processes}: killed after steps {', '.join(map(str, tally['steps']))}", flush=True)
        text = f"{processes} process{'es' * (processes > 1)}: weights exact"
        counts = f"{tally['exact']} of {tally['trainings']} trainings, {len(tally['steps'])} kills"
        shown = f"{counts}, {tally['while_writing']} in the writing of a checkpoint"
        claims.append(Claim(text, shown, tally["exact"] == tally["trainings"]))
    phases = stop_in_phases(options) if options.recipe == str(RECIPE) else {}
    for name, each in phases.items():
        print(f"{name}: {each}", flush=True)
    return [*claims, *(claims_of_phases(phases) if phases else [])], {"tallies": tallies, "phases": phases}


if __name__ == "__main__":
    changes = {"action": "append", "default": [], "metavar": "KEY=VALUE", "help": "as of `bertrelay run`"}
    main(measure, __doc__, times=20, seed=0, threads=1, processes=[1, 2], recipe=str(RECIPE), stage=STAGE, set=changes)
