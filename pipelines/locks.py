"""One runner at a time on a run's folder; the second is told who the first is."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from bertrelay.errors import RequestError
from bertrelay.files import read_json, write_json

HOLDER = ".holder.json"


@contextmanager
def run_lock(run_folder: Path) -> Iterator[None]:
    """Holds `run_folder`; the system lets go of it even when the process is killed.

    Raises RequestError, saying who holds it, when another process does.
    """
    run_folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(run_folder / ".lock")
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise RequestError(
            f"{run_folder}: {_holder(run_folder)} is at work here. Wait for it, stop it, "
            "or give this run another folder with --runs DIR"
        ) from error
    try:
        write_json(
            run_folder / HOLDER,
            {
                "pid": os.getpid(),
                "host": platform.node(),
                "since": datetime.now().astimezone().isoformat(" ", "seconds"),
            },
        )
        yield
    finally:
        with suppress(OSError):
            (run_folder / HOLDER).unlink(missing_ok=True)
        lock.release()


def _holder(run_folder: Path) -> str:
    note = read_json(run_folder / HOLDER)
    if note is None:
        return "another process"
    return f"process {note.get('pid')} on {note.get('host')}, since {note.get('since')},"
