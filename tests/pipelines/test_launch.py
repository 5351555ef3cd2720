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
from pipelines.run.launch import check_process_group, launch, worker_environments

HERE = Path(__file__).parent
SLOW = '[slow]\nuses = "light.slow"\n'


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch):
    monkeypatch.setattr(launching, "gpu_count", lambda: 0)


@pytest.fixture
def start_launcher(start_python):
    """Starts a process that launches two workers, each running `code` after it has tied itself to its parent."""

    def start(code):
        worker = f"from pipelines.run.launch import die_with_parent; die_with_parent()\nimport os, signal, sys\n{code}"
        launched = f"sys.exit(launch.launch([sys.executable, '-c', {worker!r}], 2))"
        return start_python("-c", f"import sys\nfrom pipelines.run import launch\n{launched}")

    return start


def in_two(code):
    return launch([sys.executable, "-c", code], 2)


def workers_of(launcher):
    return [int(launcher.stdout.readline()) for _ in range(2)]


def has_ended(pid):
    """True once the process is gone; a killed one may wait as a zombie for whoever takes in orphans."""
    try:
        return bool(select.select([os.pidfd_open(pid)], [], [], 10)[0])
    except ProcessLookupError:
        return True


def test_workers_know_their_place_as_under_torchrun(monkeypatch):
    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(launching, "_cores", lambda: 8)
    workers = worker_environments(3)
    assert [(each["RANK"], each["LOCAL_RANK"]) for each in workers] == [("0", "0"), ("1", "1"), ("2", "2")]
    assert {each["WORLD_SIZE"] for each in workers} == {"3"} == {workers[0]["LOCAL_WORLD_SIZE"]}
    assert len({each["MASTER_PORT"] for each in workers}) == 1
    assert (workers[0]["OMP_NUM_THREADS"], workers[0]["RAYON_NUM_THREADS"]) == ("2", "2")
    assert workers[0]["ACCELERATE_USE_CPU"] == "true"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert worker_environments(2)[0]["OMP_NUM_THREADS"] == "5"


def test_gpus_are_one_for_each_process(monkeypatch):
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    monkeypatch.setattr(launching, "gpu_count", lambda: 2)
    assert "ACCELERATE_USE_CPU" not in worker_environments(2)[0]
    with pytest.raises(RequestError, match="expected a GPU for each process, found 2"):
        worker_environments(3)
    for yes in ("true", "on"):  # as Accelerate reads it
        monkeypatch.setenv("ACCELERATE_USE_CPU", yes)
        assert worker_environments(3)[0]["ACCELERATE_USE_CPU"] == yes


