"""The stage `domain.relations-evaluate`: scores a trained model on annotated files with their own entities."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.records import Rejects
from bertrelay.device import default_device
from bertrelay.evaluation.statistics import with_intervals
from bertrelay.stage import Metrics, StageContext
from domain.biomedical.calibration import expected_calibration_error
from domain.biomedical.documents.formats import read_sources
from domain.biomedical.documents.jsonl import jsonl_line
from domain.biomedical.relations.data import NONE, Gold, Pairs
from domain.biomedical.relations.metrics import count_pairs, relation_metrics
from domain.biomedical.relations.model import RelationModel, load_model
from domain.biomedical.relations.predict import RelationExtractor, Scores, predicted, probabilities, scored_pairs
from domain.biomedical.relations.settings import RelationEvaluateSettings


def run(settings: RelationEvaluateSettings, context: StageContext) -> Metrics:
    """Writes `relations.jsonl`, the documents with the relations found; only in the main process."""
    precision = context.precision(settings.precision)
    if not context.process_group.is_main:
        return {}
    model = load_model(settings.model, context.cache)
    model.network.to(default_device())
    rejects = Rejects(context.output / "rejects.jsonl", settings.max_rejects)
    pairs = [model.scheme.pairs_of(document) for document in read_sources(settings.test, rejects)]
    model.scheme.check_relations(pairs, "test")
    scores = scored_pairs(model, pairs, precision=precision, batch_tokens=settings.batch_tokens)
    if not context.sensitive:
        extractor = RelationExtractor(model)
        with (context.output / "relations.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(jsonl_line(extractor.related(*one)) for one in zip(pairs, scores, strict=True))
    return evaluate(model, pairs, scores)


def evaluate(model: RelationModel, pairs: Sequence[Pairs], scores: Sequence[Scores]) -> Metrics:
    """Metrics with intervals over documents, beside those of co-occurrence, which relates every pair.

    Co-occurrence gives each pair the most frequent type of the test data, as a new finding.
    """
    related = [[relation for relation, _ in predicted(model, one)] for one in scores]
    kinds = [gold.type for one in pairs for gold in one.gold if gold.type != NONE]
    everything = Gold(max(sorted(set(kinds)), key=kinds.count), True if model.novelty else None)
    guesses = [[everything] * len(one.pairs) for one in pairs]
    metrics: Metrics = {}
    for prefix, relations in (("", related), ("cooccurrence/", guesses)):
        counts = np.array(
            [
                count_pairs(one.gold, predictions, len(one.missed))
                for one, predictions in zip(pairs, relations, strict=True)
            ]
        )  # (documents, levels, 3)
        measured = with_intervals(partial(_weighted_metrics, counts, model.novelty), np.arange(len(pairs)))
        metrics |= {f"{prefix}{name}": value for name, value in measured.items()}
    confidences = np.concatenate([1 - probabilities(one, model.temperature)[:, 0] for one in scores])
    is_related = np.array([gold.type != NONE for one in pairs for gold in one.gold])
    return {
        **metrics,
        "documents": len(pairs),
        "pairs": len(is_related),
        "gold_relations": int(is_related.sum()) + sum(len(one.missed) for one in pairs),
        "relations_beyond_pairs": sum(len(one.missed) for one in pairs),
        "ece": expected_calibration_error(confidences, is_related),
        "threshold": model.threshold,
    }


def _weighted_metrics(
    counts: NDArray[np.int64], novelty: bool, weights: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    """Metrics of documents that count `weights` times, (…, documents).

    counts: (documents, levels, 3).
    """
    return relation_metrics(np.tensordot(weights, counts, 1), novelty=novelty)
