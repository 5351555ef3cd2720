"""The stage `domain.pretrain`: continued pretraining of a BERT on masked words and next sentences of a domain.

Held-out documents are evaluated with the same masks and pairs every time.
"""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from shutil import copyfile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertrelay.cache import Cache
from bertrelay.device import ComputePrecision, autocast, default_device
from bertrelay.evaluation.statistics import with_interval
from bertrelay.files import write_json
from bertrelay.fingerprint import Digests
from bertrelay.model.network import save_network
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, gather, main_first
from bertrelay.progress import spinner
from bertrelay.report import model_name, write_report
from bertrelay.stage import Metrics, StageContext, run_alone
from bertrelay.training import batches
from bertrelay.training.batches import micro_batches
from bertrelay.training.loop import train
from bertrelay.training.task import Batch
from domain.pretraining.corpus import build_corpus
from domain.pretraining.masking import Sequences
from domain.pretraining.network import LABELS, Pretraining, losses, start_network
from domain.pretraining.pairs import Items, Text, draw_pairs, pack
from domain.pretraining.report import training_report
from domain.pretraining.settings import Objective, PretrainSettings

Floats = NDArray[np.floating]

SEED = 0  # held-out pairs and masks do not depend on the seed of a training
CRITERION = "log_likelihood"


