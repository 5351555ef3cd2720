"""Locks of outputs, so that one call at a time writes them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from bertrelay.errors import RequestError
from bertrelay.files import write_error
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup
from bertrelay.progress import log


@contextmanager
def locked_output(output: Path, process_group: ProcessGroup = SINGLE_PROCESS, wait: bool = False) -> Iterator[None]:
    """Locks `output` for the processes of this call; the system releases the lock if they die.

    wait: wait for another call that writes it, as where both fill a cache; the lock's file then stays.
    Raises RequestError when another call writes it, or it may not be written.
    """
    if not process_group.is_main:
        yield
        return
    lock = FileLock(output.with_name(output.name + ".lock"))
    try:
        _acquire(lock, output, wait)
    except OSError as error:
        raise write_error(output, error) from error
    try:
        yield
    finally:
        if not wait:
            Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def _acquire(lock: FileLock, output: Path, wait: bool) -> None:
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        if not wait:
            raise RequestError(
                f"output: another process is writing {output}; wait for it, or name another file"
            ) from error
        log(f"{output}: waiting for another process, which is writing it")
        lock.acquire()
