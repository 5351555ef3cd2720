"""Aggregates the probabilities of an admission's chunks to its own, P.

For an admission with n chunks, Huang, Altosaar & Ranganath (2019, equation 4) put

    P = (P_max + P_mean · n/c) / (1 + n/c)

so that the largest of many chunks counts for less, as chance alone makes it large. Chunks of an admission need not be
neighbours: `admissions` has the admission of each, by numbers from 0.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from domain.clinical.settings import PAPERS_C, AggregationName, ModelDescription

Floats = NDArray[np.float64]
Integers = NDArray[np.integer]

CHOICES_OF_C = (PAPERS_C, 1.0, 4.0, 0.5, 8.0, 0.25, 16.0, 32.0)
"""The paper's first: it stays where no other is better."""


def aggregate(
    probabilities: NDArray[np.floating],
    admissions: Integers,
    count: int,
    aggregation: AggregationName = "max_and_mean",
    c: float = PAPERS_C,
) -> Floats:
    """P of each of `count` admissions, (count,), from those of chunks, (chunks,); nan where there is no chunk."""
    contributed = contributions(probabilities, admissions, count, aggregation, c)
    sums = np.bincount(admissions, contributed, count)
    return np.where(np.bincount(admissions, minlength=count) > 0, sums, np.nan)


def aggregate_labels(
    probabilities: NDArray[np.floating], admissions: Integers, count: int, description: ModelDescription
) -> Floats:
    """P of each label, (count, labels), from those of chunks, (chunks, labels): the formula, label by label.

    Where exactly one label is true, those of an admission are divided by their sum.
    """
    aggregation, c = description.aggregation, description.c
    of_labels = [aggregate(of_label, admissions, count, aggregation, c) for of_label in probabilities.T]
    found = np.stack(of_labels, axis=1)
    return found / found.sum(axis=1, keepdims=True) if description.outcome.kind == "multi-class" else found


def contributions(
    probabilities: NDArray[np.floating],
    admissions: Integers,
    count: int,
    aggregation: AggregationName = "max_and_mean",
    c: float = PAPERS_C,
) -> Floats:
    """What each chunk contributes to its admission's P, (chunks,): its weight times its probability.

    Those of an admission add up to its P. Of equally large chunks the first one counts as the largest.
    """
    n = np.bincount(admissions, minlength=count)[admissions]  # chunks of the same admission, (chunks,)
    nothing, one = np.zeros(len(n)), np.ones(len(n))
    weights, of_largest = {
        "max": (nothing, one),
        "mean": (1 / n, nothing),
        # (P_max + P_mean·n/c) / (1 + n/c): each chunk has 1/n of P_mean, so (n/c)/n = 1/c of it
        "max_and_mean": ((1 / c) / (1 + n / c), 1 / (1 + n / c)),
    }[aggregation]
    order = np.lexsort((-probabilities, admissions))
    largest = order[np.flatnonzero(np.diff(admissions[order], prepend=-1))]
    weights[largest] += of_largest[largest]
    return weights * probabilities


def choose_c(score: Callable[[float], float | None]) -> float:
    """Of `CHOICES_OF_C` the one that scores highest; the first of equals, and where nothing can be scored."""
    known = [-np.inf if (value := score(c)) is None else value for c in CHOICES_OF_C]
    return CHOICES_OF_C[int(np.argmax(known))]
