"""The training loop, the only one, on Accelerate: exact gradients, exact resume.

Three rules make it so:

- The step number is the position in the data. Batches and learning rate are pure functions of it, and dropout is
  seeded from (seed, step, rank, micro-batch); so a checkpoint holds no generator and no loader.
- A loss is a sum, and its denominator is counted over all micro-batches and processes before the first backward;
  so a gradient does not depend on how many of them it was computed in.
- Whatever a decision depends on is the same in every process, so they stop, evaluate and save at the same step.

Between two lines of the log nothing waits for the device: losses, norms and whether they are finite stay there, and the
optimizer itself makes no update that is not.
"""

import math
import signal
import time
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor, nn

from bertrelay.device import autocast, matmul_precision, resolve_precision, to_device
from bertrelay.errors import RequestError, Stopped, WorkError
from bertrelay.inference.batches import prefetched
from bertrelay.inference.kernels import is_asynchronous
from bertrelay.process_group import ProcessGroup, broadcast_from_main, check_shared, host_group
from bertrelay.progress import Bar, log, progress, working
from bertrelay.signals import STOPPING, StopRequest, deferred_stop_signals
from bertrelay.stage import Metrics
from bertrelay.training.batches import (
    BatchSchedule,
    Items,
    learning_rate,
    lengths_in,
    micro_batches,
    rank_batch,
)
from bertrelay.training.checkpoint import (
    State,
    capture,
    load_checkpoint,
    restore,
    save_checkpoint,
    unique_tensors,
)
from bertrelay.training.cuda_graphs import can_replay, replaying
from bertrelay.training.log import TrainingLog, accelerator, tracking
from bertrelay.training.settings import TrainingSettings
from bertrelay.training.task import Batch, GroupedTask, InBatchTask, RatedTask, Task


class RankBatch(NamedTuple):
    """What one process computes in a step.

    batch: the items of all processes. items: of each micro-batch. micro_batches: their tensors.
    weight: 0 where the step has fewer items than there are processes: this process computes, and adds nothing.
    is_one: whether there is one micro-batch in every process.
    """

    epoch: int
    batch: Items
    items: list[Items]
    micro_batches: list[Batch]
    weight: float
    is_one: bool = True


class StepDone(NamedTuple):
    """What is read of the device when steps are logged.

    items, sums: of each micro-batch, the losses on the device. norm: of the gradient, there too.
    tokens, padded: of this process's micro-batches.
    """

    step: int
    epoch: int
    items: list[Items]
    sums: list[dict[str, Tensor]]
    counts: dict[str, int]
    norm: Tensor
    weight: float
    tokens: int
    padded: int


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


def train(task: Task, settings: TrainingSettings, folder: Path, work: Path | None = None) -> Metrics:
    """Trains `task.model` in place and leaves the best weights in it, or the last ones without validation data.

    folder: for `metrics.jsonl`.
    work: for the checkpoints, by default `folder`; a training found there resumes.
    Returns the validation metrics of these weights, with `best_step`, `train_steps` and `train_seconds`.
    Raises Stopped on SIGTERM, Ctrl-C and SIGHUP, after saving; WorkError on a non-finite gradient.
    """
    if len(lengths_in(0, task.lengths)) == 0:
        raise RequestError("expected at least one training item, found none")
    with _deterministic(settings.deterministic), tracking(settings.tracker, folder):
        training = Training(task, settings, folder, work or folder)
        training.resume()
        training.run()
        return training.finish()


@contextmanager
def _deterministic(requested: bool) -> Iterator[None]:
    """Deterministic algorithms alone, where that is requested here or was before."""
    if not requested or torch.are_deterministic_algorithms_enabled():  # setting it loads the compiler
        yield
        return
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def enable_gradient_checkpointing(model: nn.Module) -> list[Any]:
    """Has the networks of transformers in `model` compute activations again in the backward pass; returns them.

    Raises RequestError when there is none that can.
    """
    networks: list[Any] = [each for each in model.modules() if getattr(each, "supports_gradient_checkpointing", False)]
    if not networks:
        raise RequestError("gradient_checkpointing: expected a network that can, found none; leave it out")
    for network in networks:
        if hasattr(network, "activation_checkpointing_enable"):  # its name in newer versions
            network.activation_checkpointing_enable({"use_reentrant": False})
            network.disable_input_require_grads()  # which would go back through frozen layers too
        else:
            network.gradient_checkpointing_enable({"use_reentrant": False})
    return networks


