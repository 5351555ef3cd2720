"""What processes that work together need of one another: to wait, to know what the main one has found, one folder."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar, cast
from uuid import uuid4

from torch import distributed

from bertrelay.errors import RequestError, WorkError
from bertrelay.outputs import not_written
from bertrelay.stage import World

AnyValue = TypeVar("AnyValue")


def from_main(value: AnyValue | None, world: World) -> AnyValue:
    """The main process's `value`, in every process; the others give None.

    Raises WorkError when another process has ended, or the processes of `world` do not know of one another.
    """
    shared = [value]
    if world.size > 1:
        with _told_of_an_end(world):
            distributed.broadcast_object_list(shared)
    return cast(AnyValue, shared[0])


def wait_for_all(world: World) -> None:
    """Returns when every process is here. Raises WorkError as `from_main` does."""
    if world.size > 1:
        with _told_of_an_end(world):
            distributed.barrier()


def check_shared(folder: Path, world: World) -> None:
    """Returns when every process is here and sees the main one's `folder`, which exists there.

    Raises RequestError, in every process, where one of them has another folder of that name or none, as processes on
    several machines may.
    """
    if world.size == 1:
        return
    mark = folder / from_main(f".shared-{uuid4().hex}" if world.is_main else None, world)
    try:
        if world.is_main:
            _touch(mark)
        wait_for_all(world)
        seen = _from_each(mark.exists(), world)
    finally:
        if world.is_main:
            mark.unlink(missing_ok=True)
    if not all(seen):
        others = ", ".join(str(rank) for rank, sees in enumerate(seen) if not sees)
        raise RequestError(
            f"{folder.absolute()}: expected one folder that all {world.size} processes share, found another or none in "
            f"process {others}. Use a folder on a disk that every machine mounts"
        )


def _touch(mark: Path) -> None:
    try:
        mark.touch()
    except OSError as error:
        raise not_written(mark.parent, error) from error


def check_complete(path: Path, count: Callable[[], tuple[int, int]], world: World) -> None:
    """Returns when every process has written its share of the blocks of `path` and sees those of all.

    count: how many blocks this process misses on the disk that it reads, and of how many. Nobody returns before all
        have counted, for the main process then moves what was written.
    Raises RequestError, in every process, where one of them misses a block.
    """
    wait_for_all(world)
    missing, blocks = count()
    most = max(_from_each(missing, world))
    if most:
        raise RequestError(
            f"{path}: expected all {blocks:,} blocks when every process had written its own, {most:,} are missing. "
            "The folder must be one that all processes share; the same command then computes what is missing"
        )


def _from_each(value: AnyValue, world: World) -> list[AnyValue]:
    """The values of all processes, by rank, in each of them."""
    found = [value] * world.size
    if world.size > 1:
        with _told_of_an_end(world):
            distributed.all_gather_object(found, value)
    return found


@contextmanager
def _told_of_an_end(world: World) -> Iterator[None]:
    joined = distributed.is_available() and distributed.is_initialized()
    found = distributed.get_world_size() if joined else 1
    if found != world.size:
        raise WorkError(
            f"expected {world.size} processes that know of one another, found {found}; call "
            "torch.distributed.init_process_group first, or let --processes N, torchrun or accelerate launch do it"
        )
    try:
        yield
    except RuntimeError as error:  # of the back end, whose words are about sockets
        raise WorkError("another process has ended, and has said why if it could; this one ends too") from error
