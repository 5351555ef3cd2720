"""The stage `teachers.cross-encoder`: trains a network that scores pairs of sentences."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (its usual name)

from bertrelay.data.records import Rejects
from bertrelay.device import ComputePrecision
from bertrelay.evaluation.statistics import spearman, with_interval
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, map_over_processes
from bertrelay.report import StageReport, model_name, write_report
from bertrelay.stage import Metrics, StageContext
from bertrelay.training.batches import Items
from bertrelay.training.loop import train
from bertrelay.training.task import Batch
from teachers.data import SCORED_PAIRS, Examples, log_shared_pairs, pairs_of, read_examples
from teachers.evaluation.sts import read_sts
from teachers.pairs.model import PairScorer, start_cross_encoder
from teachers.pairs.settings import CrossEncoderSettings, PairSettings
from teachers.report import sts_headline

LOSS, DEV = "cross_entropy", "dev/spearman_score"


def run(settings: CrossEncoderSettings, context: StageContext) -> Metrics:
    """Trains a BERT that reads both sentences at once."""
    return train_scorer(
        lambda: start_cross_encoder(settings.base, settings.max_tokens, settings.seed, context.cache),
        settings,
        context,
    )


def train_scorer(start: Callable[[], PairScorer], settings: PairSettings, context: StageContext) -> Metrics:
    """Trains the network of `start`, writes `model/` and computes `sts/<name>/spearman_score` of each test set."""
    listed = context.output / "rejects.jsonl" if context.process_group.is_main else None
    with Rejects(listed, settings.max_rejects) as rejects:
        limits = settings.score_range, settings.max_swapped
        examples = read_examples(settings.train, SCORED_PAIRS, context, rejects, *limits)
        dev = read_examples(settings.dev, SCORED_PAIRS, context, rejects, *limits) if settings.dev else None
        tests = {name: read_sts(table, context, rejects) for name, table in settings.test.items()}
    log_shared_pairs(examples, dev, {f"test {name}": pairs.sentence_pairs() for name, pairs in tests.items()})
    model, precision = start(), context.precision(settings.precision)
    metrics = train(PairTask(model, examples, dev, precision), settings, context.output, context.work, precision)
    if not context.process_group.is_main:
        return metrics
    model.save(context.output / "model")
    for name, pairs in tests.items():
        scores = model.predict(pairs.sentence_pairs(), precision=precision)
        metrics |= with_interval(f"sts/{name}/spearman_score", spearman, scores, pairs.scores)
    headline = sts_headline(metrics, {name: pairs.rows() for name, pairs in tests.items()}, "", "spearman_score")
    summary = (
        f"A scorer of sentence pairs, started from {model_name(settings.base)}, learned their similarity from "
        f"{len(examples.indices):,} pairs."
    )
    write_report(StageReport(summary=[summary], headlines=[headline] if headline else []), context)
    return {**metrics, "train_items": len(examples.indices)}


class PairTask:
    """The training of a pair scorer by binary cross-entropy Σ −s·log σ(x) − (1 − s)·log(1 − σ(x)).

    x: logits; s: gold scores from 0 to 1.
    """

    def __init__(
        self, model: PairScorer, examples: Examples, dev: Examples | None, precision: ComputePrecision
    ) -> None:
        self.model, self.dev, self.precision = model, dev, precision
        self.tokens = model.tokenize(pairs_of(examples))
        self.labels = torch.tensor(examples.labels, dtype=torch.float32)
        self.lengths: NDArray[np.integer] = self.tokens.lengths
        self.padded_lengths: NDArray[np.integer] = self.tokens.lengths
        self.criterion = DEV if dev else None

    def collate(self, items: Items, epoch: int) -> Batch:  # noqa: ARG002 (nothing is random here)
        inputs = self.tokens.padded(items, self.model.pad_id)
        return Batch({**inputs, "labels": self.labels[torch.from_numpy(items)]}, {LOSS: len(items)})

    def loss(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        inputs = {name: tensor for name, tensor in batch.inputs.items() if name != "labels"}
        logits = model(**inputs)
        return {LOSS: F.binary_cross_entropy_with_logits(logits, batch.inputs["labels"], reduction="sum")}

    def evaluate(self, process_group: ProcessGroup = SINGLE_PROCESS) -> Metrics:
        dev = cast(Examples, self.dev)
        scores = map_over_processes(partial(self.model.predict, precision=self.precision), pairs_of(dev), process_group)
        return {DEV: spearman(scores, np.array(dev.labels))}