def _total(sums: Mapping[str, Tensor], counts: Mapping[str, int], factor: float) -> tuple[Tensor, Tensor]:
    """`factor` · Σ sum/count, and the gradient to begin its backward pass with.

    A loss may be non-finite with a finite gradient; begun with nan, all processes see it in the norm.
    """
    total = torch.stack([sums[name].float() * (factor / max(1, counts[name])) for name in counts]).sum()
    return total, torch.where(total.isfinite(), 1.0, torch.nan)


class Training:
    """The state and the steps of one training."""

    def __init__(self, task: Task, settings: TrainingSettings, folder: Path, work: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        work.mkdir(parents=True, exist_ok=True)
        self.task, self.settings, self.work = task, settings, work
        self.accelerator = accelerator(settings.tracker, folder)
        self.device = self.accelerator.device
        self.precision = resolve_precision(settings.precision, self.device)
        self.rank, self.processes = self.accelerator.process_index, self.accelerator.num_processes
        check_shared(work, ProcessGroup(self.rank, self.processes))  # all of them read its checkpoints
        task.model.to(self.device).train()
        self.recomputing = enable_gradient_checkpointing(task.model) if settings.gradient_checkpointing else []
        self.is_replayed = can_replay(self.device, self.processes)
        self.host_group = host_group(self.device) if self.processes > 1 else None
        self.optimizer = build_optimizer(task, settings)
        self.model = self.accelerator.prepare_model(task.model)
        self.weights = [each for each in self.model.parameters() if each.requires_grad]
        self.schedule = BatchSchedule(task.lengths, settings, task.groups if isinstance(task, GroupedTask) else None)
        self.log = TrainingLog(folder, self.accelerator, tracked=settings.tracker is not None)
        self.writing: Future[None] | None = None  # of the last checkpoint
        self.pending: list[StepDone] = []
        self.norm: float | None = None  # of the gradient of the last step that was collected, if it is finite
        self.found_inf = torch.zeros((), device=self.device)  # 1 from the first gradient on that is not finite
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")
        if not self.scaler.is_enabled():
            self.optimizer.found_inf = self.found_inf  # type: ignore[attr-defined]
        self.state = State(precision=self.precision, total_steps=self.schedule.total_steps)
        self.saved: tuple[int, int | None] | None = None  # the step of the last checkpoint, and the last one evaluated

    def run(self) -> None:
        """Trains until the last step, the end of patience, or a signal."""
        self._build_gradient_buckets()
        total, began = self.schedule.total_steps, time.monotonic() - self.state.seconds
        captures = self.settings.cuda_graphs and not self.recomputing
        with (
            matmul_precision(self.precision),
            replaying(self.task.model, capture=captures) if self.is_replayed else nullcontext(),
            deferred_stop_signals() as stop,
            progress("training", total, "steps", done=self.state.step) as bar,
            closing(self.rank_batches()) as self.batches,
            ThreadPoolExecutor(1, "checkpoints") as self.writing_thread,
        ):
            patience = math.inf if self.settings.patience is None else self.settings.patience
            self._evaluate_if_due(stop)  # where a signal came in the midst of it
            while self.state.step < total and self.state.evaluations_since_best < patience:
                self._stop_on_signal(self._train_step(bar, stop.signal_number))
                self.state.seconds = time.monotonic() - began
                if self.state.step % self.settings.log_every == 0 or self.state.step == total:
                    self._log_steps(bar)
                self._evaluate_if_due(stop)
                if self.state.step % self.settings.checkpoint_every == 0:
                    self._save()
            self._save()  # so that whatever stops the work that follows, no step is trained twice
            self._end_writing()
            self._stop_on_signal(self._signal_of_any(stop))

    def _build_gradient_buckets(self) -> None:
        """Makes DDP build its buckets now; it does so once, after the first backward it sees.

        They decide in which order three or more processes add up a gradient, so without this the first step after a
        resume would differ in its last bits from the same step of an uninterrupted training.
        """
        if self.processes > 1:
            first = np.zeros(1, dtype=np.int64)
            batch = self.task.collate(first, 0)
            if isinstance(self.task, InBatchTask):
                vectors = self._vectors(self.task, batch)
                vectors.backward(torch.zeros_like(vectors))
            else:
                self._backward(RankBatch(0, first, [first], [batch], weight=0.0), batch.counts)
            self.optimizer.zero_grad(set_to_none=True)

    def _train_step(self, bar: Bar, signal_number: int) -> int:
        """Trains on the next batch, or returns the stop signal that some process has received."""
        own = next(self.batches)
        names = list(own.micro_batches[0].counts)
        counted = own.micro_batches if own.weight else []
        counts, signal_number = self._sum_over_processes(counted, names, signal_number)
        if signal_number:
            return signal_number
        sums = self._backward(own, counts)
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.weights, self.settings.max_grad_norm)
        torch.maximum(self.found_inf, (~norm.isfinite()).float(), out=self.found_inf)
        self._update()
        masks = [batch.inputs["attention_mask"].numpy() for batch in own.micro_batches] if own.weight else []
        tokens, padded = sum(int(mask.sum()) for mask in masks), sum(mask.size for mask in masks)
        step = self.state.step
        self.pending.append(StepDone(step, own.epoch, own.items, sums, counts, norm, own.weight, tokens, padded))
        bar.advance(1)
        return 0

    def rank_batches(self) -> Generator[RankBatch, None, None]:
        """What this process computes in each step from here on. Another thread prepares the next one meanwhile."""
        return prefetched(map(self._rank_batch, range(self.state.step, self.schedule.total_steps)))

    def _rank_batch(self, step: int) -> RankBatch:
        """What this process computes in a step, a function of its number."""
        epoch, items = self.schedule.batch(step)
        lengths, padded_lengths = (lengths_in(epoch, each) for each in (self.task.lengths, self.task.padded_lengths))
        splits = []
        for rank in range(self.processes):
            own = rank_batch(items, rank, self.processes)
            computed = own if len(own) else items[:1]
            splits.append(list(micro_batches(computed, lengths, padded_lengths, self.settings.device_tokens)))
        split = splits[self.rank]
        batches = [self.task.collate(micro, epoch).pinned(self.device) for micro in split]
        is_one, weight = max(map(len, splits)) == 1, float(self.rank < len(items))
        return RankBatch(epoch, items, split, batches, weight, is_one)

    def _sum_over_processes(
        self, batches: list[Batch], names: list[str], signal_number: int
    ) -> tuple[dict[str, int], int]:
        """Denominators over all micro-batches and processes, and the stop signal that any process has received."""
        own = [sum(batch.counts[name] for batch in batches) for name in names]
        if self.processes == 1:
            return dict(zip(names, own, strict=True)), signal_number
        votes = [int(signal_number == number) for number in STOPPING]
        summed = torch.tensor([*own, *votes])
        torch.distributed.all_reduce(summed, group=self.host_group)
        totals = summed.tolist()
        received = [number for number, count in zip(STOPPING, totals[len(names) :], strict=True) if count]
        return dict(zip(names, totals, strict=False)), max(received, default=0)

    def _backward(self, own: RankBatch, counts: dict[str, int]) -> list[dict[str, Tensor]]:
        """Accumulates the gradient of Σ sum/count over the micro-batches; the last one synchronises the processes."""
        if isinstance(self.task, InBatchTask):
            return self._backward_in_batch(self.task, own, counts)
        all_sums = []
        for index, batch in enumerate(own.micro_batches):
            with self._micro_batch(own, index):
                with autocast(self.device, self.precision):
                    sums = self.task.loss(self.model, batch.to(self.device))
                factor = own.weight * self.processes  # because gradients are averaged over processes
                total, finite = _total(sums, counts, factor)
                self.scaler.scale(total).backward(finite)
            all_sums.append({name: sums[name].detach() for name in counts})
        return all_sums

    @contextmanager
    def _micro_batch(self, own: RankBatch, index: int) -> Iterator[None]:
        """Seeds the dropout of a micro-batch; gradients of the last one alone are exchanged."""
        place = np.random.SeedSequence((self.settings.seed, self.state.step, self.rank, index))
        torch.manual_seed(int(place.generate_state(1, np.uint64)[0]))  # neighbouring steps share nothing
        is_last = index == len(own.micro_batches) - 1
        with nullcontext() if is_last else self.accelerator.no_sync(self.model):
            yield

    def _backward_in_batch(self, task: InBatchTask, own: RankBatch, counts: dict[str, int]) -> list[dict[str, Tensor]]:
        """Does the same for losses that compare the items of all micro-batches and processes."""
        order = np.argsort(own.batch)
        rows = [order[np.searchsorted(own.batch[order], items)] for items in own.items]
        places = [to_device(torch.from_numpy(each), self.device) for each in rows]
        outputs = []  # with the graph that the backward pass needs, where no other micro-batch needs the memory
        for index, batch in enumerate(own.micro_batches):
            with self._micro_batch(own, index), torch.set_grad_enabled(own.is_one):
                outputs.append(self._vectors(task, batch))
        vectors = outputs[0].new_zeros(len(own.batch), *outputs[0].shape[1:])
        for place, output in zip(places, outputs, strict=True):
            vectors[place] = own.weight * output.detach()
        if self.processes > 1:
            vectors = self.accelerator.reduce(vectors, "sum")  # each row is of one process, and zero in the others
        sums = task.batch_losses(vectors.requires_grad_(), own.batch, own.epoch)
        total, finite = _total(sums, counts, own.weight * self.processes)
        (gradient,) = torch.autograd.grad(self.scaler.scale(total), vectors, finite)
        for index, (place, batch) in enumerate(zip(places, own.micro_batches, strict=True)):
            with self._micro_batch(own, index):
                output = outputs[0] if own.is_one else self._vectors(task, batch)
                output.backward(gradient[place])
        shares = min(self.processes, len(own.batch)) * len(outputs)  # of the sums, which every process has whole
        return [{name: sums[name].detach() / shares for name in counts}] * len(outputs)

    def _vectors(self, task: InBatchTask, batch: Batch) -> Tensor:
        with autocast(self.device, self.precision):
            return task.vectors(self.model, batch.to(self.device)).float()

    def _report_non_finite(self, done: StepDone, sums: list[dict[str, float]]) -> None:
        """Raises WorkError, unless it is the gradient alone and a smaller scale may help."""
        own = [
            micro.tolist()
            for micro, named in zip(done.items, sums, strict=True)
            if not all(map(math.isfinite, named.values()))
        ]
        everywhere = sorted({item for found in gather_object(own) for item in found})
        if not everywhere and self.scaler.is_enabled() and self.scaler.get_scale() >= 1:
            log(f"step {done.step}: no update, as the gradient overflows in fp16; its scale is halved")
            return
        where = f"the loss of training items {everywhere}" if everywhere else "the gradient, with a finite loss"
        raise WorkError(
            f"step {done.step}: expected finite numbers, found a non-finite one in {where} (items are "
            "counted from 0, after filtering). Check those records, or lower learning_rate."
        )

    def _update(self) -> None:
        """Updates the weights, unless this gradient or an earlier one is not finite, which `_collect` reports.

        In fp16 later steps update them again: the scale of the gradient was too large, and is halved.
        """
        rate = learning_rate(self.state.step, self.schedule.total_steps, self.settings)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["rate_factor"]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=not self.is_replayed)
        self.state.step += 1

    def _collect(self) -> str:
        """Reads the losses of the pending steps and adds them to the log; raises WorkError where one is not finite.

        Every process does so after the same steps: before the log is written, an evaluation, and a checkpoint.
        Returns the loss of the last step, for the progress bar.
        """
        steps, self.pending, loss = self.pending, [], 0.0
        if not steps:
            return ""
        values = [value for done in steps for value in (done.norm, *chain(*(sums.values() for sums in done.sums)))]
        numbers = iter(torch.stack([value.float() for value in values]).tolist())  # the one wait for the device
        for done in steps:
            norm = next(numbers)
            sums = [{name: next(numbers) for name in named} for named in done.sums]
            self.norm = norm if math.isfinite(norm) else None
            if self.norm is None:
                self._report_non_finite(done, sums)
            totals = {name: done.weight * sum(named[name] for named in sums) for name in done.counts}
            self.log.add(totals, done.counts, done.tokens, done.padded)
            loss = sum(self.processes * total / max(1, done.counts[name]) for name, total in totals.items())
        return f"loss {loss:.4f}"

    def _log_steps(self, bar: Bar) -> None:
        epoch = self.pending[-1].epoch
        bar.advance(0, note=self._collect())
        step, total = self.state.step, self.schedule.total_steps
        rate = learning_rate(step - 1, total, self.settings)
        self.log.write_steps(step, epoch, rate, self.norm, self.state.seconds)

    def _evaluate_if_due(self, stop: StopRequest) -> None:
        """Evaluates the weights where that is due after this step and not done.

        It may take minutes, so a signal ends it at once, and a resumed training begins with it.
        """
        step, every = self.state.step, self.settings.evaluate_every
        is_due = step == self.schedule.total_steps or (
            self.schedule.ends_epoch(step) if every is None else step > 0 and step % every == 0
        )
        if self.task.criterion is None or not is_due or self.state.evaluated_step == step:
            return
        self._collect()
        self._stop_on_signal(self._signal_of_any(stop))
        try:
            with stop.acting_at_once(), working("evaluating"):
                metrics = self._evaluate()
        except Stopped as stopped:
            self._write_checkpoint()  # without waiting for other processes, which may be at any place
            self._end_writing()
            raise self._stopped(stopped.signal_number) from None
        self._note_evaluation(metrics, self.task.criterion)  # which a signal leaves whole

    def _evaluate(self) -> Metrics:
        processes = ProcessGroup(self.rank, self.processes)
        self.task.model.eval()
        with torch.inference_mode():
            metrics = broadcast_from_main(self.task.evaluate(processes), processes)
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
            self._end_writing()
            self.accelerator.wait_for_everyone()  # a launcher ends the others when one has ended
            raise self._stopped(signal_number)

    def _stopped(self, signal_number: int) -> Stopped:
        return Stopped(
            f"stopped by {signal.Signals(signal_number).name} after step {self.state.step:,} of "
            f"{self.schedule.total_steps:,}; everything is saved. The same command resumes from here.",
            signal_number,
        )

    def _signal_of_any(self, stop: StopRequest) -> int:
        """The stop signal that any process has received, or 0."""
        return self._sum_over_processes([], [], stop.signal_number)[1]

    def _save(self) -> None:
        """A checkpoint of this step, unless the last one is of it already."""
        if self.saved != (self.state.step, self.state.evaluated_step):
            self._collect()
            self._write_checkpoint()
            self.accelerator.wait_for_everyone()

    def _write_checkpoint(self) -> None:
        """Has the main process write a checkpoint.

        On a GPU it is a copy, written while the training continues. On a CPU that would take the memory of the weights
        and their moments once more, so the training waits.
        """
        self._end_writing()
        self.state.scaler = self.scaler.state_dict()
        if self.accelerator.is_main_process:
            is_async = is_asynchronous(self.device)
            checkpoint = capture(self.state, self.task.model, self.optimizer, copy=is_async)
            if is_async:
                self.writing = self.writing_thread.submit(save_checkpoint, self.work, checkpoint)
            else:
                save_checkpoint(self.work, checkpoint)
        self.saved = self.state.step, self.state.evaluated_step

    def _end_writing(self) -> None:
        """Returns when the last checkpoint is on the disk. Raises what went wrong with it."""
        writing, self.writing = self.writing, None
        if writing is not None:
            writing.result()

    def resume(self) -> None:
        """Resumes from the newest intact checkpoint in `work`, if there is one."""
        with self.accelerator.main_process_first():  # it removes a damaged one before the others read
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
        for network in self.recomputing:
            getattr(network, "activation_checkpointing_disable", network.gradient_checkpointing_disable)()
        if self.host_group is not None:
            torch.distributed.destroy_process_group(self.host_group)
        if self.settings.tracker:
            self.accelerator.end_training()
        best = {} if self.state.best_step is None else {"best_step": self.state.best_step}
        done = {"train_steps": self.state.step, "train_seconds": self.state.seconds}
        return {**self.state.best_metrics, **best, **done}
