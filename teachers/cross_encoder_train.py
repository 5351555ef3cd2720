"""The stages `teachers.cross-encoder` and `teachers.poly-encoder`: a BERT learns to score pairs of sentences."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertrelay.data.records import Rejects
from bertrelay.encoder import SentenceEncoder
from bertrelay.evaluation.statistics import spearman, with_interval
from bertrelay.stage import Metrics, StageContext
from bertrelay.training.batches import Items
from bertrelay.training.loop import Batch, train
from teachers.baselines.poly_encoder import PolyEncoder, SideScorer
from teachers.cross_encoder import LOSS, CrossEncoder, Pairs, cross_entropy, start_cross_encoder
from teachers.data import Examples, read_examples
from teachers.evaluation.sts import StsPairs, read_sts
from teachers.settings import CrossEncoderSettings, PairSettings, PolyEncoderSettings, TrainSettings

Scorer = CrossEncoder | SideScorer
DEV = "dev/spearman_score"


def run(settings: CrossEncoderSettings, context: StageContext) -> Metrics:
    """Trains a network that reads both sentences at once."""

    def start() -> Scorer:
        cache, orders = context.cache / "hub", settings.both_orders
        return start_cross_encoder(settings.base, settings.max_tokens, settings.seed, cache, both_orders=orders)

    return _run(start, settings, context, both_orders=settings.both_orders)


def run_poly(settings: PolyEncoderSettings, context: StageContext) -> Metrics:
    """Trains a network whose learnt codes look at each sentence alone."""

    def start() -> PolyEncoder:
        encoder = SentenceEncoder.load(settings.base, cache_dir=context.cache / "hub")
        return PolyEncoder(encoder, settings.codes, settings.seed)

    return _run(start, settings, context)


def _run(
    start: Callable[[], Scorer], settings: PairSettings, context: StageContext, *, both_orders: bool = False
) -> Metrics:
    """Trains what `start` gives and writes `model/`; `sts/<name>/spearman_score` of each test set."""
    with Rejects(
        context.output / "rejects.jsonl" if context.process_group.is_main else None, settings.max_rejects
    ) as rejects:
        reading = _reading(settings)
        examples = read_examples(settings.train, reading, context, rejects)
        dev = read_examples(settings.dev, reading, context, rejects) if settings.dev else None
        tests = {name: read_sts(table, context, rejects) for name, table in settings.test.items()}
    if both_orders:
        examples = in_both_orders(examples)
    model = start()
    metrics = train(PairTask(model, settings, examples, dev), settings, context.output, context.work)
    if not context.process_group.is_main:
        return metrics
    model.save(context.output / "model")
    for name, pairs in tests.items():
        metrics |= _tested(f"sts/{name}/spearman_score", model, pairs, settings.precision)
    return {**metrics, "train_items": len(examples.indices)}


def _reading(settings: PairSettings) -> TrainSettings:
    """The tables are those of a teacher that learns scores, and are read as its are."""
    return TrainSettings(base=settings.base, objective="cosine", train=settings.train, score_range=settings.score_range)


def in_both_orders(examples: Examples) -> Examples:
    """Each pair as it stands and turned round."""
    indices = np.concatenate([examples.indices, examples.indices[:, ::-1]])  # (2 × pairs, 2)
    return replace(examples, indices=indices, labels=[*examples.labels, *examples.labels])


def pairs_of(examples: Examples) -> Pairs:
    """The two sentences of each item."""
    return [(examples.sentences[first], examples.sentences[second]) for first, second in examples.indices.tolist()]


def _tested(name: str, model: Scorer, pairs: StsPairs, precision: str) -> Metrics:
    scores = model.score(list(zip(pairs.first, pairs.second, strict=True)), precision=precision)
    return with_interval(name, spearman, scores, pairs.scores)


class PairTask:
    """Binary cross-entropy of the scores, as the training loop asks for it."""

    def __init__(self, model: Scorer, settings: PairSettings, examples: Examples, dev: Examples | None) -> None:
        self.model, self.settings, self.dev = model, settings, dev
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
        return {LOSS: cross_entropy(model(**inputs), batch.inputs["labels"])}

    def evaluate(self) -> Metrics:
        dev = cast(Examples, self.dev)
        scores = self.model.score(pairs_of(dev), precision=self.settings.precision)
        return {DEV: spearman(scores, np.array(dev.labels))}