class HeldOut:
    """Held-out items, and the metrics of a model on them."""

    def __init__(
        self, items: Items, sequences: Sequences, settings: PretrainSettings, precision: ComputePrecision
    ) -> None:
        self.items, self.sequences, self.settings, self.precision = items, sequences, settings, precision

    def metrics(self, model: Pretraining, process_group: ProcessGroup = SINGLE_PROCESS) -> Metrics:
        """Each objective's metrics with a 95 % interval over documents; a pair belongs to that of its first segment.

        `mlm_loss` in nats, `mlm_perplexity`, `mlm_accuracy`, `nsp_loss`, `nsp_accuracy`; and `log_likelihood`, minus
        the sum of the losses, which chooses the best weights.
        """
        metrics: Metrics = {}
        for name, (loss, hits, count) in self._sums(model, process_group).items():
            metrics |= with_interval(f"{name}_loss", _mean, loss, count)
            if name == "mlm":
                metrics |= with_interval("mlm_perplexity", _perplexity, loss, count)
            metrics |= with_interval(f"{name}_accuracy", _mean, hits, count)
        means = [metrics[f"{name}_loss"] for name in model.objectives]
        return {**metrics, CRITERION: -float(sum(loss for loss in means if loss is not None))}

    @torch.inference_mode()
    def _sums(self, model: Pretraining, process_group: ProcessGroup) -> dict[Objective, NDArray[np.float64]]:
        """Sums of losses, of hits and of labels for each objective, (3, documents)."""
        documents = np.unique(self.items.documents, return_inverse=True)[1]  # (items,)
        sums = {name: np.zeros((3, documents.max() + 1)) for name in model.objectives}
        was_training, device = model.training, next(model.parameters()).device
        model.eval()
        lengths = self.items.lengths
        batches = list(micro_batches(np.arange(len(lengths)), lengths, lengths, self.settings.device_tokens))
        for chosen in batches[process_group.rank :: process_group.size]:
            batch = self.sequences.batch(self.items, chosen, SEED, epoch=0).to(device)
            with autocast(device, self.precision):
                logits = model(batch.inputs)
            rows = (batch.inputs["masked"] // batch.inputs["input_ids"].shape[1]).cpu().numpy()
            owners = {"mlm": documents[chosen[rows]], "nsp": documents[chosen]}
            for name, loss in losses(logits, batch.inputs).items():
                hits = logits[name].argmax(dim=-1) == batch.inputs[LABELS[name]]
                columns = [loss.double(), hits.double(), torch.ones_like(loss, dtype=torch.float64)]
                for total, values in zip(sums[name], columns, strict=True):
                    np.add.at(total, owners[name], values.cpu().numpy())
        model.train(was_training)
        parts = gather(sums, process_group)
        return {name: np.sum([part[name] for part in parts], axis=0) for name in sums}


def _mean(total: Floats, count: Floats) -> float | None:
    return float(total.sum() / count.sum()) if count.any() else None


def _perplexity(loss: Floats, count: Floats) -> float | None:
    mean = _mean(loss, count)
    return None if mean is None else math.exp(mean)


def pretrain(settings: PretrainSettings, folder: Path, cache: Cache | None = None) -> Metrics:
    """Runs the stage without a recipe: writes `folder/model` and returns the metrics; a stopped call resumes.

    cache: folder of the prepared corpus, for other trainings too; `folder/cache` when absent.
    """
    return run_alone(run, settings, folder, cache)


def run(settings: PretrainSettings, context: StageContext) -> Metrics:
    """Prepares the corpus, scores the base on held-out documents, trains it, scores it again, and writes `model/`."""
    network, tokenizer = start_network(settings, context.cache)
    engine = context.engine_before_training
    with main_first(context.process_group):
        digests = Digests(context.cache.folder / "digests.json")
        corpus = build_corpus(
            settings.documents, tokenizer, context.cache, digests, settings.held_out_share, settings.max_rejects, engine
        )
    precision = context.precision(settings.precision)  # the processes are connected now
    sequences = Sequences(corpus, tokenizer, settings)
    held_out = None
    if corpus.held_out.any():
        items = draw_items(Text(corpus, corpus.held_out, "held-out documents"), settings, SEED, epoch=0)
        held_out = HeldOut(items, sequences, settings, precision)
    model = Pretraining(network, settings.objectives).to(default_device())
    task = PretrainingTask(model, settings, Text(corpus, ~corpus.held_out), sequences, held_out)
    with spinner("evaluating the base"):
        before = task.evaluate(context.process_group)
    metrics = train(task, settings, context.output, context.work, precision)
    if not task.criterion:
        with spinner("evaluating"):
            metrics |= task.evaluate(context.process_group)
    if context.process_group.is_main:
        write_json(context.output / "corpus.json", corpus.facts)
        copyfile(corpus.rejects, context.output / corpus.rejects.name)
        save_network(network, tokenizer, context.output / "model")
    metrics = {**{f"before/{name}": value for name, value in before.items()}, **metrics}
    if context.process_group.is_main:
        report = training_report(metrics, model_name(settings.base), corpus.facts["documents"], settings.objectives)
        write_report(report, context)
    return metrics


def draw_items(text: Text, settings: PretrainSettings, seed: int, epoch: int) -> Items:
    """The items of an epoch: pairs for next sentences, else packed sentences, the same in every epoch."""
    if "nsp" in settings.objectives:
        return draw_pairs(text, settings.max_tokens, settings.short_share, seed, epoch)
    return pack(text, settings.max_tokens)


class PretrainingTask:
    """The training loop's task of masked words and next sentences."""

    def __init__(
        self,
        model: Pretraining,
        settings: PretrainSettings,
        text: Text,
        sequences: Sequences,
        held_out: HeldOut | None,
    ) -> None:
        self.model, self.settings, self.sequences, self.held_out = model, settings, sequences, held_out
        self.criterion = CRITERION if held_out and settings.keep == "best" else None
        self._items: Callable[[int], Items] = lru_cache(maxsize=1)(partial(draw_items, text, settings, settings.seed))

    def lengths(self, epoch: int) -> NDArray[np.integer]:
        return self._items(epoch).lengths

    padded_lengths = lengths

    def collate(self, items: batches.Items, epoch: int) -> Batch:
        return self.sequences.batch(self._items(epoch), items, self.settings.seed, epoch)

    def loss(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        return {name: loss.sum() for name, loss in losses(model(batch.inputs), batch.inputs).items()}

    def evaluate(self, process_group: ProcessGroup = SINGLE_PROCESS) -> Metrics:
        return self.held_out.metrics(self.model, process_group) if self.held_out else {}
