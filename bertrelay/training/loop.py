"""The training loop, the only one, on Accelerate: exact gradients, exact resume.

Three rules make it so:

- The step number is the position in the data. Batches and learning rate are pure functions of it, and dropout is
  seeded from (seed, step, rank, micro-batch); so a checkpoint holds no generator and no loader.
- A loss is a sum, and its denominator is counted over all micro-batches and processes before the first backward pass;
  so a gradient does not depend on the number of parts in which it is computed.
- Everything that a decision depends on is the same in every process; so they stop, evaluate and save at the same step.

Nothing in a step waits for the device: losses and norms stay there until a line of the log is due, and the optimizer
itself skips an update that is not finite.
"""

import math
import signal
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor, nn

from bertrelay.device import ComputePrecision, matmul_precision
from bertrelay.errors import RequestError, Stopped, WorkError
from bertrelay.inference.batches import prefetch
from bertrelay.inference.kernels import is_asynchronous
from bertrelay.process_group import (
    ProcessGroup,
    broadcast_from_main,
    check_shared,
    host_group,
    main_first,
    wait_for_all,
)
from bertrelay.progress import log, progress, spinner
from bertrelay.signals import STOPPING, StopRequest, defer_stop_signals
from bertrelay.stage import Metrics
from bertrelay.training.batches import (
    BatchSchedule,
    Items,
    learning_rate,
    lengths_in,
    micro_batches,
    rank_items,
)
from bertrelay.training.checkpoint import CheckpointWriter, State, load_checkpoint, restore, unique_tensors
from bertrelay.training.cuda_graphs import can_replay, replay_networks
from bertrelay.training.gradients import Gradients, RankBatch, Sums
from bertrelay.training.log import TrainingLog, accelerator, tracking
from bertrelay.training.settings import TrainingSettings
from bertrelay.training.task import GroupedTask, RatedTask, Task


def train(task: Task, settings: TrainingSettings, folder: Path, work: Path, precision: ComputePrecision) -> Metrics:
    """Trains `task.model` in place and leaves the best weights in it, or the last ones without validation data.

    folder: of `metrics.jsonl`.
    work: of the checkpoints; a training that left checkpoints there is resumed.
    precision: of the stage that trains, which has resolved that of the settings.
    Returns the validation metrics of these weights, with `best_step`, `train_steps` and `train_seconds`.
    Raises Stopped on SIGTERM, Ctrl-C and SIGHUP, after saving; WorkError on a loss or gradient that is not finite.
    """
    if len(lengths_in(0, task.lengths)) == 0:
        raise RequestError("expected at least one training item, found none")
    with _deterministic_algorithms(settings.deterministic), tracking(settings.tracker, folder):
        training = Training(task, settings, folder, work, precision)
        training.resume()
        training.run()
        return training.finish()


class StepDone(NamedTuple):
    """A step whose losses have not been read from the device yet.

    step: steps done after it. micro_items: the items of each micro-batch of this process; losses: their sums.
    counts: denominators over all processes. norm: of the gradient.
    tokens, padded: of the micro-batches of this process, without and with padding.
    """

    step: int
    epoch: int
    weight: float
    micro_items: list[Items]
    losses: list[Sums]
    counts: dict[str, int]
    norm: Tensor
    tokens: int
    padded: int


