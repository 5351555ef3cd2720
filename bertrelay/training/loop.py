"""The training loop: one for the whole project, on Accelerate, exact in its gradients and in its resuming.

Three properties hold it together:

- The step number is the position in the data. Batches and learning rate are pure functions of it, and dropout is
  seeded from (seed, step, rank, micro-batch); so a checkpoint holds no generator and no loader.
- A loss is a sum, and its denominator is counted over all micro-batches and processes before the first backward;
  so a gradient does not depend on how many of them it was computed in.
- Everything a decision rests on is the same in every process, so they stop, look and save at the same step.
"""

import math
import signal
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor, nn

from bertrelay import hardware
from bertrelay.distributed import check_shared
from bertrelay.errors import RequestError, Stopped, WorkError
from bertrelay.progress import Bar, log, progress
from bertrelay.signals import STOPPING, deferred_stop_signals
from bertrelay.stage import Metrics, ProcessGroup
from bertrelay.training.batches import Items, Lengths, Route, learning_rate, lengths_in, micro_batches, share_of
from bertrelay.training.checkpoint import (
    State,
    Terms,
    load_checkpoint,
    put_back,
    save_checkpoint,
    take_down,
    unique_tensors,
)
from bertrelay.training.log import TrainingLog
from bertrelay.training.settings import TrainingSettings


@dataclass(frozen=True)
class Batch:
    """A micro-batch: tensors for the model, and what each loss is divided by.

    inputs: `attention_mask` and whatever else the task's loss needs.
    counts: the denominators by loss name, as whole numbers, so that adding them up is exact.
    """

    inputs: dict[str, Tensor]
    counts: dict[str, int]

    def to(self, device: torch.device) -> "Batch":
        return Batch({name: tensor.to(device, non_blocking=True) for name, tensor in self.inputs.items()}, self.counts)


class Task(Protocol):
    """What is learnt. The loop knows nothing else of it.

    model: everything that has a gradient, heads among it.
    lengths: tokens of each training item, (items,); a function of the epoch where every epoch has items of its own.
    padded_lengths: padded tokens that an item brings to a micro-batch in which it is the longest, (items,); other ones
        than `lengths` where an item is several texts that are padded together.
    criterion: the dev figure, higher is better, that chooses the best weights; None without dev data.
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
        """The micro-batch of `items`; whatever is random in it is a function of (seed, epoch, item)."""
        ...

    def loss(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """Summed losses under the names of `batch.counts`; calls `model` once."""
        ...

    def evaluate(self) -> Metrics:
        """Dev figures of the model as it stands; called in the main process only."""
        ...


@dataclass(frozen=True)
class Share:
    """What one process learns from in a step.

    pieces, batches: the items of each micro-batch, and the micro-batch itself.
    weight: 0 where the step has fewer items than there are processes: go through the motions, add nothing.
    """

    epoch: int
    pieces: list[Items]
    batches: list[Batch]
    weight: float

    @property
    def masks(self) -> list[Tensor]:
        """The attention masks of what counts."""
        return [batch.inputs["attention_mask"] for batch in self.batches] if self.weight else []


def build_optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW without weight decay on biases and norms (vectors); parameters without a gradient are left out.

    Those that the model names in `rate_factors` learn at so many times the learning rate.
    """
    factors: Mapping[str, float] = getattr(model, "rate_factors", {})
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups.setdefault((parameter.ndim >= 2, factors.get(name, 1.0)), []).append(parameter)
    told = [
        {"params": groups[is_matrix, factor], "weight_decay": settings.weight_decay * is_matrix, "rate_factor": factor}
        for is_matrix, factor in sorted(groups, reverse=True)
    ]
    return torch.optim.AdamW(told, lr=settings.learning_rate, fused=True)


def train(task: Task, settings: TrainingSettings, folder: Path, work: Path | None = None) -> Metrics:
    """Trains `task.model` in place and leaves the best weights in it, or the last ones where there is no dev data.

    folder: takes `metrics.jsonl`.
    work: takes the checkpoints, `folder` does where there is none; a training found there goes on where it was.
    Returns the dev figures of the weights that are left, with `best_step`, `train_steps` and `train_seconds`.
    Raises Stopped on SIGTERM, Ctrl-C and SIGHUP, after saving; WorkError on a non-finite gradient.
    """
    if len(lengths_in(0, task.lengths)) == 0:
        raise RequestError("expected at least one training item, found none")
    training = Training(task, settings, folder, work or folder)
    training.resume()
    training.run()
    return training.finish()


