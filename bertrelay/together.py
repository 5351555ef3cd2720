"""What processes that work together need of one another: to wait, and to know what the main one has found."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

from torch import distributed

from bertrelay.errors import WorkError
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
