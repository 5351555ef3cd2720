"""95 % intervals of figures by resampling subjects, as the stays of one subject are not independent.

A resample is a row of weights: how often each admission is in it. All figures of a set see the same resamples.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertrelay.evaluation.statistics import INTERVAL, RESAMPLES
from bertrelay.stage import Metrics
from domain.clinical.metrics import Floats, known

WEIGHTS_AT_ONCE = 1_000_000
SHARE_WITH_A_FIGURE = 0.5
"""Of the resamples, so many must have a figure for it to have an interval."""

FiguresOf = Callable[[Floats], Mapping[str, Floats]]
"""Weights (…, admissions) to figures by name, each (…,); nan where not defined."""


def with_intervals(
    figures_of: FiguresOf,
    subjects: NDArray[Any],
    *,
    distances: Collection[str] = (),
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Metrics:
    """The figures of all admissions, and `_low` and `_high` of each: percentiles over resamples of `subjects`.

    subjects: whose each admission is, (admissions,). What is not defined is None and has no interval.
    distances: figures that are 0 at best and that noise makes larger; see `of_distance`.
    """
    drawn = [figures_of(weights) for weights in resampled(subjects, seed, resamples)]
    metrics: Metrics = {}
    for name, figure in figures_of(np.ones(len(subjects))).items():
        metrics[name] = known(figure)
        values = np.concatenate([each[name] for each in drawn]) if drawn else np.zeros(0)
        values = values[~np.isnan(values)]
        if metrics[name] is not None and len(values) > SHARE_WITH_A_FIGURE * resamples:
            low, high = np.percentile(values, INTERVAL)
            if name in distances:
                low, high = of_distance(float(figure), low, high)
            metrics |= {f"{name}_low": float(low), f"{name}_high": float(high)}
    return metrics


def of_distance(figure: float, low: float, high: float) -> tuple[float, float]:
    """The interval of a distance, which is 0 at best and which noise makes larger, from percentiles of resamples.

    A resample has the noise of the sample and as much again, so that its distance is too large twice over; of distance
    and noise it is the squares that add up. So this is the basic interval of the square (Davison & Hinkley 1997,
    section 5.2), cut off at 0; it never leaves out the figure itself.
    """
    squares = 2 * figure**2 - np.square([high, low])
    lowest, highest = np.sqrt(np.clip(squares, 0, None))
    return min(float(lowest), figure), max(float(highest), figure)


def resampled(subjects: NDArray[Any], seed: int, resamples: int = RESAMPLES) -> Iterator[Floats]:
    """Blocks of resamples, each (some, admissions): how often the subject of each admission was drawn.

    Nothing of fewer than two subjects, which tell nothing of how much they differ.
    """
    names, numbers = np.unique(subjects, return_inverse=True)
    if len(names) < 2:
        return
    generator = np.random.default_rng(seed)
    at_once = max(1, WEIGHTS_AT_ONCE // len(subjects))
    for first in range(0, resamples, at_once):
        rows = min(at_once, resamples - first)
        draws = generator.integers(0, len(names), (rows, len(names)))
        places = (draws + np.arange(rows)[:, None] * len(names)).ravel()
        counts = np.bincount(places, minlength=rows * len(names)).reshape(rows, len(names))
        yield counts[:, numbers].astype(np.float64)
