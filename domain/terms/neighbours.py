"""The nearest neighbours of every term among the others, by cosine."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import unit
from bertrelay.evaluation.statistics import share, with_interval
from bertrelay.stage import Metrics

BLOCK_CELLS = 4_000_000  # cosines held at once

Vectors = NDArray[np.float32]


class Neighbours(NamedTuple):
    """Of each vector the rows of its neighbours, nearest first, and their cosines; both (n, k)."""

    rows: NDArray[np.int64]
    cosines: NDArray[np.float32]


def nearest_terms(vectors: Vectors, k: int = 5) -> Neighbours:
    """The `k` rows of `vectors` (n, dim) with the largest cosine to each, itself left out.

    All others where they are fewer. Exact, and holds some rows of the cosines at a time.
    Raises RequestError for fewer than two vectors.
    """
    if len(vectors) < 2 or k < 1:
        raise RequestError(f"neighbours: expected two vectors and k = 1 at least, found {len(vectors)} and k = {k}")
    directions, k = unit(vectors), min(k, len(vectors) - 1)
    rows, cosines = np.empty((len(vectors), k), np.int64), np.empty((len(vectors), k), np.float32)
    block = max(1, BLOCK_CELLS // len(vectors))
    for start in range(0, len(vectors), block):
        found = directions[start : start + block] @ directions.T  # (block, n)
        found[np.arange(len(found)), start + np.arange(len(found))] = -np.inf
        best = np.sort(np.argpartition(-found, k - 1, axis=1)[:, :k], axis=1)  # (block, k): of a tie the lowest first
        values = np.take_along_axis(found, best, axis=1)
        order = np.argsort(-values, axis=1, kind="stable")
        rows[start : start + block] = np.take_along_axis(best, order, axis=1)
        cosines[start : start + block] = np.take_along_axis(values, order, axis=1)
    return Neighbours(rows, cosines)


def neighbour_rows(texts: Sequence[str], groups: Sequence[str], found: Neighbours) -> Iterator[tuple[object, ...]]:
    """The table of neighbours, its header first."""
    yield "term", "group", "rank", "neighbour", "neighbour_group", "cosine"
    for term, (rows, cosines) in enumerate(zip(found.rows.tolist(), found.cosines.tolist(), strict=True)):
        for rank, (row, cosine) in enumerate(zip(rows, cosines, strict=True), start=1):
            yield texts[term], groups[term], rank, texts[row], groups[row], f"{cosine:.4f}"


def group_metrics(groups: Sequence[str], found: Neighbours, seed: int) -> Metrics:
    """Which share of the neighbours of a term with a group is of that group, and which one chance would give.

    The interval resamples terms. Nothing where there are fewer than two groups.
    """
    names, numbers, sizes = np.unique(np.array(groups), return_inverse=True, return_counts=True)
    grouped = np.flatnonzero(np.array(groups) != "")
    if np.count_nonzero(names != "") < 2:
        return {}
    same = (numbers[found.rows[grouped]] == numbers[grouped, None]).mean(axis=1)  # (terms with a group,)
    chance = (sizes[numbers[grouped]] - 1) / (len(groups) - 1)
    told = with_interval("terms/same_group", share, same, seed=seed)
    return {**told, "terms/same_group_by_chance": float(chance.mean())}
