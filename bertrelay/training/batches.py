"""The batch and the learning rate of each step: pure functions of lengths, settings and the number of the step.

A batch is the items of one update, the same for any number of processes. A micro-batch is a part of it that fits in
memory.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from bertrelay.training.settings import TrainingSettings

Items = NDArray[np.int64]
Lengths = NDArray[np.integer] | Callable[[int], NDArray[np.integer]]
"""Tokens of each item, (items,); a function of the epoch if each epoch has its own items."""

POOL_BATCHES = 64
"""Items are shuffled, then sorted by length within pools of this many batches: little padding, and still random."""


class BatchSchedule:
    """The batch of every step. The plan of one epoch is cached; there is no position to save.

    groups: number of the group of each item, (items,), or a function of the epoch as `lengths`; the items of a group
        come in one batch.
    """

    def __init__(self, lengths: Lengths, settings: TrainingSettings, groups: Lengths | None = None) -> None:
        self._lengths, self._seed, self._groups = lengths, settings.seed, groups
        self._batch_tokens, self._batch_items = settings.batch_tokens, settings.batch_items
        self._planned: tuple[int, list[Items]] = (-1, [])
        steps = [len(self._plan(epoch)) for epoch in range(settings.epochs)]
        self._first_steps = np.cumsum([0, *steps])

    @property
    def total_steps(self) -> int:
        return int(self._first_steps[-1])

    def ends_epoch(self, steps_done: int) -> bool:
        return steps_done in self._first_steps[1:]

    def batch(self, step: int) -> tuple[int, Items]:
        """(epoch, items) of step `step`, counted from 0."""
        epoch = int(np.searchsorted(self._first_steps, step, side="right")) - 1
        return epoch, self._plan(epoch)[step - int(self._first_steps[epoch])]

    def _plan(self, epoch: int) -> list[Items]:
        if epoch != self._planned[0]:
            lengths = lengths_in(epoch, self._lengths)
            groups = None if self._groups is None else lengths_in(epoch, self._groups)
            plan = plan_epoch(lengths, self._seed, epoch, self._batch_tokens, self._batch_items, groups)
            self._planned = epoch, plan
        return self._planned[1]


def lengths_in(epoch: int, lengths: Lengths) -> NDArray[np.integer]:
    return lengths(epoch) if callable(lengths) else lengths


def plan_epoch(
    lengths: NDArray[np.integer],
    seed: int,
    epoch: int,
    batch_tokens: int | None = None,
    batch_items: int | None = None,
    groups: NDArray[np.integer] | None = None,
) -> list[Items]:
    """The batches of one epoch, in the order of the steps; every item is in exactly one.

    lengths: tokens of each item, (items,).
    batch_tokens, batch_items: size of a batch, exactly one of the two. A batch ends with the item that reaches it, so
        it exceeds the size by less than one item.
    groups: number of the group of each item, (items,); a group counts as one item of the summed size.
    """
    if groups is not None:
        members = np.argsort(groups, kind="stable")
        first = np.flatnonzero(np.diff(groups[members], prepend=-1))
        longest = np.maximum.reduceat(lengths[members], first)  # the length to which a batch is padded, (groups,)
        sums = np.add.reduceat(lengths[members].astype(np.int64), first)  # tokens, (groups,)
        sizes = sums if batch_tokens else np.diff(first, append=len(members))
        plan = _plan(longest, sizes, seed, epoch, batch_tokens or batch_items or 1)
        items = np.split(members, first[1:])  # of each group
        return [np.concatenate([items[group] for group in batch]) for batch in plan]
    sizes = lengths.astype(np.int64) if batch_tokens else np.ones(len(lengths), dtype=np.int64)
    return _plan(lengths, sizes, seed, epoch, batch_tokens or batch_items or 1)


def _plan(lengths: NDArray[np.integer], sizes: NDArray[np.int64], seed: int, epoch: int, capacity: int) -> list[Items]:
    generator = np.random.default_rng((seed, epoch))
    order = _length_grouped(lengths, sizes, capacity * POOL_BATCHES, generator)
    before = np.cumsum(sizes[order]) - sizes[order]  # running total before each item
    batch_of_item = before // capacity
    starts = np.flatnonzero(np.diff(batch_of_item, prepend=-1))
    batches = np.split(order, starts[1:])
    return [batches[index] for index in generator.permutation(len(batches))]


def _length_grouped(
    lengths: NDArray[np.integer], sizes: NDArray[np.int64], pool_capacity: int, generator: np.random.Generator
) -> Items:
    """A random order in which neighbours have similar lengths: pools of random items, each sorted by length.

    Every second pool is sorted in descending order, so that a batch across two pools has no jump in length.
    """
    shuffled = generator.permutation(len(lengths))
    pools = (np.cumsum(sizes[shuffled]) - 1) // pool_capacity
    keys = np.where(pools % 2 == 0, lengths[shuffled], -lengths[shuffled].astype(np.int64))
    return shuffled[np.lexsort((keys, pools))]


def rank_items(batch: Items, rank: int, processes: int) -> Items:
    """The items of a batch that one of several processes computes."""
    return batch[rank::processes]


def micro_batches(
    items: Items, lengths: NDArray[np.integer], padded_lengths: NDArray[np.integer], device_tokens: int
) -> Iterator[Items]:
    """Splits `items`, longest first, into micro-batches of at most `device_tokens` padded tokens, or of a single item.

    lengths: tokens of each item, (items,).
    padded_lengths: padded tokens that an item adds to a micro-batch in which it is the longest, (items,).
    """
    ordered = items[np.argsort(-lengths[items].astype(np.int64), kind="stable")]
    while len(ordered):
        longest = np.maximum.accumulate(padded_lengths[ordered].astype(np.int64))
        sizes = longest * np.arange(1, len(ordered) + 1)  # of the micro-batch that ends with each item
        rows = max(1, int(np.searchsorted(sizes, device_tokens, side="right")))
        yield ordered[:rows]
        ordered = ordered[rows:]


def learning_rate(step: int, total_steps: int, settings: TrainingSettings) -> float:
    """The learning rate of step `step`, counted from 0: a linear warm-up, then constant or down to 0."""
    warmup_steps = math.ceil(total_steps * settings.warmup)
    if step < warmup_steps:
        return settings.learning_rate * (step + 1) / warmup_steps
    progressed = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    if settings.schedule == "linear":
        return settings.learning_rate * (1 - progressed)
    if settings.schedule == "cosine":
        return settings.learning_rate * (1 + math.cos(math.pi * progressed)) / 2
    return settings.learning_rate
