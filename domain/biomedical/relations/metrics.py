"""Precision, recall and F1 of relations at the levels of BioRED: the pair, its type, its novelty, and all.

Counts are over all documents (micro). A pair counts once, the order of its arguments alone where the corpus says so.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bertrelay.evaluation.statistics import ratio
from domain.biomedical.documents.score import LEVELS, parts_at
from domain.biomedical.relations.data import NONE, Gold


def count_pairs(gold: Sequence[Gold], predicted: Sequence[Gold], missed: int = 0) -> NDArray[np.int64]:
    """True positives, false positives and false negatives of a document's pairs at each level, (levels, 3).

    missed: gold relations that no pair stands for.
    """
    counts = np.zeros((len(LEVELS), 3), np.int64)
    counts[:, 2] = missed
    for annotated, relation in zip(gold, predicted, strict=True):
        is_gold, is_predicted = annotated.type != NONE, relation.type != NONE
        for row, level in enumerate(LEVELS):
            is_right = is_gold and is_predicted and parts_at(level, *annotated) == parts_at(level, *relation)
            counts[row] += is_right, is_predicted and not is_right, is_gold and not is_right
    return counts


def relation_metrics(counts: NDArray[np.number], *, novelty: bool = True) -> dict[str, NDArray[np.float64]]:
    """Metrics of counts summed over documents, (…, levels, 3), each (…,), nan where not defined.

    Those of the type have no prefix. novelty: the corpus has it.
    """
    metrics: dict[str, NDArray[np.float64]] = {}
    for row, name in enumerate(LEVELS):
        if novelty or name in ("pair", "type"):
            right, wrong, missed = np.moveaxis(counts[..., row, :], -1, 0)
            prefix = "" if name == "type" else f"{name}/"
            metrics |= {
                f"{prefix}precision": ratio(right, right + wrong),
                f"{prefix}recall": ratio(right, right + missed),
                f"{prefix}f1": ratio(2 * right, 2 * right + wrong + missed),
            }
    return metrics
