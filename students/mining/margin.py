"""Which sentences of two sides translate one another: pairs scored by the ratio margin, taken best first, one to one.

Artetxe & Schwenk (2019), "Margin-based Parallel Corpus Mining with Multilingual Sentence Embeddings": a cosine says
little alone, as some sentences are near to everything. The margin divides it by how near both are to their neighbours.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertrelay.evaluation.similarity import DIGITS

CHUNK = 1_000_000  # pairs that are Python numbers at once

Rows = NDArray[np.int64]
Scores = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Neighbours(NamedTuple):
    """The k nearest rows of the other side, best first: cosines and row numbers, both (n, k)."""

    cosines: Scores
    rows: Rows


class Pairs(NamedTuple):
    """Pairs of rows with their margins, best first; of a tie, the lower rows first. Each (pairs,)."""

    scores: Scores
    sources: Rows
    targets: Rows

    def where(self, chosen: Mask) -> "Pairs":
        """Those that are `chosen`."""
        return Pairs(self.scores[chosen], self.sources[chosen], self.targets[chosen])


class Quality(NamedTuple):
    """How well the pairs with a score of at least `threshold` meet the true ones."""

    f1: float
    precision: float | None
    recall: float
    threshold: float


def score_pairs(forward: Neighbours, backward: Neighbours) -> Pairs:
    """Every pair of a sentence and one of its k nearest, from both sides, with its ratio margin.

    margin(x, y) = cos(x, y) / (the mean of cos(x, z) over NN_k(x) and of cos(y, z) over NN_k(y), averaged).

    forward: of each source its nearest targets; backward: of each target its nearest sources.
    """
    (source_count, forward_k), (target_count, backward_k) = forward.rows.shape, backward.rows.shape
    sources = np.concatenate([np.repeat(np.arange(source_count), forward_k), backward.rows.ravel()])
    targets = np.concatenate([forward.rows.ravel(), np.repeat(np.arange(target_count), backward_k)])
    _, once = np.unique(sources * target_count + targets, return_index=True)
    sources, targets = sources[once], targets[once]
    cosines = np.concatenate([forward.cosines.ravel(), backward.cosines.ravel()])[once]
    nearness = (forward.cosines.mean(axis=1)[sources] + backward.cosines.mean(axis=1)[targets]) / 2
    # Below zero the ratio would grow with the distance; a sentence that is near to nothing has no translation here.
    scores = np.divide(cosines, nearness, out=np.zeros_like(cosines), where=nearness > 0).round(DIGITS)
    order = np.lexsort((targets, sources, -scores))
    return Pairs(scores[order], sources[order], targets[order])


def one_to_one(pairs: Pairs) -> Pairs:
    """The pairs taken best first, each source and each target at most once."""
    taken = np.zeros(len(pairs.scores), bool)
    free_source = bytearray(b"\1") * (int(pairs.sources.max(initial=-1)) + 1)
    free_target = bytearray(b"\1") * (int(pairs.targets.max(initial=-1)) + 1)
    for start in range(0, len(taken), CHUNK):
        chunk = slice(start, start + CHUNK)
        both = zip(pairs.sources[chunk].tolist(), pairs.targets[chunk].tolist(), strict=True)
        for place, (source, target) in enumerate(both, start):
            if free_source[source] and free_target[target]:
                free_source[source] = free_target[target] = 0
                taken[place] = True
    return pairs.where(taken)


def best_quality(scores: Scores, right: Mask, true_pairs: int) -> Quality:
    """The threshold with the highest F1 among all there are, and the figures at it; of a tie, the highest threshold.

    It stands half way to the next lower score, so that printing it rounds no pair away.

    scores: of the pairs, best first, at least one; right: which of them are true, of `true_pairs` that there are.
    """
    ends = np.flatnonzero(np.append(scores[1:] < scores[:-1], True))  # equal scores are taken together
    f1 = 2 * np.cumsum(right)[ends] / (ends + 1 + true_pairs)
    last = int(ends[np.argmax(f1)])
    threshold = float(scores[last : last + 2].mean())
    return quality_at(threshold, scores, right, true_pairs)


def quality_at(threshold: float, scores: Scores, right: Mask, true_pairs: int) -> Quality:
    """The figures of the pairs with a score of at least `threshold`; precision is None where there are none."""
    taken = scores >= threshold
    found, count = int(right[taken].sum()), int(taken.sum())
    precision = found / count if count else None
    return Quality(2 * found / (count + true_pairs), precision, found / true_pairs, threshold)
