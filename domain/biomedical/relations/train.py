"""The stage `domain.relations`: trains a BERT to find relations, and calibrates it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from bertrelay.data.records import Rejects
from bertrelay.device import ComputePrecision, default_device
from bertrelay.errors import RequestError
from bertrelay.evaluation.statistics import none_if_nan
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, map_over_processes
from bertrelay.progress import log, spinner
from bertrelay.stage import Metrics, StageContext
from bertrelay.training.batches import Items
from bertrelay.training.loop import train
from bertrelay.training.task import Batch
from domain.biomedical.calibration import fit_temperature
from domain.biomedical.documents.formats import read_sources
from domain.biomedical.documents.score import LEVELS
from domain.biomedical.relations.data import NONE, Pairs, Scheme
from domain.biomedical.relations.metrics import count_pairs, relation_metrics
from domain.biomedical.relations.model import RelationModel, save_model, start_model
from domain.biomedical.relations.predict import Scores, predicted, probabilities, scored_pairs
from domain.biomedical.relations.settings import RelationSettings
from domain.sampling import uniform_draws

UNKNOWN, OLD, NEW = -1, 0, 1
THRESHOLDS = np.linspace(0.02, 0.98, 49)


def run(settings: RelationSettings, context: StageContext) -> Metrics:
    """Trains a model, calibrates it on the dev data, and writes `model/`."""
    rejects_file = context.output / "rejects.jsonl" if context.process_group.is_main else None
    with Rejects(rejects_file, settings.max_rejects) as rejects, spinner("reading documents"):
        documents = list(read_sources(settings.train, rejects))
        dev_documents = list(read_sources(settings.dev, rejects))
    if both := {document.text for document in documents} & {document.text for document in dev_documents}:
        raise RequestError(f"dev: expected other documents than train has, found {len(both):,} that are in both")
    scheme = Scheme.of(documents, settings.types, settings.level, settings.within, settings.directed)
    pairs, dev = ([scheme.pairs_of(one) for one in split] for split in (documents, dev_documents))
    if dev:
        scheme.check_relations(dev, "dev")
    pairs = [one for one in pairs if one.pairs]
    gold = [relation for one in pairs for relation in one.gold if relation.type != NONE]
    if beyond := sum(len(one.missed) for one in pairs):
        log(f"train: {beyond:,} relations have no pair of the kind that is read, and are not trained on")
    novelty = any(relation.novel is not None for relation in gold)
    model = start_model(settings, scheme, novelty=novelty, cache=context.cache)
    model.network.to(default_device())
    precision = context.precision(settings.precision)
    task = RelationTask(model, settings, pairs, dev, precision)
    metrics = train(task, settings, context.output, context.work, precision)
    if context.process_group.is_main:
        if dev:
            with spinner("calibrating"):
                model = task.calibrated()
            metrics |= {"temperature": model.temperature, "threshold": model.threshold}
        save_model(model, context.output / "model")
    count = sum(len(one.pairs) for one in pairs)
    return {**metrics, "train_documents": len(pairs), "train_pairs": count, "train_relations": len(gold)}


class RelationTask:
    """The task of the training loop: the relations of pairs; an item is a document."""

    def __init__(
        self,
        model: RelationModel,
        settings: RelationSettings,
        pairs: Sequence[Pairs],
        dev: Sequence[Pairs],
        precision: ComputePrecision,
    ) -> None:
        self.model, self.relation_model, self.precision = model.network, model, precision
        self.seed, self.negatives, self.none_weight = settings.seed, settings.negatives, settings.none_weight
        self.head_factor = settings.head_learning_rate / settings.learning_rate
        self.documents = model.marker(pairs)
        self.lengths = self.padded_lengths = self.documents.lengths
        number = {NONE: 0, **{name: at for at, name in enumerate(model.scheme.types, 1)}}
        self.types = [np.array([number[gold.type] for gold in one.gold]) for one in pairs]
        novel = {None: UNKNOWN, False: OLD, True: NEW}
        self.novel = [np.array([novel[gold.novel] for gold in one.gold]) for one in pairs]
        self.dev = dev
        self.criterion = "dev/f1" if dev else None

    def rate_factors(self) -> dict[str, float]:
        """Factors by which the learning rate of the head differs from the BERT's."""
        return {f"head.{name}": self.head_factor for name, _ in self.model.head.named_parameters()}

    def collate(self, items: Items, epoch: int) -> Batch:
        """A batch of the documents `items`: inputs, the type and novelty of each pair, and its weight in the loss."""
        inputs = self.relation_model.marker.batch(self.documents, items)
        types, novel = (
            torch.from_numpy(np.concatenate([rows[item] for item in items])) for rows in (self.types, self.novel)
        )
        weights = torch.where(types == 0, self.none_weight, 1.0)
        if self.negatives < 1:
            of_item = np.concatenate([np.full(len(self.types[item]), item) for item in items])
            of_pair = np.concatenate([np.arange(len(self.types[item])) for item in items])
            draws = torch.from_numpy(uniform_draws(self.seed, epoch, of_item, of_pair)[:, 0])
            weights = weights.masked_fill((types == 0) & (draws >= self.negatives), 0.0)
        return Batch({**inputs, "types": types, "novel": novel, "weights": weights}, {"relations": len(types)})

    def loss(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """The negative log-likelihood of types and, where it is known, novelty, in nats, summed over pairs."""
        inputs = dict(batch.inputs)
        types, novel, weights = (inputs.pop(name) for name in ("types", "novel", "weights"))
        scores = model(**inputs)  # (pairs, types + 2)
        loss = (cross_entropy(scores[:, :-1], types, reduction="none") * weights).sum()
        has_novelty = novel != UNKNOWN
        newness = binary_cross_entropy_with_logits(
            scores[has_novelty, -1], (novel[has_novelty] == NEW).float(), reduction="sum"
        )
        return {"relations": loss + newness}

    def evaluate(self, process_group: ProcessGroup = SINGLE_PROCESS) -> Metrics:
        """Precision, recall and F1 on the dev data with the threshold of the best F1."""
        if not self.dev:
            return {}
        scores = map_over_processes(self._scores, self.dev, process_group)
        counts = self._counts(self.relation_model, scores, self._threshold(self.relation_model, scores))
        metrics = relation_metrics(counts, novelty=self.relation_model.novelty)
        return {f"dev/{name}": none_if_nan(value) for name, value in metrics.items()}

    def calibrated(self) -> RelationModel:
        """The model with the temperature that fits the dev data best, and the threshold of the best F1."""
        scores = self._scores(self.dev)
        every = np.concatenate(scores)
        is_related = np.array([gold.type != NONE for one in self.dev for gold in one.gold])
        related = partial(_related, every)
        model = replace(self.relation_model, temperature=fit_temperature(related, is_related))
        return replace(model, threshold=self._threshold(model, scores))

    def _scores(self, pairs: Sequence[Pairs]) -> list[Scores]:
        return scored_pairs(self.relation_model, pairs, precision=self.precision)

    def _threshold(self, model: RelationModel, scores: Sequence[Scores]) -> float:
        best = {
            float(least): float(np.nan_to_num(relation_metrics(self._counts(model, scores, least))["f1"]))
            for least in THRESHOLDS
        }
        return max(best, key=lambda least: best[least])

    def _counts(self, model: RelationModel, scores: Sequence[Scores], threshold: float) -> np.ndarray:
        counts = np.zeros((len(LEVELS), 3))
        for one, rows in zip(self.dev, scores, strict=True):
            related = [relation for relation, _ in predicted(model, rows, threshold)]
            counts += count_pairs(one.gold, related, len(one.missed))
        return counts


def _related(scores: Scores, temperature: float) -> Scores:
    """The probability of a relation of each pair, (pairs,)."""
    return 1 - probabilities(scores, temperature)[:, 0]
