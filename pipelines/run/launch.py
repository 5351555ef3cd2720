"""Starts the processes of `--processes N`, passes signals on to them, and lets none outlive the others.

Each worker is the same command again, with its place among the others in its environment.
"""

import ctypes
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bertrelay.device import cpu_is_requested
from bertrelay.errors import RequestError
from bertrelay.process_group import ProcessGroup
from bertrelay.progress import log
from bertrelay.signals import on_stop_signal

PARENT = "BERTRELAY_PARENT"
ERRORS = "BERTRELAY_ERRORS"
"""The folder in which each worker leaves its error, so that one of them is shown and not all."""

GRACE_SECONDS = 20.0
SETTLE_SECONDS = 3.0
POLL_SECONDS = 0.05
PR_SET_PDEATHSIG = 1
LATE = (1, -signal.SIGABRT)
"""What a worker ends with whose work failed, or that merely lost another one: torch's threads may abort it."""


def check_process_group(processes: int | None) -> ProcessGroup:
    """The place of this process among those of a launcher. Raises RequestError when `--processes` differs."""
    process_group = ProcessGroup.from_environment()
    if "RANK" in os.environ and processes not in (None, process_group.size):
        raise RequestError(
            f"--processes {processes}: expected the number that the launcher started, found {process_group.size}; "
            "under torchrun or accelerate launch leave --processes out"
        )
    return process_group


def launch_again(processes: int) -> int:
    """Runs this very command in so many processes, as `launch` does."""
    # -P: a folder of the user's that happens to be called pipelines is not taken for ours
    return launch([sys.executable, "-P", "-m", "pipelines", *sys.argv[1:]], processes)


def launch(command: Sequence[str], processes: int) -> int:
    """Runs `command` in so many processes and waits for them; shows the one error that ended them.

    Returns 0, or the exit code of the process that failed.
    """
    environments = worker_environments(processes)
    workers: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int) -> None:
        for worker in workers:
            worker.send_signal(number)

    with TemporaryDirectory(prefix="bertrelay-") as errors, on_stop_signal(pass_on):
        # In a session of their own, a Ctrl-C of the terminal reaches the workers once: from here.
        try:
            workers.extend(
                subprocess.Popen(command, env={**environment, ERRORS: errors}, start_new_session=True)
                for environment in environments
            )
            failed = _wait(workers)
        finally:
            _end(workers)
        return _explained(failed, Path(errors)) if failed else 0


def worker_environments(processes: int) -> list[dict[str, str]]:
    """The environment of each worker, as torchrun would set it. Raises RequestError when there are too few GPUs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        PARENT: str(os.getpid()),
    }
    threads = str(max(1, _cores() // processes))
    defaults = {"OMP_NUM_THREADS": threads, "RAYON_NUM_THREADS": threads}  # of torch, and of tokenizers
    gpus = 0 if cpu_is_requested() else gpu_count()
    if 0 < gpus < processes:
        raise RequestError(
            f"--processes {processes}: expected a GPU for each process, found {gpus}. "
            f"Use --processes {gpus}, or set ACCELERATE_USE_CPU=true to compute without"
        )
    if not gpus:
        defaults["ACCELERATE_USE_CPU"] = "true"
    return [
        {**defaults, **os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)
    ]


def gpu_count() -> int:
    """How many GPUs torch could use; asking touches none of them."""
    import torch

    return torch.cuda.device_count()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _wait(workers: Sequence[subprocess.Popen[bytes]]) -> dict[int, int]:
    """Waits until all are done, or one has failed; the exit codes of those that failed, by rank.

    After one that merely lost another, that other has a moment to fail too.
    """
    deadline = math.inf
    while True:
        codes = [worker.poll() for worker in workers]
        failed = {rank: code for rank, code in enumerate(codes) if code}
        if None not in codes or time.monotonic() > deadline or any(code not in LATE for code in failed.values()):
            return failed
        if failed:
            deadline = min(deadline, time.monotonic() + SETTLE_SECONDS)
        time.sleep(POLL_SECONDS)


def _explained(failed: Mapping[int, int], errors: Path) -> int:
    """Shows the error of the process that failed first; its exit code, as a shell gives it."""
    killed = [rank for rank, code in failed.items() if code < 0 and code not in LATE]
    for path in sorted(errors.iterdir(), key=lambda path: path.stat().st_mtime_ns) if not killed else []:
        rank, report = int(path.stem), json.loads(path.read_text(encoding="utf-8"))
        code, message = int(report["code"]), report["message"]
        if rank in failed or code != 128 + signal.SIGTERM:  # else it was stopped because another had failed
            log(message if rank == 0 or code > 128 else f"process {rank}: {message}")
            return code
    rank = (killed or list(failed))[0]
    code = failed[rank]
    if code < 0:
        why = ", perhaps because memory ran out" if code == -signal.SIGKILL else ""
        log(
            f"process {rank} was ended by {signal.Signals(-code).name}{why}; the same command resumes from what is done"
        )
        return 128 - code
    if code <= 128:  # else it was stopped
        log(f"process {rank} ended with exit code {code} and gave no reason")
    return code


def leave_error(message: str, code: int) -> bool:
    """In a worker, leaves its error for the launcher to show; False where there is no launcher."""
    if ERRORS not in os.environ:
        return False
    path = Path(os.environ[ERRORS], f"{ProcessGroup.from_environment().rank}.json")
    try:
        path.write_text(json.dumps({"message": message, "code": code}), encoding="utf-8")
    except OSError:  # of a full disk, say: then every process shows its own
        return False
    return True


def _end(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Asks those still at work to stop, and after a while makes them."""
    for worker in workers:
        if worker.poll() is None:
            worker.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for worker in workers:
        try:
            worker.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def die_with_parent() -> None:
    """Called first in a worker: whatever happens to the parent, SIGKILL included, this process does not live on."""
    if PARENT not in os.environ:
        return
    parent = int(os.environ.pop(PARENT))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it died before this process asked for the signal
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
