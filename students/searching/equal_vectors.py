"""Rows that have one vector: a graph links it once, codes have it once, and whoever finds it finds all its rows.

Sentences that repeat, and those in which a model sees no difference, such as "Hello" and "hello" for an uncased one,
have equal vectors. Thousands of them would fill each other's links in a graph, and the candidates that are compared
again, so that others are not found.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.vectors import Vectors

Rows = NDArray[np.int64]

BLOCK = 16_384
DIRECTIONS, STEP = 4, 1e-4
"""Vectors whose products with so many random directions agree to this step are compared."""
DISTANCE = 1e-5
"""Between equal vectors: batches of different shapes may round a text's numbers differently."""


@dataclass(frozen=True)
class EqualRows:
    """The rows of each distinct vector, numbered by its first row.

    starts: where the rows of a vector begin in `rows`, (distinct + 1,).
    rows: all rows, (n,), those of one vector together and in their order.
    """

    starts: Rows
    rows: Rows

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def numbers(self) -> Rows:
        """The number of the vector of each row, (n,)."""
        numbers = np.empty(len(self.rows), np.int64)
        numbers[self.rows] = np.repeat(np.arange(len(self)), np.diff(self.starts))
        return numbers

    def spread(self, similarities: Vectors, numbers: Rows, k: int) -> tuple[Vectors, Rows]:
        """The first `k` rows of the vectors `numbers` (n, found), best first, and their similarities: (n, k) both.

        A number of −1 stands for none; where there are fewer than `k` rows, the rest is row −1.
        For example with the rows 0 and 2 of vector 0, and row 1 of vector 1: numbers [[1, 0]] and k = 2 are rows
        [[1, 0]], and with k = 3 [[1, 0, 2]].
        """
        k = min(k, len(self.rows))
        counts = np.where(numbers < 0, 0, self.starts[numbers + 1] - self.starts[numbers])  # (n, found)
        counts = np.minimum(counts, np.maximum(k - (np.cumsum(counts, axis=1) - counts), 0))
        per_query, flat = counts.sum(axis=1), counts.ravel()
        query = np.repeat(np.arange(len(numbers)), per_query)  # (total,)
        position = np.arange(len(query)) - np.repeat(np.cumsum(per_query) - per_query, per_query)
        nth = np.arange(len(query)) - np.repeat(np.cumsum(flat) - flat, flat)  # of the rows of one vector
        found = np.full((len(numbers), k), -1, np.int64)
        found[query, position] = self.rows[np.repeat(self.starts[numbers].ravel(), flat) + nth]
        nearness = np.full((len(numbers), k), -np.inf, np.float32)
        nearness[query, position] = np.repeat(similarities.ravel(), flat)
        return nearness, found


@dataclass(frozen=True)
class DistinctVectors:
    """The first of each of `equal` rows of `vectors` (n, dim), read as an array (distinct, dim) is."""

    vectors: Vectors
    equal: EqualRows

    def __len__(self) -> int:
        return len(self.equal)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.vectors.shape[1]

    def __getitem__(self, numbers: Any) -> Vectors:
        return np.asarray(self.vectors[self.equal.rows[self.equal.starts[:-1][numbers]]])


AnyVectors = Vectors | DistinctVectors


def equal_rows(vectors: Vectors) -> EqualRows | None:
    """The rows of equal vectors among `vectors` (n, dim), which may be memory-mapped; None where all are distinct."""
    first = _first_rows(vectors)  # (n,)
    rows = np.argsort(first, kind="stable")  # by vector, those of one in their order
    starts = np.flatnonzero(np.diff(first[rows], prepend=-1))
    if len(starts) == len(rows):
        return None
    return EqualRows(np.append(starts, len(rows)), rows)


def numbers_of(vectors: Vectors) -> Rows:
    """The number of the distinct vector of each row, (n,)."""
    equal = equal_rows(vectors)
    return np.arange(len(vectors)) if equal is None else equal.numbers


def distinct(vectors: Vectors, equal: EqualRows | None) -> AnyVectors:
    """Each distinct one of `vectors` once."""
    return vectors if equal is None else DistinctVectors(vectors, equal)


def _first_rows(vectors: Vectors) -> Rows:
    """The first row that has the vector of each row, (n,)."""
    count, dim = vectors.shape
    directions = np.random.default_rng(0).standard_normal((dim, DIRECTIONS))
    directions /= np.linalg.norm(directions, axis=0)
    keys = np.empty(count, np.int64)
    for start in range(0, count, BLOCK):
        steps = np.rint(vectors[start : start + BLOCK].astype(np.float64) @ directions / STEP).astype(np.int64)
        keys[start : start + BLOCK] = ((steps[:, 0] << 48) ^ (steps[:, 1] << 32)) ^ ((steps[:, 2] << 16) ^ steps[:, 3])
    _, first, key_of = np.unique(keys, return_index=True, return_inverse=True)
    first_of = first[key_of]
    later = np.flatnonzero(first_of != np.arange(count))
    for start in range(0, len(later), BLOCK):
        rows = later[start : start + BLOCK]
        apart = np.linalg.norm(vectors[rows] - vectors[first_of[rows]], axis=1) > DISTANCE
        first_of[rows[apart]] = rows[apart]
    return first_of.astype(np.int64)
