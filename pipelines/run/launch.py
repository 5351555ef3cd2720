"""Starts the processes of `--processes N` by torchrun's launcher, and shows the one error that ended them.

torchrun sets their environment, passes signals on and ends the others when one has failed; its own table of errors is
replaced by the error of the process that failed first.
"""

import ctypes
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bertrelay.device import cpu_is_requested
from bertrelay.errors import RequestError
from bertrelay.process_group import ProcessGroup
from bertrelay.progress import log
from bertrelay.signals import STOPPING

ERRORS = "BERTRELAY_ERRORS"
"""The folder into which each process writes its error."""

LAUNCHER = "BERTRELAY_LAUNCHER"
"""The process that started this one."""

PR_SET_PDEATHSIG = 1  # of linux/prctl.h

SECONDS_TO_SAVE = "120"
"""Time that a process has to save its state after a stop signal."""

LOST = (1, -signal.SIGABRT)
"""Exit codes of a process that merely lost another one: torch's threads may abort it."""


def check_process_group(processes: int | None) -> ProcessGroup:
    """The rank of this process among those of a launcher. Raises RequestError when `--processes` differs."""
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

    Returns 0, or the exit code of the process that failed first. Raises RequestError when there are too few GPUs.
    """
    os.environ.update(shared_environment(processes))
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id="bertrelay",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        # Under nohup SIGHUP stays ignored.
        signals_to_handle=",".join(number.name for number in STOPPING if signal.getsignal(number) != signal.SIG_IGN),
    )
    with TemporaryDirectory(prefix="bertrelay-") as errors, _without_logs():
        os.environ |= {ERRORS: errors, LAUNCHER: str(os.getpid())}
        try:
            elastic_launch(config, command[0])(*command[1:])
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
            failed = {rank: code for rank, code in codes.items() if code != -signal.SIGTERM}  # else ended by torchrun
            return _explain(failed or codes, Path(errors))
        except SignalException as stop:
            return _explain({0: 128 + int(stop.sigval)}, Path(errors))
    return 0


@contextmanager
def _without_logs() -> Iterator[None]:
    """Silences the logs of this process, in which torchrun would print its own table of errors."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def shared_environment(processes: int) -> dict[str, str]:
    """The variables of all processes: their threads, and the CPU where there is no accelerator.

    Raises RequestError when there are too few GPUs.
    """
    threads = str(max(1, _cores() // processes))
    defaults = {"OMP_NUM_THREADS": threads, "RAYON_NUM_THREADS": threads}  # of torch, and of tokenizers
    defaults["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = SECONDS_TO_SAVE
    gpus = 0 if cpu_is_requested() else gpu_count()
    if 0 < gpus < processes:
        raise RequestError(
            f"--processes {processes}: expected a GPU for each process, found {gpus}. "
            f"Use --processes {gpus}, or set ACCELERATE_USE_CPU=true to compute without"
        )
    if not gpus:
        defaults["ACCELERATE_USE_CPU"] = "true"
    return {name: os.environ.get(name, value) for name, value in defaults.items()}


def gpu_count() -> int:
    """The number of GPUs that torch could use; none of them is touched."""
    import torch

    return torch.cuda.device_count()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _explain(failed: Mapping[int, int], errors: Path) -> int:
    """Shows the error of the process that failed first; returns its exit code, as a shell gives it.

    failed: rank to exit code. errors: the folder of the processes' own errors.
    """
    killed = [rank for rank, code in failed.items() if code < 0 and code not in LOST]
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


def end_with_launcher() -> None:
    """In a process that `launch` started: it ends with the launcher, even where SIGKILL ends that. On Linux only.

    Else it would go on training in a folder that the next run opens.
    """
    launcher = os.environ.pop(LAUNCHER, None)
    if launcher and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(launcher):  # it died before this process asked for the signal
            os._exit(1)


def leave_error(message: str, code: int) -> bool:
    """In a process that `launch` started, leaves its error for it to show; False elsewhere."""
    if ERRORS not in os.environ:
        return False
    path = Path(os.environ[ERRORS], f"{ProcessGroup.from_environment().rank}.json")
    try:
        path.write_text(json.dumps({"message": message, "code": code}), encoding="utf-8")
    except OSError:  # of a full disk, say: then every process shows its own
        return False
    return True
