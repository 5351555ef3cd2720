"""Computes shards in this process and in those that launchers started beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bertrelay.compute.work import Content, Item, Work
from bertrelay.data.shards import ShardStore
from bertrelay.device import ComputePrecision, resolve_precision
from bertrelay.memory import release_memory
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, broadcast_from_main
from bertrelay.progress import Bar

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LocalExecutor:
    """Rank r of n processes computes every n-th of the missing shards, from the r-th on."""

    process_group: ProcessGroup = SINGLE_PROCESS
    sends_work: bool = False

    def precision(self, requested: str | None, device: "torch.device") -> ComputePrecision:
        if isinstance(requested, ComputePrecision):
            return requested
        return broadcast_from_main(resolve_precision(requested, device), self.process_group)

    def compute(self, shards: ShardStore[Content], missing: Sequence[int], work: Work[Item, Content], bar: Bar) -> None:
        """Writes this rank's part of the `missing` shards; the bar counts those of other ranks as well."""
        group = self.process_group
        local = missing[group.rank :: group.size]
        remote = set(missing).difference(local)
        if not local:
            return
        contents = work.start()((work.read(shards.spans[number]) for number in local), bar)
        for number, content in zip(local, contents, strict=True):
            shards.write(number, content)
            release_memory()
            if remote:
                written = remote.difference(shards.missing())  # by other ranks, since the last shard
                bar.advance(sum(shards.spans[number].size for number in written))
                remote -= written
