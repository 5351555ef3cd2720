"""Unit vectors, and their nearest neighbours in float64."""

import numpy as np

from bertrelay.evaluation.similarity import unit
from students.mining.knn import Neighbours


def drawn(rows, dim=16, seed=0):
    return unit(np.random.default_rng(seed).standard_normal((rows, dim)).astype(np.float32))


def brute_force(queries, corpus, k):
    """The cosines and rows of the nearest, in float64; of equals the lower row."""
    first, second = queries.astype(np.float64), corpus.astype(np.float64)
    lengths = np.linalg.norm(first, axis=1)[:, None] * np.linalg.norm(second, axis=1)
    cosines = (first @ second.T / np.where(lengths > 0, lengths, 1)).round(12)
    rows = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    return Neighbours(np.take_along_axis(cosines, rows, 1), rows)
