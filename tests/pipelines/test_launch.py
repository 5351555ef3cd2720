"""`--processes N`: torchrun's launcher starts the processes, and one clear error is shown."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bertrelay.errors import RequestError
from bertrelay.process_group import ProcessGroup
from pipelines.run import launch as launching
from pipelines.run.launch import check_process_group, launch, shared_environment

HERE = Path(__file__).parent
SLOW = '[slow]\nuses = "light.slow"\n'


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch):
    monkeypatch.setattr(launching, "gpu_count", lambda: 0)


def in_two(code):
    return launch([sys.executable, "-c", code], 2)


def has_ended(pid):
    """True once the process is gone; a killed one may wait as a zombie for whoever takes in orphans."""
    try:
        return bool(select.select([os.pidfd_open(pid)], [], [], 10)[0])
    except ProcessLookupError:
        return True


def test_processes_share_the_cores_and_what_the_user_sets_stays(monkeypatch):
    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(launching, "_cores", lambda: 8)
    shared = shared_environment(3)
    assert (shared["OMP_NUM_THREADS"], shared["RAYON_NUM_THREADS"]) == ("2", "2")
    assert shared["ACCELERATE_USE_CPU"] == "true"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert shared_environment(2)["OMP_NUM_THREADS"] == "5"


def test_gpus_are_one_for_each_process(monkeypatch):
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    monkeypatch.setattr(launching, "gpu_count", lambda: 2)
    assert "ACCELERATE_USE_CPU" not in shared_environment(2)
    with pytest.raises(RequestError, match="--processes 3"):
        shared_environment(3)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "on")  # as Accelerate reads it
    shared_environment(3)


def test_another_number_of_processes_than_the_launchers_is_refused(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert check_process_group(None) == check_process_group(2) == ProcessGroup(1, 2)
    with pytest.raises(RequestError, match="--processes 3"):
        check_process_group(3)


FAILS = """
import os, signal, sys, time, types
from bertrelay.errors import Stopped, WorkError
from pipelines import cli
def fail(**_):
    rank = os.environ["RANK"]
    {act}
sys.modules["pipelines.cli.app"] = types.SimpleNamespace(app=fail)  # the real one takes a second to load
cli.main(["x"])
"""
DIES = {
    "nothing": ("pass", 0, ""),
    "an error": ("if rank == '1': raise WorkError('no room left')\n    signal.pause()", 1, "process 1: no room left\n"),
    "the same error in both": ("raise WorkError('no such column')", 1, "no such column\n"),
    "a kill, and a loss": (
        "if rank == '1': os.kill(os.getpid(), 9)\n    time.sleep(60)\n    raise RuntimeError('closed by peer')",
        137,
        "process 1 was ended by SIGKILL",
    ),
    "no word": ("os._exit(3)", 3, "exit code 3"),
    "a stop of all": (
        "if rank == '1': raise Stopped('stopped after step 7', signal.SIGHUP)\n    signal.pause()",
        129,
        "stopped after step 7\n",
    ),
}


@pytest.mark.parametrize("act", DIES)
def test_one_process_that_fails_is_one_error_and_its_exit_code(capfd, act):
    work, code, message = DIES[act]
    assert in_two(FAILS.replace("{act}", work)) == code
    err = capfd.readouterr().err
    assert message in err and err.count("\n") == bool(message)


def test_a_signal_is_passed_to_the_processes_and_their_end_is_awaited(start_python, tmp_path):
    process = (
        "import os, signal, sys\n"
        "def stop(number, frame):\n"
        f"    open({str(tmp_path)!r} + '/stopped-' + os.environ['RANK'], 'w').write(str(number))\n"
        "    sys.exit(128 + number)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "os.write(1, b'%d\\n' % os.getpid())\n"
        "while True: signal.pause()"
    )
    launched = f"sys.exit(launch.launch([sys.executable, '-c', {process!r}], 2))"
    launcher = start_python("-c", f"import sys\nfrom pipelines.run import launch\n{launched}")
    processes = [int(launcher.stdout.readline()) for _ in range(2)]
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(60) == 128 + signal.SIGTERM
    assert all(has_ended(pid) for pid in processes)
    assert [path.read_text() for path in tmp_path.glob("stopped-*")] == [str(signal.SIGTERM.value)] * 2


def launch_bertrelay(*arguments):
    return launch([sys.executable, str(HERE / "light_bertrelay.py"), *map(str, arguments)], 2)


def test_two_processes_share_a_run_and_one_writes_it_and_a_plan_that_fails_ends_both(write_recipe, tmp_path, capfd):
    path, runs = write_recipe(SLOW + 'sensitive = true\n[t]\nuses = "light.teach"\n'), tmp_path / "runs"
    assert launch_bertrelay("run", path, "--runs", runs) == 0
    files = {file.name: file.stat().st_mode & 0o777 for file in (runs / "lesson/slow/latest").glob("steps-*")}
    assert files == {"steps-0.txt": 0o600, "steps-1.txt": 0o600}
    assert capfd.readouterr().out.count("RUN     slow") == 1
    assert launch_bertrelay("run", path, "--runs", runs, "--set", "t.data=none.tsv") == 2
    assert capfd.readouterr().err.count("none.tsv") == 1


@pytest.mark.promise("Runs on separate disks stop before a stage starts", about="complete")
def test_processes_whose_runs_are_on_separate_disks_are_refused_before_a_stage_begins(write_recipe, tmp_path, capfd):
    for rank in "01":
        (tmp_path / rank).mkdir()
    arguments = ["bertrelay", "run", str(write_recipe(SLOW)), "--runs", "runs"]
    code = (
        f"import os, runpy, sys; sys.path.insert(0, {str(HERE)!r}); sys.argv = {arguments!r}\n"
        f"os.chdir({str(tmp_path)!r} + '/' + os.environ['RANK'])\n"
        f"runpy.run_path({str(HERE / 'light_bertrelay.py')!r}, run_name='__main__')"
    )
    assert in_two(code) == 2
    assert "all 2 processes share" in capfd.readouterr().err
    assert not list(tmp_path.rglob("steps-*"))


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl of Linux")
def test_processes_end_with_a_killed_launcher():
    worker = "from pipelines.run.launch import end_with_launcher; end_with_launcher()\n"
    worker += "import os, signal; os.write(1, b'%d\\n' % os.getpid()); signal.pause()"
    code = f"import sys; from pipelines.run.launch import launch; launch([sys.executable, '-c', {worker!r}], 2)"
    launcher = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    workers = [int(launcher.stdout.readline()) for _ in range(2)]
    launcher.kill()
    launcher.wait()
    assert all(has_ended(pid) for pid in workers)


def test_a_process_whose_launcher_died_before_it_asked_ends_too():
    code = "from pipelines.run.launch import end_with_launcher; end_with_launcher(); print('lives')"
    environment = {**os.environ, "BERTRELAY_LAUNCHER": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
