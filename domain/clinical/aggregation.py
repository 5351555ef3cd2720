"""The probability of an admission from those of its chunks.

For an admission with n chunks, Huang, Altosaar & Ranganath (2019, equation 4) put

    probability = (largest + mean · n/c) / (1 + n/c)

so that the largest of many chunks counts for less, as chance by itself makes it large. Chunks of an admission need not
be neighbours: `admissions` has the admission of each, by numbers from 0.
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
    """The probability of each of `count` admissions, (count,), from those of chunks, (chunks,); nan without chunks.

    Chunks of 0.2 and 0.8 with c = 2 give (0.8 + 0.5 · 2/2) / (1 + 2/2) = 0.65.
    """
    contributed = contributions(probabilities, admissions, count, aggregation, c)
    sums = np.bincount(admissions, contributed, count)
    return np.where(np.bincount(admissions, minlength=count) > 0, sums, np.nan)


def aggregate_labels(
    probabilities: NDArray[np.floating], admissions: Integers, count: int, description: ModelDescription
) -> Floats:
    """The probability of each label, (count, labels), from those of chunks, (chunks, labels), label by label.

    Where exactly one label is true, those of an admission are divided by their sum.
    """
    aggregation, c = description.aggregation, description.c
    of_labels = [aggregate(of_label, admissions, count, aggregation, c) for of_label in probabilities.T]
    by_label = np.stack(of_labels, axis=1)  # (count, labels)
    return by_label / by_label.sum(axis=1, keepdims=True) if description.outcome.kind == "multi-class" else by_label


def contributions(
    probabilities: NDArray[np.floating],
    admissions: Integers,
    count: int,
    aggregation: AggregationName = "max_and_mean",
    c: float = PAPERS_C,
) -> Floats:
    """The contribution of each chunk to its admission's probability, (chunks,): its weight times its probability.

    Those of an admission add up to its probability. Of equally large chunks the first one counts as the largest.
    """
    n = np.bincount(admissions, minlength=count)[admissions]  # chunks of the same admission, (chunks,)
    nothing, one = np.zeros(len(n)), np.ones(len(n))
    weights, of_largest = {
        "max": (nothing, one),
        "mean": (1 / n, nothing),
        # (largest + mean·n/c) / (1 + n/c): each chunk has 1/n of the mean, so (n/c)/n = 1/c of it
        "max_and_mean": ((1 / c) / (1 + n / c), 1 / (1 + n / c)),
    }[aggregation]
    order = np.lexsort((-probabilities, admissions))
    largest = order[np.flatnonzero(np.diff(admissions[order], prepend=-1))]
    weights[largest] += of_largest[largest]
    return weights * probabilities


def choose_c(score: Callable[[float], float | None]) -> float:
    """The choice of c that scores highest; the first of equals, and where nothing can be scored."""
    scores = [-np.inf if (value := score(c)) is None else value for c in CHOICES_OF_C]
    return CHOICES_OF_C[int(np.argmax(scores))]