class Training:
    """A training: what stays the same (task, settings, processes), what is trained, and how far it has come (`state`).

    unread: the steps since the last line of the log, whose losses are on the device.
    norm: that of the last gradient whose losses were read, if it was finite.
    skips_updates: on the device, 1 from the first gradient on that is not finite.
    saved: steps done, and steps done at the last evaluation, in the last checkpoint.
    """

    def __init__(
        self, task: Task, settings: TrainingSettings, folder: Path, work: Path, precision: ComputePrecision
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        work.mkdir(parents=True, exist_ok=True)
        self.task, self.settings, self.work = task, settings, work
        self.accelerator = accelerator(settings.tracker, folder)
        self.device = self.accelerator.device
        self.processes = ProcessGroup(self.accelerator.process_index, self.accelerator.num_processes)
        check_shared(work, self.processes)  # all of them read its checkpoints
        task.model.to(self.device).train()
        self.checkpointed = enable_gradient_checkpointing(task.model) if settings.gradient_checkpointing else []
        self.is_replayed = can_replay(self.device, self.processes.size)
        self.host_group = host_group(self.device) if self.processes.size > 1 else None
        self.optimizer = build_optimizer(task, settings)
        model = self.accelerator.prepare_model(task.model)
        self.weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == ComputePrecision.FP16)
        self.gradients = Gradients(task, model, self.accelerator, precision, self.scaler, settings.seed)
        self.skips_updates = torch.zeros((), device=self.device)
        # With this flag set, fused AdamW leaves weights and moments as they are, in this update and in all later ones.
        # In fp16 the scaler looks at each gradient by itself and skips one update at a time.
        if not self.scaler.is_enabled():
            self.optimizer.found_inf = self.skips_updates  # type: ignore[attr-defined]
        self.schedule = BatchSchedule(task.lengths, settings, task.groups if isinstance(task, GroupedTask) else None)
        self.state = State(precision=precision, total_steps=self.schedule.total_steps)
        self.log = TrainingLog(folder, self.accelerator, tracked=settings.tracker is not None)
        self.unread: list[StepDone] = []
        self.norm: float | None = None
        self.writer = CheckpointWriter(work, is_asynchronous(self.device))
        self.saved: tuple[int, int | None] | None = None

    def run(self) -> None:
        """Trains until the last step, the end of patience, or a signal."""
        self._build_gradient_buckets()
        settings, state, total = self.settings, self.state, self.schedule.total_steps
        began = time.monotonic() - state.seconds
        patience = math.inf if settings.patience is None else settings.patience
        captures = settings.cuda_graphs and not self.checkpointed
        with (
            matmul_precision(self.gradients.precision),
            replay_networks(self.task.model, capture=captures) if self.is_replayed else nullcontext(),
            defer_stop_signals() as stop,
            progress("training", total, "steps", done=state.step) as bar,
            closing(self.rank_batches()) as batches,
            self.writer,
        ):
            self._evaluate_if_due(stop)  # a signal may have ended the evaluation of the step to resume from
            while state.step < total and state.evaluations_since_best < patience:
                received = self.step(batches, stop.signal_number)
                self._stop_on_signal(received)
                bar.advance(1)
                state.seconds = time.monotonic() - began
                if state.step % settings.log_every == 0 or state.step == total:
                    bar.advance(0, note=self._write_log())
                self._evaluate_if_due(stop)
                if state.step % settings.checkpoint_every == 0:
                    self._save()
            self._save()  # so that no step is trained twice, whatever stops the work after the training
            self.writer.wait()
            self._stop_on_signal(self._signal_of_any(stop))

    def step(self, batches: Iterator[RankBatch], signal_number: int = 0) -> int:
        """Trains on the next batch; or returns the stop signal that any process has received, else 0.

        signal_number: the one that this process has received, or 0.
        """
        # Collect: the batch, which another thread has prepared, and the denominators of its losses in all processes.
        batch = next(batches)
        counts, signal_number = self._sum_over_processes(batch.counts, signal_number)
        if signal_number:
            return signal_number

        # Forward and backward pass of each micro-batch. A loss that is not finite makes the gradient nan.
        losses = self.gradients.add(batch, counts)

        # Clip. A norm that is not finite stays on the device, where it makes the optimizer skip the update.
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.weights, self.settings.max_grad_norm)
        torch.maximum(self.skips_updates, (~norm.isfinite()).float(), out=self.skips_updates)

        # Update. One that is skipped is reported when its losses are read.
        self._update()

        # Log: losses are read from the device when a line is due.
        masks = [micro.inputs["attention_mask"].numpy() for micro in batch.micro_batches] if batch.weight else []
        tokens, padded = sum(int(mask.sum()) for mask in masks), sum(mask.size for mask in masks)
        self.unread.append(
            StepDone(
                step=self.state.step,
                epoch=batch.epoch,
                weight=batch.weight,
                micro_items=batch.micro_items,
                losses=losses,
                counts=counts,
                norm=norm,
                tokens=tokens,
                padded=padded,
            )
        )
        return 0

    def rank_batches(self) -> Generator[RankBatch, None, None]:
        """The batches of this process from the current step on; another thread prepares the next one meanwhile."""
        return prefetch(map(self._rank_batch, range(self.state.step, self.schedule.total_steps)))

    def _rank_batch(self, step: int) -> RankBatch:
        epoch, items = self.schedule.batch(step)
        task, device_tokens = self.task, self.settings.device_tokens
        lengths, padded_lengths = lengths_in(epoch, task.lengths), lengths_in(epoch, task.padded_lengths)
        splits = []  # of every process, as they all must know whether one of them has several micro-batches
        for rank in range(self.processes.size):
            local_items = rank_items(items, rank, self.processes.size)
            computed = local_items if len(local_items) else items[:1]
            splits.append(list(micro_batches(computed, lengths, padded_lengths, device_tokens)))
        micro_items = splits[self.processes.rank]
        batches = [task.collate(micro, epoch).pinned(self.device) for micro in micro_items]
        weight, is_single = float(self.processes.rank < len(items)), max(map(len, splits)) == 1
        return RankBatch(step, epoch, items, micro_items, batches, weight, is_single)

    def _build_gradient_buckets(self) -> None:
        if self.processes.size > 1:
            item = np.zeros(1, dtype=np.int64)
            batch = self.task.collate(item, 0)
            self.gradients.build_buckets(RankBatch(self.state.step, 0, item, [item], [batch], 1.0, is_single=True))
            self.optimizer.zero_grad(set_to_none=True)

    def _sum_over_processes(self, counts: dict[str, int], signal_number: int) -> tuple[dict[str, int], int]:
        """Denominators over all processes, and the stop signal that any of them has received, or 0."""
        if self.processes.size == 1:
            return counts, signal_number
        votes = [int(signal_number == number) for number in STOPPING]
        summed = torch.tensor([*counts.values(), *votes])
        torch.distributed.all_reduce(summed, group=self.host_group)
        totals = summed.tolist()
        received = [number for number, count in zip(STOPPING, totals[len(counts) :], strict=True) if count]
        return dict(zip(counts, totals, strict=False)), max(received, default=0)

    def _signal_of_any(self, stop: StopRequest) -> int:
        return self._sum_over_processes({}, stop.signal_number)[1]

    def _update(self) -> None:
        """Updates the weights, unless this gradient or an earlier one is not finite.

        In fp16 only this update is skipped: the scale of the gradient was too large, and is halved.
        """
        rate = learning_rate(self.state.step, self.schedule.total_steps, self.settings)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["rate_factor"]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=not self.is_replayed)
        self.state.step += 1

    def _read_losses(self) -> float:
        """Reads the losses of the unread steps and adds them to the log; returns the loss of the last one.

        Every process does so after the same steps: before a line of the log, an evaluation, and a checkpoint.
        Raises WorkError where a loss or a gradient is not finite.
        """
        steps, self.unread, loss = self.unread, [], 0.0
        if not steps:
            return loss
        values = [value for done in steps for value in (done.norm, *chain(*(sums.values() for sums in done.losses)))]
        numbers = iter(torch.stack([value.float() for value in values]).tolist())  # the only wait for the device
        for done in steps:
            norm = next(numbers)
            losses = [{name: next(numbers) for name in sums} for sums in done.losses]
            self.norm = norm if math.isfinite(norm) else None
            if self.norm is None:
                self._report_non_finite(done, losses)
            totals = {name: done.weight * sum(sums[name] for sums in losses) for name in done.counts}
            self.log.add(totals, done.counts, done.tokens, done.padded)
            loss = sum(self.processes.size * total / max(1, done.counts[name]) for name, total in totals.items())
        return loss

    def _report_non_finite(self, done: StepDone, losses: list[dict[str, float]]) -> None:
        """Raises WorkError; only logs a gradient that a smaller scale of fp16 may make finite, with finite losses."""
        local_items = [
            items.tolist()
            for items, sums in zip(done.micro_items, losses, strict=True)
            if not all(map(math.isfinite, sums.values()))
        ]
        items = sorted({item for micro_items in gather_object(local_items) for item in micro_items})
        if not items and self.scaler.is_enabled() and self.scaler.get_scale() >= 1:
            log(f"step {done.step}: no update, as the gradient overflows in fp16; its scale is halved")
            return
        where = f"the loss of training items {items}" if items else "the gradient, with a finite loss"
        raise WorkError(
            f"step {done.step}: expected finite numbers, found a non-finite one in {where} (items are "
            "counted from 0, after filtering). Check those records, or lower learning_rate."
        )

    def _write_log(self) -> str:
        """Writes a line of the log; returns the note for the progress bar."""
        epoch, step = self.unread[-1].epoch, self.state.step
        note = f"loss {self._read_losses():.4f}"
        rate = learning_rate(step - 1, self.schedule.total_steps, self.settings)
        self.log.write_steps(step, epoch, rate, self.norm, self.state.seconds)
        return note

    def _evaluate_if_due(self, stop: StopRequest) -> None:
        """Evaluates the weights if that is due after this step and was not done before a resume.

        An evaluation may take minutes, so a signal ends it at once; the resumed training begins with it.
        """
        step, every = self.state.step, self.settings.evaluate_every
        is_due = step == self.schedule.total_steps or (
            self.schedule.ends_epoch(step) if every is None else step > 0 and step % every == 0
        )
        if self.task.criterion is None or not is_due or self.state.evaluated_step == step:
            return
        self._read_losses()
        self._stop_on_signal(self._signal_of_any(stop))
        try:
            with stop.act_at_once(), spinner("evaluating"):
                metrics = self._evaluate()
        except Stopped as stopped:
            self._write_checkpoint()  # without waiting for other processes, which may be anywhere in the evaluation
            self.writer.wait()
            raise self._stopped(stopped.signal_number) from None
        self._note_evaluation(metrics, self.task.criterion)  # outside, so that a signal does not interrupt it

    def _evaluate(self) -> Metrics:
        self.task.model.eval()
        with torch.inference_mode():
            metrics = broadcast_from_main(self.task.evaluate(self.processes), self.processes)
        self.task.model.train()
        return metrics

    def _note_evaluation(self, metrics: Metrics, criterion: str) -> None:
        self.log.write({"step": self.state.step, **metrics})
        self.state.evaluated_step = self.state.step
        score, best = metrics[criterion], self.state.best_metrics.get(criterion)
        if score is not None and math.isfinite(score) and (best is None or score > best):
            self.state.best_step, self.state.best_metrics = self.state.step, metrics
            self.state.evaluations_since_best = 0
            self.state.best_tensors = {name: tensor.clone() for name, tensor in unique_tensors(self.task.model).items()}
        else:
            self.state.evaluations_since_best += 1

    def _stop_on_signal(self, signal_number: int) -> None:
        if signal_number:
            self._save()
            self.writer.wait()
            wait_for_all(self.processes)  # a launcher ends the others when one has ended
            raise self._stopped(signal_number)

    def _stopped(self, signal_number: int) -> Stopped:
        return Stopped(
            f"stopped by {signal.Signals(signal_number).name} after step {self.state.step:,} of "
            f"{self.schedule.total_steps:,}; everything is saved. The same command resumes from here.",
            signal_number,
        )

    def _save(self) -> None:
        """Writes a checkpoint, unless the last one is of this step and evaluation."""
        if self.saved != (self.state.step, self.state.evaluated_step):
            self._read_losses()
            self._write_checkpoint()
            wait_for_all(self.processes)

    def _write_checkpoint(self) -> None:
        self.state.scaler = self.scaler.state_dict()
        if self.processes.is_main:
            self.writer.write(self.state, self.task.model, self.optimizer)
        self.saved = self.state.step, self.state.evaluated_step

    def resume(self) -> None:
        """Resumes from the newest intact checkpoint in `work`, if there is one."""
        with main_first(self.processes):  # it removes a damaged one before the others read
            checkpoint = load_checkpoint(self.work)
        if checkpoint is not None:
            self.state = restore(checkpoint, self.state, self.task.model, self.optimizer, self.work)
            if self.state.scaler:
                self.scaler.load_state_dict(self.state.scaler)
            self.saved = self.state.step, self.state.evaluated_step
            log(f"resuming after step {self.state.step:,} of {self.schedule.total_steps:,}")
        self.log.cut(self.state.step, self.state.evaluated_step)

    def finish(self) -> Metrics:
        """Loads the best weights into the model and returns their metrics."""
        if self.state.best_tensors is not None:
            self.task.model.load_state_dict(self.state.best_tensors, strict=False)
        self.task.model.eval()
        for network in self.checkpointed:
            getattr(network, "activation_checkpointing_disable", network.gradient_checkpointing_disable)()
        if self.host_group is not None:
            torch.distributed.destroy_process_group(self.host_group)
        if self.settings.tracker:
            self.accelerator.end_training()
        best = {} if self.state.best_step is None else {"best_step": self.state.best_step}
        done = {"train_steps": self.state.step, "train_seconds": self.state.seconds}
        return {**self.state.best_metrics, **best, **done}


