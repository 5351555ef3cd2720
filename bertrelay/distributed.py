"""What processes that work together need of one another: to wait, to know what the main one has found, one folder."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar, cast
from uuid import uuid4

from torch import distributed

from bertrelay.errors import RequestError, WorkError
from bertrelay.files import write_error
from bertrelay.stage import ProcessGroup

AnyValue = TypeVar("AnyValue")


def from_main(value: AnyValue | None, process_group: ProcessGroup) -> AnyValue:
    """The main process's `value`, in every process; the others give None.

    Raises WorkError when another process has ended, or the processes of `process_group` do not know of one another.
    """
    shared = [value]
    if process_group.size > 1:
        with _told_of_an_end(process_group):
            distributed.broadcast_object_list(shared)
    return cast(AnyValue, shared[0])


def wait_for_all(process_group: ProcessGroup) -> None:
    """Returns when every process is here. Raises WorkError as `from_main` does."""
    if process_group.size > 1:
        with _told_of_an_end(process_group):
            distributed.barrier()


def check_shared(folder: Path, process_group: ProcessGroup) -> None:
    """Returns when every process is here and sees the main one's `folder`, which exists there.

    Raises RequestError, in every process, where one of them has another folder of that name or none, as processes on
    several machines may.
    """
    if process_group.size == 1:
        return
    mark = folder / from_main(f".shared-{uuid4().hex}" if process_group.is_main else None, process_group)
    try:
        if process_group.is_main:
            _touch(mark)
        wait_for_all(process_group)
        seen = _from_each(mark.exists(), process_group)
    finally:
        if process_group.is_main:
            mark.unlink(missing_ok=True)
    if not all(seen):
        others = ", ".join(str(rank) for rank, sees in enumerate(seen) if not sees)
        raise RequestError(
            f"{folder.absolute()}: expected one folder that all {process_group.size} processes share, "
            f"found another or none in process {others}. Use a folder on a disk that every machine mounts"
        )


def _touch(mark: Path) -> None:
    try:
        mark.touch()
    except OSError as error:
        raise write_error(mark.parent, error) from error


def check_complete(path: Path, count: Callable[[], tuple[int, int]], process_group: ProcessGroup) -> None:
    """Returns when every process has written its share of the blocks of `path` and sees those of all.

    count: how many blocks this process misses on the disk that it reads, and of how many. Nobody returns before all
        have counted, for the main process then moves what was written.
    Raises RequestError, in every process, where one of them misses a block.
    """
    wait_for_all(process_group)
    missing, blocks = count()
    most = max(_from_each(missing, process_group))
    if most:
        raise RequestError(
            f"{path}: expected all {blocks:,} blocks when every process had written its own, {most:,} are missing. "
            "The folder must be one that all processes share; the same command then computes what is missing"
        )


def _from_each(value: AnyValue, process_group: ProcessGroup) -> list[AnyValue]:
    """The values of all processes, by rank, in each of them."""
    found = [value] * process_group.size
    if process_group.size > 1:
        with _told_of_an_end(process_group):
            distributed.all_gather_object(found, value)
    return found


@contextmanager
def _told_of_an_end(process_group: ProcessGroup) -> Iterator[None]:
    joined = distributed.is_available() and distributed.is_initialized()
    found = distributed.get_world_size() if joined else 1
    if found != process_group.size:
        raise WorkError(
            f"expected {process_group.size} processes that know of one another, found {found}; call "
            "torch.distributed.init_process_group first, or let --processes N, torchrun or accelerate launch do it"
        )
    try:
        yield
    except RuntimeError as error:  # of the back end, whose words are about sockets
        raise WorkError("another process has ended, and has said why if it could; this one ends too") from error
