"""Starts the processes of `--processes N`, passes signals on to them, and lets none outlive the others.

Each worker is the same command again, with its place among the others in its environment.
"""

import ctypes
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from bertrelay.errors import RequestError
from bertrelay.progress import say
from bertrelay.signals import on_stop_signal
from bertrelay.stage import World

PARENT = "BERTRELAY_PARENT"
GRACE_SECONDS = 20.0
SETTLE_SECONDS = 3.0
POLL_SECONDS = 0.05
PR_SET_PDEATHSIG = 1
LOST = 1
"""What a worker ends with whose work failed, or that merely lost another one."""


def check_world(processes: int | None, environment: Mapping[str, str] = os.environ) -> World:
    """The place of this process among those of a launcher. Raises RequestError when `--processes` says otherwise."""
    world = World.from_environment()
    if "RANK" in environment and processes not in (None, world.size):
        raise RequestError(
            f"--processes {processes}: expected the number that the launcher started, found {world.size}; "
            "under torchrun or accelerate launch leave --processes out"
        )
    return world


def launch_again(processes: int) -> int:
    """Runs this very command in so many processes, as `launch` does."""
    # -P: a folder of the user's that happens to be called pipelines is not taken for ours
    return launch([sys.executable, "-P", "-m", "pipelines", *sys.argv[1:]], processes)


def launch(command: Sequence[str], processes: int) -> int:
    """Runs `command` in so many processes and waits for them; the exit code of the one that failed, else 0."""
    environments = worker_environments(processes)
    workers: list[subprocess.Popen[bytes]] = []
    with _signals_passed_to(workers):
        # In a session of their own, a Ctrl-C of the terminal reaches the workers once: from here.
        try:
            workers.extend(
                subprocess.Popen(command, env=environment, start_new_session=True) for environment in environments
            )
            return _wait(workers)
        finally:
            _end(workers)


def worker_environments(processes: int) -> list[dict[str, str]]:
    """The environment of each worker, as torchrun would set it."""
    shared = {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        PARENT: str(os.getpid()),
    }
    threads = str(max(1, _cores() // processes))
    defaults = {"OMP_NUM_THREADS": threads, "RAYON_NUM_THREADS": threads}  # of torch, and of tokenizers
    if not _has_gpus(processes):
        defaults["ACCELERATE_USE_CPU"] = "true"
    return [
        {**defaults, **os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)
    ]


def _has_gpus(processes: int) -> bool:
    """Whether the workers take a GPU each. Raises RequestError when there are some, but too few."""
    gpus = 0 if os.environ.get("ACCELERATE_USE_CPU", "").lower() in {"1", "true", "yes"} else gpu_count()
    if 0 < gpus < processes:
        raise RequestError(
            f"--processes {processes}: expected a GPU for each process, found {gpus}. "
            f"Use --processes {gpus}, or set ACCELERATE_USE_CPU=true to compute without"
        )
    return gpus > 0


def gpu_count() -> int:
    """How many GPUs torch could use; asking touches none of them."""
    import torch

    return torch.cuda.device_count()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _signals_passed_to(workers: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    def forward(number: int) -> None:
        for worker in workers:
            worker.send_signal(number)

    with on_stop_signal(forward):
        yield


def _wait(workers: Sequence[subprocess.Popen[bytes]]) -> int:
    """Waits until all are done, or one has failed: not one that merely lost another, if that other says more."""
    deadline = math.inf
    while True:
        codes = [worker.poll() for worker in workers]
        for rank, code in enumerate(codes):
            if code not in (None, 0, LOST):
                return _exit_code(rank, code)
        if None not in codes or time.monotonic() > deadline:
            return LOST if LOST in codes else 0
        if LOST in codes:
            deadline = min(deadline, time.monotonic() + SETTLE_SECONDS)
        time.sleep(POLL_SECONDS)


def _exit_code(rank: int, code: int) -> int:
    """As a shell tells it: 128 and the signal's number for a process that died of one, which cannot say so itself."""
    if code >= 0:
        return code
    if code == -signal.SIGABRT:  # torch's threads may end so a process that failed, and has said why
        return 1
    why = ", perhaps because memory ran out" if code == -signal.SIGKILL else ""
    say(f"process {rank} was ended by {signal.Signals(-code).name}{why}; the same command goes on from what is done")
    return 128 - code


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
    if os.getppid() != parent:  # it died before this process could ask to be told
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
