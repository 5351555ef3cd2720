"""Processes that share the work: rank, size, connecting, exchanging values. Loads torch only for several processes."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import uuid4

from bertrelay.errors import RequestError, WorkError
from bertrelay.files import write_error

if TYPE_CHECKING:
    import torch

TIMEOUT = timedelta(hours=6)  # while one process evaluates at the end, the others wait

AnyValue = TypeVar("AnyValue")


@dataclass(frozen=True)
class ProcessGroup:
    """Rank and number of the processes that share the work, as launchers put them into the environment."""

    rank: int = 0
    size: int = 1

    @classmethod
    def from_environment(cls) -> "ProcessGroup":
        return cls(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))

    @property
    def is_main(self) -> bool:
        return self.rank == 0


SINGLE_PROCESS = ProcessGroup()


@contextmanager
def join_processes(process_group: ProcessGroup) -> Iterator[None]:
    """Connects the processes, and leaves the group at the end; after an error launchers end the others.

    Raises WorkError when there are not as many as `process_group` has.
    """
    if process_group.size == 1:
        yield
        return
    import torch
    import torch.distributed.nn.functional  # once connected, its defaults would keep the group and its threads alive
    from accelerate import PartialState
    from accelerate.utils import parse_flag_from_env

    if not torch.cuda.is_available():  # else Accelerate on a CPU does not connect the processes
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    state = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"), timeout=TIMEOUT)
    if state.num_processes != process_group.size:
        raise WorkError(
            f"expected {process_group.size} connected processes, found {state.num_processes}; "
            "start them with `bertrelay run … --processes N`, torchrun or accelerate launch"
        )
    yield
    state.destroy_process_group()


def host_group(device: "torch.device") -> "torch.distributed.ProcessGroup | None":
    """The connected processes as a group that adds up numbers on the host, where their own waits for the device.

    None, which is their own group, where that is on the CPU. Every process calls it.
    """
    import torch.distributed

    return None if device.type == "cpu" else torch.distributed.new_group(timeout=TIMEOUT, backend="gloo")


def broadcast_from_main(value: AnyValue | None, process_group: ProcessGroup) -> AnyValue:
    """The main process's `value`, in every process; the others pass None.

    Raises WorkError when another process has ended, or the processes are not connected.
    """
    values = [value]
    _collective("broadcast_object_list", process_group, values)
    return cast(AnyValue, values[0])


def on_main(compute: Callable[[], AnyValue], process_group: ProcessGroup) -> AnyValue:
    """Calls `compute` in the main process only, and returns its result in all. Raises as `broadcast_from_main` does."""
    return broadcast_from_main(compute() if process_group.is_main else None, process_group)


def gather(value: AnyValue, process_group: ProcessGroup) -> list[AnyValue]:
    """The values of all processes, by rank, in every process. Raises as `broadcast_from_main` does."""
    values = [value] * process_group.size
    _collective("all_gather_object", process_group, values, value)
    return values


def map_over_processes(compute: Callable[[Any], Any], items: Any, process_group: ProcessGroup) -> Any:
    """Computes one result per item, in order: a list, or an array where `compute` makes arrays.

    Every process calls it with the same items, computes some of them and gets all results. Raises as
    `broadcast_from_main` does.
    """
    if process_group.size == 1:
        return compute(items)
    import numpy as np

    by_rank = gather(compute(items[process_group.rank :: process_group.size]), process_group)
    whole: Any = [None] * len(items)
    if isinstance(by_rank[0], np.ndarray):
        whole = np.empty((len(items), *by_rank[0].shape[1:]), by_rank[0].dtype)
    for rank, results in enumerate(by_rank):
        whole[rank :: process_group.size] = results
    return whole


def wait_for_all(process_group: ProcessGroup) -> None:
    """Waits until every process has called it, the one barrier of the project. Raises as `broadcast_from_main` does."""
    _collective("barrier", process_group)


@contextmanager
def main_first(process_group: ProcessGroup) -> Iterator[None]:
    """Lets the other processes into the block when the main one has left it: they find what it has written."""
    if not process_group.is_main:
        wait_for_all(process_group)
    yield
    if process_group.is_main:
        wait_for_all(process_group)


def check_shared(folder: Path, process_group: ProcessGroup) -> None:
    """Returns when every process is here and sees the main one's `folder`, which exists there.

    Raises RequestError, in every process, where one of them has another folder of that name or none, as processes on
    several machines may.
    """
    if process_group.size == 1:
        return
    marker = folder / on_main(lambda: f".shared-{uuid4().hex}", process_group)
    try:
        if process_group.is_main:
            try:
                marker.touch()
            except OSError as error:
                raise write_error(folder, error) from error
        wait_for_all(process_group)
        is_visible = gather(marker.exists(), process_group)
    finally:
        if process_group.is_main:
            marker.unlink(missing_ok=True)
    if not all(is_visible):
        others = ", ".join(str(rank) for rank, sees in enumerate(is_visible) if not sees)
        raise RequestError(
            f"{folder.absolute()}: expected one folder that all {process_group.size} processes share, "
            f"found another or none in process {others}. Use a folder on a disk that every machine mounts"
        )


def _collective(name: str, process_group: ProcessGroup, *arguments: object) -> None:
    """Calls this function of torch.distributed where there are several processes."""
    if process_group.size == 1:
        return
    from torch import distributed

    is_connected = distributed.is_available() and distributed.is_initialized()
    size = distributed.get_world_size() if is_connected else 1
    if size != process_group.size:
        raise WorkError(
            f"expected {process_group.size} connected processes, found {size}; call "
            "torch.distributed.init_process_group first, or let --processes N, torchrun or accelerate launch do it"
        )
    try:
        getattr(distributed, name)(*arguments)
    except RuntimeError as error:  # of the back end, whose words are about sockets
        raise WorkError("another process has ended, and reported why if it could; this one ends too") from error
