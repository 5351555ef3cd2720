"""Contracts between a task, which has work to be done shard by shard, and an executor, which does it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from bertrelay.data.shards import ShardStore, Span
from bertrelay.device import ComputePrecision
from bertrelay.process_group import ProcessGroup
from bertrelay.progress import Bar

if TYPE_CHECKING:
    import torch

Item = TypeVar("Item")
Content = TypeVar("Content", covariant=True)
Compute = Callable[[Iterable[Item], Bar], Iterator[Content]]
"""(items, bar) -> one shard's content per item, in order. Advances the bar by the sizes of their spans."""


@dataclass(frozen=True)
class Work(Generic[Item, Content]):
    """The work of a task.

    read: span -> the item that its shard is computed from. Called in the calling process, mostly for rising spans.
    start: loads the model and returns `compute`. Called once in each process or worker that computes, and only where
        a shard is missing. It is sent to workers, so it holds nothing but picklable settings.
    description, unit: of the progress, such as `tagging` and `words`.

    For example, the work of tagging, where start_tagger(folder) loads the model and returns `compute`:

        Work(reader.read, partial(start_tagger, folder), "tagging", "words")
    """

    read: Callable[[Span], Item]
    start: Callable[[], Compute[Item, Content]]
    description: str
    unit: str


def whole_span(span: Span) -> Span:
    """Reads nothing: for work whose `compute` reads the items of a span itself."""
    return span


class Executor(Protocol):
    """Computes missing shards: in this process and those beside it, or by the workers of a cluster.

    sends_work: True if `Work.start` is sent to other processes, where devices may be others.
    """

    @property
    def process_group(self) -> ProcessGroup: ...

    @property
    def sends_work(self) -> bool: ...

    def precision(self, requested: str | None, device: "torch.device") -> ComputePrecision:
        """Resolves a precision for where the work is done; `device` is that of this process. A resolved one stays."""

    def compute(self, shards: ShardStore[Content], missing: Sequence[int], work: Work[Item, Content], bar: Bar) -> None:
        """Writes the `missing` shards, or this process's part of them."""