def build_optimizer(task: Task, settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW without weight decay on biases and norms (vectors); frozen parameters are left out."""
    factors = task.rate_factors() if isinstance(task, RatedTask) else {}
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in task.model.named_parameters():
        if parameter.requires_grad:
            groups.setdefault((parameter.ndim >= 2, factors.get(name, 1.0)), []).append(parameter)
    with_options = [
        {"params": groups[is_matrix, factor], "weight_decay": settings.weight_decay * is_matrix, "rate_factor": factor}
        for is_matrix, factor in sorted(groups, reverse=True)
    ]
    return torch.optim.AdamW(with_options, lr=settings.learning_rate, fused=True)


def enable_gradient_checkpointing(model: nn.Module) -> list[Any]:
    """Makes the networks of transformers in `model` compute activations twice instead of keeping them; returns them.

    Raises RequestError when no network supports it.
    """
    networks: list[Any] = [
        module for module in model.modules() if getattr(module, "supports_gradient_checkpointing", False)
    ]
    if not networks:
        raise RequestError("gradient_checkpointing: expected a network that supports it, found none; leave it out")
    for network in networks:
        if hasattr(network, "activation_checkpointing_enable"):  # its name in newer versions
            network.activation_checkpointing_enable({"use_reentrant": False})
            network.disable_input_require_grads()  # which would go back through frozen layers too
        else:
            network.gradient_checkpointing_enable({"use_reentrant": False})
    return networks


@contextmanager
def _deterministic_algorithms(are_requested: bool) -> Iterator[None]:
    """Enables deterministic algorithms if they are requested; those that are enabled already stay so."""
    if not are_requested or torch.are_deterministic_algorithms_enabled():  # setting it loads the compiler
        yield
        return
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
