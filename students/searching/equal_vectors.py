"""Rows with equal vectors, which a graph or codes hold once, and which are found together.

Sentences that repeat, and those in which a model sees no difference, such as "Hello" and "hello" for an uncased one,
have equal vectors. Thousands of them would fill each other's links in a graph, and the candidates that are compared
in float32, so that others are not found.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.arrow import Mask
from bertrelay.data.vectors import Vectors, write_array
from bertrelay.files import atomic_write

Rows = NDArray[np.int64]

BLOCK = 16_384
DIRECTIONS, STEP = 4, 1e-4
"""Vectors whose products with so many random directions agree to this step are compared."""
DISTANCE = 1e-5
"""Largest distance between equal vectors: batches of different shapes may round a text's numbers differently."""


@dataclass(frozen=True)
class EqualRows:
    """The rows of each distinct vector; vectors are numbered in the order of their first rows.

    starts: the position in `rows` at which the rows of a vector begin, (distinct + 1,).
    rows: all rows, (n,), those of one vector together and in their order.

    For example, of the vectors [a, b, a] starts are [0, 2, 3] and rows [0, 2, 1].
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

    def among(self, allowed: Mask) -> "EqualRows":
        """Leaves out rows that are not `allowed`, (n,); the numbers of vectors stay, and some have no row then.

        Of the vectors [a, b, a] without row 0, starts are [0, 1, 2] and rows [2, 1].
        """
        inside = allowed[self.rows]
        return EqualRows(np.append(0, np.cumsum(inside))[self.starts], self.rows[inside])

    def spread(self, similarities: Vectors, numbers: Rows, top_k: int) -> tuple[Vectors, Rows]:
        """Gives the first `top_k` rows of the vectors `numbers` (n, found), best first, and similarities: (n, top_k).

        Number -1 is no vector; where there are fewer than `top_k` rows, the rest is row -1 at similarity -inf.

        For example, with the rows 0 and 2 of vector 0, and row 1 of vector 1: numbers [[1, 0]] and top_k = 2 become
        rows [[1, 0]], and with top_k = 3 [[1, 0, 2]].
        """
        top_k = min(top_k, len(self.rows))
        counts = np.where(numbers < 0, 0, self.starts[numbers + 1] - self.starts[numbers])  # (n, found)
        counts = np.minimum(counts, np.maximum(top_k - (np.cumsum(counts, axis=1) - counts), 0))
        per_query, flat = counts.sum(axis=1), counts.ravel()
        query = np.repeat(np.arange(len(numbers)), per_query)  # (total,)
        rank = np.arange(len(query)) - np.repeat(np.cumsum(per_query) - per_query, per_query)
        nth = np.arange(len(query)) - np.repeat(np.cumsum(flat) - flat, flat)  # of the rows of one vector
        spread_rows = np.full((len(numbers), top_k), -1, np.int64)
        spread_rows[query, rank] = self.rows[np.repeat(self.starts[numbers].ravel(), flat) + nth]
        spread_similarities = np.full((len(numbers), top_k), -np.inf, np.float32)
        spread_similarities[query, rank] = np.repeat(similarities.ravel(), flat)
        return spread_similarities, spread_rows


@dataclass(frozen=True)
class DistinctVectors:
    """The distinct ones of `vectors` (n, dim), read as an array (distinct, dim) is."""

    vectors: Vectors
    equal: EqualRows

    def __len__(self) -> int:
        return len(self.equal)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.vectors.shape[1]

    def __getitem__(self, numbers: Any) -> Vectors:
        return np.asarray(self.vectors[self.equal.rows[self.equal.starts[:-1][numbers]]])


@dataclass(frozen=True)
class StackedVectors:
    """Vectors of several parts, one below the other, read by slices and arrays of rows as one array is."""

    parts: Sequence[Vectors | DistinctVectors]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.parts[0].shape[1]

    def __getitem__(self, rows: Any) -> Vectors:
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            blocks = [
                part[max(start - first, 0) : stop - first]
                for first, part in zip(first_rows(self.parts), self.parts, strict=True)
                if start < first + len(part) and first < stop
            ]
            return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        vectors = np.empty((*rows.shape, self.shape[1]), np.float32)
        for first, part in zip(first_rows(self.parts), self.parts, strict=True):
            inside = (rows >= first) & (rows < first + len(part))
            vectors[inside] = part[rows[inside] - first]
        return vectors


AnyVectors = Vectors | DistinctVectors | StackedVectors


def first_rows(parts: Sequence[Vectors | DistinctVectors]) -> list[int]:
    """Lists the row at which each part begins: 0, 3 for parts of 3 and 2 rows."""
    return list(accumulate(map(len, parts[:-1]), initial=0))


def stack(parts: Sequence[Vectors | DistinctVectors]) -> AnyVectors:
    """Stacks parts, (n, dim) each; a single one is returned as it is."""
    return parts[0] if len(parts) == 1 else StackedVectors(parts)


def equal_rows(vectors: Vectors) -> EqualRows | None:
    """Finds the rows of equal vectors among `vectors` (n, dim), which may be memory-mapped; None where all differ."""
    first = _first_rows(vectors)  # (n,)
    rows = np.argsort(first, kind="stable")  # by vector, those of one in their order
    starts = np.flatnonzero(np.diff(first[rows], prepend=-1))
    if len(starts) == len(rows):
        return None
    return EqualRows(np.append(starts, len(rows)), rows)


def write_equal(path: Path, equal: EqualRows | None) -> None:
    """Writes `starts` and `rows`, end to end, as a `.npy`; an empty one where all vectors differ."""
    numbers = np.empty(0, np.int64) if equal is None else np.concatenate([equal.starts, equal.rows])
    with atomic_write(path) as building:
        write_array(building, numbers)


def open_equal(path: Path, rows: int) -> EqualRows | None:
    """Opens the file of `write_equal` for `rows` vectors, mapped from the disk."""
    numbers = np.load(path, mmap_mode="r")
    return EqualRows(numbers[:-rows], numbers[-rows:]) if len(numbers) else None


def numbers_of(vectors: Vectors) -> Rows:
    """Numbers the distinct vectors, and gives the number of each row's, (n,)."""
    equal = equal_rows(vectors)
    return np.arange(len(vectors)) if equal is None else equal.numbers


def distinct(vectors: Vectors, equal: EqualRows | None) -> Vectors | DistinctVectors:
    """Leaves out all but the first row of each vector."""
    return vectors if equal is None else DistinctVectors(vectors, equal)


def _first_rows(vectors: Vectors) -> Rows:
    """Finds the first row that has the vector of each row, (n,)."""
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
