"""Similarity of vectors: row by row, all with all, and ranks of the nearest."""

from collections.abc import Callable
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from bertrelay.checks import check_choice
from bertrelay.data.vectors import Vectors
from bertrelay.errors import RequestError
from bertrelay.settings import Metric
from bertrelay.stage import Metrics

METRICS: tuple[Metric, ...] = get_args(Metric)

# Equal vectors in different columns of a matrix product may differ in their last bits. Cosines closer than this are a
# tie, or the winner among equal sentences would depend on the blocking and the processor.
ROUNDING = 1e-6
DIGITS = 12  # of a cosine in float64: beyond them equal vectors differ


def numbers(vectors: Vectors) -> Vectors:
    """`vectors` in float32, of a tensor too. Raises RequestError for what holds no numbers, such as sentences."""
    if hasattr(vectors, "detach"):  # of torch, which NumPy reads neither in bf16 nor where it has a gradient
        vectors = vectors.detach().float().cpu()
    try:
        return np.asarray(vectors, dtype=np.float32)
    except (TypeError, ValueError):  # their messages quote the sentence
        raise RequestError(f"expected vectors (n, dim), found no numbers in {type(vectors).__name__}") from None


def unit(vectors: Vectors) -> Vectors:
    """`vectors` (n, dim) at length one; a zero vector stays zero, so that its cosine with anything is 0."""
    vectors = numbers(vectors)
    lengths: Vectors = np.linalg.norm(vectors, axis=-1, keepdims=True)  # (n, 1)
    lengths[lengths == 0] = 1
    return vectors / lengths


def pairwise(first: Vectors, second: Vectors, metric: Metric = "cosine") -> Vectors:
    """Similarity (n,) of row i of `first` (n, dim) with row i of `second` (n, dim); distances are negative."""
    check_choice("metric", metric, METRICS)
    first, second = numbers(first), numbers(second)
    if first.shape != second.shape:
        raise RequestError(
            f"pairs need two equal shapes, found {first.shape} and {second.shape}; for all with all use `matrix`"
        )
    return _PAIRWISE[metric](first, second).astype(np.float32)


def cosine_metrics(first: Vectors, second: Vectors) -> Metrics:
    """The mean and the lowest cosine of row i of `first` (n, dim) with row i of `second` (n, dim)."""
    cosines = np.minimum(pairwise(first, second), 1)  # (n,); rounding goes beyond
    return {"cosine_mean": float(cosines.mean(dtype=np.float64)), "cosine_min": float(cosines.min())}


def matrix(first: Vectors, second: Vectors, metric: Metric = "cosine", block: int = 1024) -> Vectors:
    """Similarity (n, m) of every row of `first` (n, dim) with every row of `second` (m, dim); distances are negative.

    Beside the result, no more than `block` rows are worked on at once.
    """
    check_choice("metric", metric, METRICS)
    similarities = np.empty((len(first), len(second)), dtype=np.float32)
    for start in range(0, len(first), block):
        rows = slice(start, start + block)
        similarities[rows] = _MATRIX[metric](numbers(first[rows]), numbers(second))
    return similarities


def is_among_nearest(
    queries: Vectors, corpus: Vectors, targets: NDArray[np.int64] | None = None, top_k: int = 1, block: int = 1024
) -> NDArray[np.bool_]:
    """True for each query (n,) whose row `targets` (n,) of `corpus` (m, dim) is among the `top_k` largest cosines.

    A tie with the k-th row counts, as among equal vectors none is nearer. A query as near to all rows, such as a zero
    vector, has none of them. Query (1, 0) with target 1 of rows (0, 1), (1, 1): the cosines are 0 and .71, so True.
    targets: row i for query i when absent. Holds one (block, block) matrix at a time.
    """
    nearer, farther = _compared(queries, corpus, np.arange(len(queries)) if targets is None else targets, block)
    return (nearer < top_k) & ((nearer + farther > 0) | (len(corpus) <= top_k))


def chance_of_own(
    queries: Vectors, corpus: Vectors, copies: NDArray[np.int64], block: int = 1024
) -> NDArray[np.float64]:
    """The probability (n,) that the nearest row, drawn from those as near, is row i for query i or one of its copies.

    It is 0 for a query as near to all rows, such as a zero vector.
    copies: rows of the same text as row i, itself among them, (n,).
    """
    nearer, farther = _compared(queries, corpus, np.arange(len(queries)), block)
    is_nearest = (nearer == 0) & ((farther > 0) | (len(corpus) == 1))
    chances: NDArray[np.float64] = np.where(is_nearest, np.minimum(1, copies / (len(corpus) - nearer - farther)), 0)
    return chances


def _compared(
    queries: Vectors, corpus: Vectors, targets: NDArray[np.int64], block: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers of rows of `corpus` nearer to every query than its target, and farther, (n,) each."""
    nearer, farther = np.zeros((2, len(queries)), np.int64)
    for top in range(0, len(queries), block):
        some = slice(top, top + block)
        rows, target_rows = unit(queries[some]), unit(corpus[targets[some]])
        target_cosines = np.einsum("nd,nd->n", rows, target_rows)[:, None]  # (rows, 1)
        for start in range(0, len(corpus), block):
            apart = rows @ unit(corpus[start : start + block]).T - target_cosines  # (rows, corpus block)
            nearer[some] += (apart > ROUNDING).sum(axis=1)
            farther[some] += (apart < -ROUNDING).sum(axis=1)
    return nearer, farther


# Distances are taken from 0: a minus would make "-0.0".
_PAIRWISE: dict[Metric, Callable[[Vectors, Vectors], NDArray[np.floating]]] = {
    "cosine": lambda first, second: np.einsum("nd,nd->n", unit(first), unit(second)),
    "dot": lambda first, second: np.einsum("nd,nd->n", first, second),
    "euclidean": lambda first, second: 0 - np.linalg.norm(first - second, axis=1),
    "manhattan": lambda first, second: 0 - np.abs(first - second).sum(axis=1),
}

_MATRIX: dict[Metric, Callable[[Vectors, Vectors], NDArray[np.floating]]] = {
    "cosine": lambda first, second: unit(first) @ unit(second).T,
    "dot": lambda first, second: first @ second.T,
    "euclidean": lambda first, second: 0 - cdist(first, second, "euclidean"),
    "manhattan": lambda first, second: 0 - cdist(first, second, "cityblock"),
}
