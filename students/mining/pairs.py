"""Pairs of source and target sentences, scored by ratio margin and taken best first, one to one.

Artetxe & Schwenk (2019), "Margin-based Parallel Corpus Mining with Multilingual Sentence Embeddings": a cosine alone
means little, as some sentences are near to everything. The margin divides it by the nearness of both sentences to their
neighbours.
"""

from typing import NamedTuple

import numpy as np

from bertrelay.data.arrow import Mask
from students.mining.knn import Neighbours, Scores, ratio_margins
from students.searching.equal_vectors import Rows

CHUNK = 1_000_000  # pairs converted to Python numbers at once


class Pairs(NamedTuple):
    """Pairs of rows with their margins, best first; of a tie, the lower rows first. Each (pairs,)."""

    scores: Scores
    sources: Rows
    targets: Rows

    def where(self, selected: Mask) -> "Pairs":
        return Pairs(self.scores[selected], self.sources[selected], self.targets[selected])


def score_pairs(forward: Neighbours, backward: Neighbours) -> Pairs:
    """Scores every pair of a sentence and one of its k nearest, in both directions, once.

    forward: the nearest targets of each source. backward: the nearest sources of each target.

    Example: two sources, two targets, k = 1. Source 0 is nearest to target 0 (cosine 0.9), source 1 to target 0 (0.6);
    target 0 to source 0, target 1 to source 1 (0.5). The pairs and their margins are

        (0, 0)   0.9 / ((0.9 + 0.9) / 2) = 1.00
        (1, 1)   0.5 / ((0.6 + 0.5) / 2) = 0.91
        (1, 0)   0.6 / ((0.6 + 0.9) / 2) = 0.80
    """
    (source_count, forward_k), (target_count, backward_k) = forward.rows.shape, backward.rows.shape
    sources = np.concatenate([np.repeat(np.arange(source_count), forward_k), backward.rows.ravel()])
    targets = np.concatenate([forward.rows.ravel(), np.repeat(np.arange(target_count), backward_k)])
    _, once = np.unique(sources * target_count + targets, return_index=True)
    sources, targets = sources[once], targets[once]
    cosines = np.concatenate([forward.cosines.ravel(), backward.cosines.ravel()])[once]
    nearness = (forward.cosines.mean(axis=1)[sources] + backward.cosines.mean(axis=1)[targets]) / 2
    scores = ratio_margins(cosines, nearness)
    order = np.lexsort((targets, sources, -scores))
    return Pairs(scores[order], sources[order], targets[order])


def one_to_one(pairs: Pairs) -> Pairs:
    """Takes pairs best first, each source and each target at most once.

    Of the three pairs in the example of `score_pairs` it takes (0, 0) and (1, 1).
    """
    taken = np.zeros(len(pairs.scores), bool)
    free_source = bytearray(b"\1") * (int(pairs.sources.max(initial=-1)) + 1)
    free_target = bytearray(b"\1") * (int(pairs.targets.max(initial=-1)) + 1)
    for start in range(0, len(taken), CHUNK):
        chunk = slice(start, start + CHUNK)
        rows = zip(pairs.sources[chunk].tolist(), pairs.targets[chunk].tolist(), strict=True)
        for position, (source, target) in enumerate(rows, start):
            if free_source[source] and free_target[target]:
                free_source[source] = free_target[target] = 0
                taken[position] = True
    return pairs.where(taken)