def test_another_number_of_processes_than_the_launchers_is_refused(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert check_process_group(None) == check_process_group(2) == ProcessGroup(1, 2)
    with pytest.raises(RequestError, match="--processes 3: expected the number that the launcher started, found 2"):
        check_process_group(3)


def test_the_exit_code_is_that_of_the_worker_that_failed_first():
    fails = "import os, signal, time\nif os.environ['RANK'] == '{}': {}\n{}".format
    assert in_two("pass") == 0
    assert in_two(fails(1, "raise SystemExit(7)", "signal.pause()")) == 7
    assert in_two(fails(0, "os.kill(os.getpid(), 9)", "signal.pause()")) == 137
    # One that lost the other is not taken at its word.
    assert in_two(fails(0, "time.sleep(0.3); raise SystemExit(2)", "raise SystemExit(1)")) == 2


FAILS = """
import os, signal, sys, types
from bertrelay.errors import Stopped, WorkError
from pipelines import cli
def fail(**_):
    rank = os.environ["RANK"]
    {act}
sys.modules["pipelines.cli.app"] = types.SimpleNamespace(app=fail)  # the real one takes a second to load
cli.main(["x"])
"""
DIES = {
    "an error": ("if rank == '1': raise WorkError('no room left')\n    signal.pause()", 1, "process 1: no room left\n"),
    "the same error in both": ("raise WorkError('no such column')", 1, "no such column\n"),
    "memory": ("if rank == '1': raise MemoryError('of 8 GB')\n    signal.pause()", 1, "unforeseen MemoryError"),
    "a kill, and a loss": (
        "if rank == '1': os.kill(os.getpid(), 9)\n    raise RuntimeError('connection closed by peer')",
        137,
        "process 1 was ended by SIGKILL, perhaps because memory ran out; the same command resumes",
    ),
    "an error, and an abort": (
        "if rank == '1': raise WorkError('no room left')\n    os.abort()",
        1,
        "process 1: no room left\n",
    ),
    "no word": ("os._exit(3)", 3, "ended with exit code 3 and gave no reason\n"),
    "a stop of all": (
        "if rank == '1': raise Stopped('stopped after step 7', signal.SIGHUP)\n    signal.pause()",
        129,
        "stopped after step 7\n",
    ),
}


@pytest.mark.parametrize("act", DIES)
def test_one_worker_that_dies_is_one_error(capfd, act, monkeypatch):
    monkeypatch.setattr(launching, "SETTLE_SECONDS", 1.0)
    monkeypatch.setattr(launching, "GRACE_SECONDS", 5.0)
    work, code, message = DIES[act]
    assert in_two(FAILS.replace("{act}", work)) == code
    err = capfd.readouterr().err
    assert message in err
    assert err.count("\n") == 1 + err.count("unforeseen")


def test_a_worker_that_does_not_stop_when_asked_is_made_to(monkeypatch):
    monkeypatch.setattr(launching, "GRACE_SECONDS", 0.1)
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
    assert in_two(f"import os, signal\nif os.environ['RANK'] == '1': raise SystemExit(3)\n{deaf}") == 3


def test_workers_die_with_a_killed_parent(start_launcher):
    launcher = start_launcher("os.write(1, b'%d\\n' % os.getpid())\nwhile True: signal.pause()")
    workers = workers_of(launcher)
    launcher.kill()
    launcher.wait()
    assert all(has_ended(pid) for pid in workers)


def test_a_worker_whose_parent_died_before_it_asked_ends_too():
    code = "from pipelines.run.launch import die_with_parent; die_with_parent(); print('lives')"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "BERTRELAY_PARENT": "1"}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_are_passed_to_the_workers_and_their_end_is_awaited(start_launcher, number, tmp_path):
    launcher = start_launcher(
        "def stop(number, frame):\n"
        f"    open({str(tmp_path)!r} + '/stopped-' + os.environ['RANK'], 'w').write(str(number))\n"
        "    sys.exit(128 + number)\n"
        f"signal.signal({number.value}, stop)\n"
        "os.write(1, b'%d\\n' % os.getpid())\n"
        "while True: signal.pause()"
    )
    workers = workers_of(launcher)
    launcher.send_signal(number)
    assert launcher.wait(20) == 128 + number
    assert all(has_ended(pid) for pid in workers)
    assert [path.read_text() for path in tmp_path.glob("stopped-*")] == [str(number.value)] * 2


def launch_bertrelay(*arguments):
    return launch([sys.executable, str(HERE / "light_bertrelay.py"), *map(str, arguments)], 2)


def test_two_processes_share_a_run_and_one_writes_it_and_a_plan_that_fails_ends_both(write_recipe, tmp_path, capfd):
    path, runs = write_recipe(SLOW + 'sensitive = true\n[t]\nuses = "light.teach"\n'), tmp_path / "runs"
    assert launch_bertrelay("run", path, "--runs", runs) == 0
    files = {file.name: file.stat().st_mode & 0o777 for file in (runs / "lesson/slow/latest").glob("steps-*")}
    assert files == {"steps-0.txt": 0o600, "steps-1.txt": 0o600}
    assert capfd.readouterr().out.count("RUN     slow") == 1
    assert launch_bertrelay("run", path, "--runs", runs, "--set", "t.data=none.tsv") == 2
    assert capfd.readouterr().err.count("expected a file or a folder, found neither") == 1


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
    assert "expected one folder that all 2 processes share" in capfd.readouterr().err
    assert not list(tmp_path.rglob("steps-*"))
