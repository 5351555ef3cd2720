"""Gradients of one batch, the same for any number of micro-batches and processes.

A loss is a sum over items divided by a count. The count is that of the whole batch, added up over all micro-batches and
processes before the first backward pass; so a gradient does not depend on the parts in which it is computed.

Losses that are sums over items are computed part by part (`Gradients._add_sums`), losses that compare the items of a
batch with each other from the vectors of all of them (`Gradients._add_in_batch`).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn

from bertrelay.device import ComputePrecision, autocast, to_device
from bertrelay.training.batches import Items
from bertrelay.training.task import Batch, InBatchTask, Task

Sums = dict[str, Tensor]
"""Summed losses by name."""


class RankBatch(NamedTuple):
    """The part of a batch that one process computes.

    step: number of the batch, counted from 0. items: those of the whole batch, in all processes.
    micro_items, micro_batches: the items of each micro-batch of this process, and their tensors.
    weight: 1.0; or 0.0 in a batch of fewer items than processes, where this process computes an item, as every process
        must take part in the exchange of gradients, and adds nothing.
    is_single: True when every process has one micro-batch.
    """

    step: int
    epoch: int
    items: Items
    micro_items: list[Items]
    micro_batches: list[Batch]
    weight: float
    is_single: bool

    @property
    def counts(self) -> dict[str, int]:
        """Denominators of the losses over the micro-batches of this process."""
        counted = self.micro_batches if self.weight else []
        return {name: sum(batch.counts[name] for batch in counted) for name in self.micro_batches[0].counts}

    def rows(self) -> list[NDArray[np.intp]]:
        """The rows of `items` at which the items of each micro-batch stand."""
        order = np.argsort(self.items)
        return [order[np.searchsorted(self.items[order], items)] for items in self.micro_items]


@dataclass(frozen=True)
class Gradients:
    """Adds the gradient of a batch to those of the weights.

    model: the task's, as Accelerate prepared it: with several processes DDP averages the gradients over them during the
        backward pass of the last micro-batch.
    scaler: multiplies losses in fp16, in which small gradients would be zero.
    seed: of dropout, together with step, rank and micro-batch.
    """

    task: Task
    model: nn.Module
    accelerator: Accelerator
    precision: ComputePrecision
    scaler: torch.amp.GradScaler
    seed: int

    def add(self, batch: RankBatch, counts: dict[str, int]) -> list[Sums]:
        """Adds the gradient of Σ sum / count over all losses.

        counts: denominators by loss name, over all processes.
        Returns the summed losses of each micro-batch of this process, on the device.
        """
        if isinstance(self.task, InBatchTask):
            return self._add_in_batch(self.task, batch, counts)
        return self._add_sums(batch, counts)

    def build_buckets(self, batch: RankBatch) -> None:
        """Makes DDP build its buckets, by a backward pass over `batch` that adds zeros.

        DDP builds them once, after its first backward pass, and they decide in which order three or more processes add
        up a gradient. Without this the first step after a resume would differ in its last bits from the same step of
        an uninterrupted training.
        """
        if isinstance(self.task, InBatchTask):
            vectors = self._vectors(self.task, batch.micro_batches[0])
            vectors.backward(torch.zeros_like(vectors))
        else:
            self._add_sums(batch._replace(weight=0.0), batch.micro_batches[0].counts)

    def _add_sums(self, batch: RankBatch, counts: dict[str, int]) -> list[Sums]:
        losses = []
        for index, micro_batch in enumerate(batch.micro_batches):
            with self._micro_batch(batch, index):
                with autocast(self.accelerator.device, self.precision):
                    sums = self.task.loss(self.model, micro_batch.to(self.accelerator.device))
                total = self._total(sums, batch, counts)
                self.scaler.scale(total).backward(starting_gradient(total))
            losses.append({name: sums[name].detach() for name in counts})
        return losses

    def _add_in_batch(self, task: InBatchTask, batch: RankBatch, counts: dict[str, int]) -> list[Sums]:
        """Adds the gradient of losses that compare the items of all micro-batches and processes.

        Gradient caching (Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup"):

        1. The vectors of all items, micro-batch by micro-batch without a graph, so that the memory is that of one.
        2. The losses of the whole batch, and their gradient by these vectors.
        3. Each micro-batch once more, now with a graph, whose backward pass starts from its rows of that gradient.

        Dropout is the same in 1 and 3, as a micro-batch has one seed. Where every process has a single micro-batch,
        the graph of 1 is kept and 3 computes no vector again.

        Example: a model v = w·x with w = 2, items x = 1, 2, 3, the loss v₁v₂ + v₂v₃ and two processes.

            step                                      process 0 (items 1 and 3)    process 1 (item 2)
            1. vectors, exchanged                     v = [2, 4, 6]                v = [2, 4, 6]
            2. loss 32, gradient by the vectors       [v₂, v₁+v₃, v₂] = [4, 8, 4]  [4, 8, 4]
            3. gradient by w from the rows it has     4·1 + 4·3 = 16               8·2 = 16

        DDP averages the two, so each loss is multiplied by the number of processes: the gradient is 16 + 16 = 32, as
        that of 8w² at w = 2 computed at once.
        """
        rows = [to_device(torch.from_numpy(rows), self.accelerator.device) for rows in batch.rows()]
        outputs, vectors = self._all_vectors(task, batch, rows)
        sums, gradient = self._losses_and_gradient(task, batch, vectors, counts)
        self._backward_from(gradient, task, batch, rows, outputs)
        parts = min(self.accelerator.num_processes, len(batch.items)) * len(outputs)
        return [{name: sums[name].detach() / parts for name in counts}] * len(outputs)  # the log adds up all parts

    def _all_vectors(self, task: InBatchTask, batch: RankBatch, rows: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        """Step 1: the vectors of each micro-batch of this process, and those of the whole batch, (items, …).

        The former have a graph only if the batch is single, as then no other micro-batch needs the memory.
        """
        outputs = []
        for index, micro_batch in enumerate(batch.micro_batches):
            with self._micro_batch(batch, index), torch.set_grad_enabled(batch.is_single):
                outputs.append(self._vectors(task, micro_batch))
        vectors = outputs[0].new_zeros(len(batch.items), *outputs[0].shape[1:])
        for micro_rows, output in zip(rows, outputs, strict=True):
            vectors[micro_rows] = batch.weight * output.detach()
        if self.accelerator.num_processes > 1:
            vectors = self.accelerator.reduce(vectors, "sum")  # a row is zero in all processes but the one that has it
        return outputs, vectors.requires_grad_()

    def _losses_and_gradient(
        self, task: InBatchTask, batch: RankBatch, vectors: Tensor, counts: dict[str, int]
    ) -> tuple[Mapping[str, Tensor], Tensor]:
        """Step 2: the summed losses of the whole batch, and the gradient by its vectors, (items, …)."""
        sums = task.batch_losses(vectors, batch.items, batch.epoch)
        total = self._total(sums, batch, counts)
        (gradient,) = torch.autograd.grad(self.scaler.scale(total), vectors, starting_gradient(total))
        return sums, gradient

    def _backward_from(
        self, gradient: Tensor, task: InBatchTask, batch: RankBatch, rows: list[Tensor], outputs: list[Tensor]
    ) -> None:
        """Step 3: adds to the gradients of the weights, from that of the vectors."""
        for index, (micro_rows, micro_batch) in enumerate(zip(rows, batch.micro_batches, strict=True)):
            with self._micro_batch(batch, index):
                output = outputs[0] if batch.is_single else self._vectors(task, micro_batch)
                output.backward(gradient[micro_rows])

    def _vectors(self, task: InBatchTask, micro_batch: Batch) -> Tensor:
        device = self.accelerator.device
        with autocast(device, self.precision):
            return task.vectors(self.model, micro_batch.to(device)).float()

    @contextmanager
    def _micro_batch(self, batch: RankBatch, index: int) -> Iterator[None]:
        """Seeds the dropout of a micro-batch; gradients are exchanged with that of the last one only."""
        seed = np.random.SeedSequence((self.seed, batch.step, self.accelerator.process_index, index))
        torch.manual_seed(int(seed.generate_state(1, np.uint64)[0]))  # hashed, so neighbouring steps share nothing
        is_last = index == len(batch.micro_batches) - 1
        with nullcontext() if is_last else self.accelerator.no_sync(self.model):
            yield

    def _total(self, sums: Mapping[str, Tensor], batch: RankBatch, counts: dict[str, int]) -> Tensor:
        """Σ sum / count, multiplied by the number of processes, over which DDP averages gradients."""
        factor = batch.weight * self.accelerator.num_processes
        return torch.stack([sums[name].float() * (factor / max(1, counts[name])) for name in counts]).sum()


def starting_gradient(total: Tensor) -> Tensor:
    """The gradient that the backward pass of `total` starts from: 1, or nan where `total` is not finite.

    0.7 → 1, inf → nan, nan → nan.

    A loss of one process may be infinite while its gradient is finite (a constant that overflows). From nan every
    gradient of that process becomes nan, the exchange of gradients carries it to all others, and the norm is nan in
    each of them. So all make no update and stop at the same step, without another exchange and without waiting for
    the device.
    """
    return torch.where(total.isfinite(), 1.0, torch.nan)
