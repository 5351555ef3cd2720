"""What each step of a training does, as a pure function of its number: from which batch it learns, and at what rate."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bertrelay.batches import Budget, Items, plan_epoch
from bertrelay.training_settings import TrainingSettings

Lengths = NDArray[np.integer] | Callable[[int], NDArray[np.integer]]
"""Tokens of each item, (items,); a function of the epoch where every epoch has items of its own."""


def lengths_in(epoch: int, lengths: Lengths) -> NDArray[np.integer]:
    return lengths(epoch) if callable(lengths) else lengths


def learning_rate(step: int, total_steps: int, settings: TrainingSettings) -> float:
    """The rate of step `step`, counted from 0: a linear rise over the warm-up's share, then the schedule down to 0."""
    warmup_steps = math.ceil(total_steps * settings.warmup)
    if step < warmup_steps:
        return settings.learning_rate * (step + 1) / warmup_steps
    progressed = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    if settings.schedule == "linear":
        return settings.learning_rate * (1 - progressed)
    if settings.schedule == "cosine":
        return settings.learning_rate * (1 + math.cos(math.pi * progressed)) / 2
    return settings.learning_rate


class Route:
    """The way through the data. It keeps the plan of one epoch in memory, as a cache and not as a position."""

    def __init__(self, lengths: Lengths, settings: TrainingSettings) -> None:
        self._lengths, self._seed = lengths, settings.seed
        self._budget = Budget(settings.batch_tokens, settings.batch_items)
        self._planned: tuple[int, list[Items]] = (-1, [])
        steps = [len(self._plan(epoch)) for epoch in range(settings.epochs)]
        self._first_steps = np.cumsum([0, *steps])

    @property
    def total_steps(self) -> int:
        return int(self._first_steps[-1])

    def ends_epoch(self, steps_done: int) -> bool:
        return steps_done in self._first_steps[1:]

    def batch(self, step: int) -> tuple[int, Items]:
        """(epoch, items) that step `step` learns from."""
        epoch = int(np.searchsorted(self._first_steps, step, side="right")) - 1
        return epoch, self._plan(epoch)[step - int(self._first_steps[epoch])]

    def _plan(self, epoch: int) -> list[Items]:
        if epoch != self._planned[0]:
            self._planned = epoch, plan_epoch(lengths_in(epoch, self._lengths), self._seed, epoch, self._budget)
        return self._planned[1]
