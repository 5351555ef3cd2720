"""The contract between a task and the training loop: which batches there are, and which losses they have."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup
from bertrelay.stage import Metrics
from bertrelay.training.batches import Items, Lengths


@dataclass(frozen=True)
class Batch:
    """A micro-batch: tensors for the model, and the denominators of the losses.

    inputs: `attention_mask` and whatever else the task's loss needs.
    counts: denominators by loss name; whole numbers, so that their sums are exact.
    """

    inputs: dict[str, Tensor]
    counts: dict[str, int]

    def pinned(self, device: torch.device) -> "Batch":
        """Pins the tensors in memory where `device` is a GPU, which then copies them asynchronously."""
        if device.type != "cuda":
            return self
        return Batch({name: tensor.pin_memory() for name, tensor in self.inputs.items()}, self.counts)

    def to(self, device: torch.device) -> "Batch":
        return Batch({name: tensor.to(device, non_blocking=True) for name, tensor in self.inputs.items()}, self.counts)


class Task(Protocol):
    """A model, its training items, their losses and its evaluation; the loop knows nothing else of a training.

    model: every module with parameters to train, heads included.
    lengths: tokens of each training item, (items,); a function of the epoch if each epoch has its own items.
    padded_lengths: padded tokens that an item adds to a micro-batch in which it is the longest, (items,); differs from
        `lengths` where an item is several texts that are padded together.
    criterion: the validation metric that selects the best weights, higher is better; None without validation data.
    """

    @property
    def model(self) -> nn.Module: ...

    @property
    def lengths(self) -> Lengths: ...

    @property
    def padded_lengths(self) -> Lengths: ...

    @property
    def criterion(self) -> str | None: ...

    def collate(self, items: Items, epoch: int) -> Batch:
        """The micro-batch of `items`; anything random in it is a function of (seed, epoch, item).

        Called in another thread while the model computes.
        """
        ...

    def loss(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """Summed losses under the names of `batch.counts`; calls `model` once."""
        ...

    def evaluate(self, process_group: ProcessGroup = SINGLE_PROCESS) -> Metrics:
        """Validation metrics of the current weights; every process of the group calls it and computes its part."""
        ...


@runtime_checkable
class GroupedTask(Task, Protocol):
    """A task whose items come in groups that must not be split over batches.

    groups: number of the group of each item, (items,); a function of the epoch where `lengths` is one.
    """

    @property
    def groups(self) -> Lengths: ...


@runtime_checkable
class RatedTask(Task, Protocol):
    """A task in which some parameters have a learning rate of their own."""

    def rate_factors(self) -> Mapping[str, float]:
        """Factors of the learning rate by parameter name of `model`; 1.0 for names that are absent."""
        ...


@runtime_checkable
class InBatchTask(Task, Protocol):
    """A task whose losses compare the items of a batch with each other, such as those with in-batch negatives.

    Such a loss is no sum over micro-batches: the loop calls `vectors` for each micro-batch, `batch_losses` for the
    batch, and never `loss` (see `bertrelay.training.gradients`).
    """

    def vectors(self, model: nn.Module, batch: Batch) -> Tensor:
        """The vectors of the items of a micro-batch, (items, …); calls `model` once."""
        ...

    def batch_losses(self, vectors: Tensor, items: Items, epoch: int) -> Mapping[str, Tensor]:
        """Summed losses of `items`, the whole batch, from their vectors, (items, …) in float32."""
        ...