class Training:
    """The parts of one training, together for as long as it runs."""

    def __init__(self, task: Task, settings: TrainingSettings, folder: Path, work: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        work.mkdir(parents=True, exist_ok=True)
        self.task, self.settings, self.work = task, settings, work
        if torch.are_deterministic_algorithms_enabled() != settings.deterministic:  # setting it loads the compiler
            torch.use_deterministic_algorithms(settings.deterministic)
        self.accelerator = hardware.accelerator(settings.tracker, folder)
        self.device = self.accelerator.device
        self.precision = hardware.resolve_precision(settings.precision, self.device)
        self.rank, self.processes = self.accelerator.process_index, self.accelerator.num_processes
        check_shared(work, ProcessGroup(self.rank, self.processes))  # all of them read its checkpoints
        task.model.to(self.device).train()
        self.optimizer = build_optimizer(task.model, settings)
        self.model = self.accelerator.prepare_model(task.model)
        self.route = Route(task.lengths, settings)
        self.log = TrainingLog(folder, self.accelerator, tracked=settings.tracker is not None)
        self.terms = Terms(self.precision, self.route.total_steps)
        self.state = State()

    def run(self) -> None:
        """Steps until the data, the patience or the user's wish is at its end."""
        self._settle_gradient_buckets()
        total, began = self.route.total_steps, time.monotonic() - self.state.seconds
        with deferred_stop_signals() as stop, progress("training", total, "steps", done=self.state.step) as bar:
            while self.state.step < total and not self._is_out_of_patience():
                self._stop_if_asked(self._learn(bar, stop.signal_number))
                self.state.seconds = time.monotonic() - began
                if self.task.criterion is not None and self._is_time_to_look():
                    self._look(self.task.criterion)
                if self.state.step % self.settings.checkpoint_every == 0:
                    self._save()
            _, asked = self._agree([], [], stop.signal_number)  # during the last step
            self._stop_if_asked(asked)

    def _settle_gradient_buckets(self) -> None:
        """Makes DDP lay out its buckets now; it does so once, after the first backward it sees.

        The layout decides in which order three and more processes add up a gradient, so the step a training goes on
        at would differ in its last bits from the same step of one never stopped.
        """
        if self.processes > 1:
            first = np.zeros(1, dtype=np.int64)
            batch = self.task.collate(first, 0)
            self._backward(Share(0, [first], [batch], weight=0.0), batch.counts)
            self.optimizer.zero_grad(set_to_none=True)

    def _learn(self, bar: Bar, signal_number: int) -> int:
        """Learns from the next batch, or returns the signal that some process was asked to stop by."""
        share = self._share()
        names = list(share.batches[0].counts)
        counts, asked = self._agree(share.batches if share.weight else [], names, signal_number)
        if asked:
            return asked
        sums = self._backward(share, counts)
        grad_norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm))
        if not math.isfinite(grad_norm):
            self._refuse_non_finite(share.pieces, sums)
        self._update()
        self._note(bar, share, sums, counts, grad_norm)
        return 0

    def _share(self) -> Share:
        """What this process learns from in the step to come."""
        epoch, items = self.route.batch(self.state.step)
        mine = share_of(items, self.rank, self.processes)
        learnt = mine if len(mine) else items[:1]
        lengths, padded_lengths = (lengths_in(epoch, each) for each in (self.task.lengths, self.task.padded_lengths))
        pieces = list(micro_batches(learnt, lengths, padded_lengths, self.settings.device_tokens))
        batches = [self.task.collate(piece, epoch) for piece in pieces]
        return Share(epoch, pieces, batches, weight=1.0 if len(mine) else 0.0)

    def _agree(self, batches: list[Batch], names: list[str], signal_number: int) -> tuple[dict[str, int], int]:
        """Denominators over all micro-batches and processes, and the signal any process was asked to stop by."""
        own = [sum(batch.counts[name] for batch in batches) for name in names]
        if self.processes == 1:
            return dict(zip(names, own, strict=True)), signal_number
        votes = [int(signal_number == number) for number in STOPPING]
        totals = self.accelerator.reduce(torch.tensor([*own, *votes], device=self.device), "sum").tolist()
        asked = [number for number, count in zip(STOPPING, totals[len(names) :], strict=True) if count]
        return dict(zip(names, totals, strict=False)), max(asked, default=0)

    def _backward(self, share: Share, counts: dict[str, int]) -> list[dict[str, Tensor]]:
        """Accumulates the gradient of Σ sum/count over the micro-batches; the last one joins the processes'."""
        all_sums = []
        for index, batch in enumerate(share.batches):
            is_last = index == len(share.batches) - 1
            torch.manual_seed(_mixed(self.settings.seed, self.state.step, self.rank, index))
            with nullcontext() if is_last else self.accelerator.no_sync(self.model):
                with hardware.autocast(self.device, self.precision):
                    sums = self.task.loss(self.model, batch.to(self.device))
                factor = share.weight * self.processes  # because gradients are averaged over processes
                scaled = [sums[name].float() * (factor / max(1, counts[name])) for name in counts]
                total = torch.stack(scaled).sum()
                # A loss may be non-finite with a finite gradient; made nan, all processes see it in the norm.
                total.backward(torch.where(total.isfinite(), 1.0, torch.nan))  # type: ignore[no-untyped-call]
            all_sums.append({name: sums[name].detach() for name in counts})
        return all_sums

    def _refuse_non_finite(self, pieces: list[Items], sums: list[dict[str, Tensor]]) -> None:
        guilty = [
            items.tolist()
            for items, named in zip(pieces, sums, strict=True)
            if not all(torch.isfinite(value) for value in named.values())
        ]
        everywhere = sorted({item for found in gather_object(guilty) for item in found})
        where = f"in the loss of training items {everywhere}" if everywhere else "in the gradient, losses being finite"
        raise WorkError(
            f"step {self.state.step + 1}: expected finite figures, found a non-finite one {where} (items are counted "
            "from 0, as they stand after filtering). Look at those records, or lower learning_rate."
        )

    def _update(self) -> None:
        rate = learning_rate(self.state.step, self.route.total_steps, self.settings)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["rate_factor"]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.state.step += 1

    def _note(
        self, bar: Bar, share: Share, sums: list[dict[str, Tensor]], counts: dict[str, int], grad_norm: float
    ) -> None:
        """Tells bar and log about the step just done."""
        own = {name: share.weight * sum(float(named[name]) for named in sums) for name in counts}
        tokens, padded = sum(int(mask.sum()) for mask in share.masks), sum(mask.numel() for mask in share.masks)
        self.log.add(own, counts, tokens, padded)
        bar.advance(1, note=f"loss {sum(self.processes * own[name] / max(1, counts[name]) for name in counts):.4f}")
        step, total = self.state.step, self.route.total_steps
        if step % self.settings.log_every == 0 or step == total:
            rate = learning_rate(step - 1, total, self.settings)
            self.log.write_steps(step, share.epoch, rate, grad_norm, self.state.seconds)

    def _is_time_to_look(self) -> bool:
        step, every = self.state.step, self.settings.evaluate_every
        due = self.route.ends_epoch(step) if every is None else step % every == 0
        return due or step == self.route.total_steps

    def _look(self, criterion: str) -> None:
        """Scores the dev data and keeps the weights when they are the best so far."""
        figures = self._evaluated_by_main()
        self.log.write({"step": self.state.step, **figures})
        score, best = figures[criterion], self.state.best_figures.get(criterion)
        if score is not None and math.isfinite(score) and (best is None or score > best):
            self.state.best_step, self.state.best_figures, self.state.looks_without_better = self.state.step, figures, 0
            self.state.best_tensors = {name: tensor.clone() for name, tensor in unique_tensors(self.task.model).items()}
        else:
            self.state.looks_without_better += 1

    def _evaluated_by_main(self) -> Metrics:
        figures: list[Metrics] = [{}]
        if self.accelerator.is_main_process:
            self.task.model.eval()
            with torch.inference_mode():
                figures = [self.task.evaluate()]
            self.task.model.train()
        if self.processes > 1:
            broadcast_object_list(figures)
        return figures[0]

    def _is_out_of_patience(self) -> bool:
        return self.settings.patience is not None and self.state.looks_without_better >= self.settings.patience

    def _stop_if_asked(self, signal_number: int) -> None:
        if signal_number:
            self._save()
            raise Stopped(
                f"stopped by {signal.Signals(signal_number).name} after step {self.state.step:,} of "
                f"{self.route.total_steps:,}; everything is saved. The same command goes on from here.",
                signal_number,
            )

    def _save(self) -> None:
        """A checkpoint of this step, written by the main process while the others wait."""
        if self.accelerator.is_main_process:
            save_checkpoint(self.work, take_down(self.state, self.terms, self.task.model, self.optimizer))
        self.accelerator.wait_for_everyone()

    def resume(self) -> None:
        """Goes on from the newest whole checkpoint in `work`, if there is one."""
        with self.accelerator.main_process_first():  # it removes a damaged one before the others look
            found = load_checkpoint(self.work)
        self.log.cut(after_step=found.step if found else 0)
        if found is not None:
            self.state = put_back(found, self.terms, self.task.model, self.optimizer, self.work)
            log(f"going on after step {self.state.step:,} of {self.route.total_steps:,}")

    def finish(self) -> Metrics:
        """Puts the best weights into the model and tells what was reached."""
        if self.state.best_tensors is not None:
            self.task.model.load_state_dict(self.state.best_tensors, strict=False)
        self.task.model.eval()
        if self.settings.tracker:
            self.accelerator.end_training()
        best = {} if self.state.best_step is None else {"best_step": self.state.best_step}
        done = {"train_steps": self.state.step, "train_seconds": self.state.seconds}
        return {**self.state.best_figures, **best, **done}


def _mixed(*numbers: int) -> int:
    """One 64-bit seed of several numbers, well mixed, so that neighbouring steps share nothing."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
