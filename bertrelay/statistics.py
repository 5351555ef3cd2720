"""Figures with their uncertainty: correlations, shares, and 95 % bootstrap intervals."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bertrelay.stage import Metrics

Floats = NDArray[np.floating]
Column = NDArray[Any]

RESAMPLES = 1000
INTERVAL = (2.5, 97.5)


def spearman(first: Floats, second: Floats) -> float | None:
    """Spearman's rank correlation, ties at their mean rank; None where one side is constant or shorter than two."""
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    # scipy's own function computes a p-value besides, which costs a bootstrap most of its time.
    return float(np.corrcoef(stats.rankdata(first), stats.rankdata(second))[0, 1])


def pearson(first: Floats, second: Floats) -> float | None:
    """Pearson's correlation; None where one side is constant or shorter than two."""
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(stats.pearsonr(first, second).statistic)


def with_interval(
    name: str, statistic: Callable[..., float | None], *columns: Column, seed: int = 0, resamples: int = RESAMPLES
) -> Metrics:
    """`statistic(*columns)` as `name`, with `name_low` and `name_high`: a 95 % bootstrap interval over the rows.

    Without a figure, or with fewer than two rows, there is no interval.
    """
    figure = statistic(*columns)
    if figure is None or len(columns[0]) < 2:
        return {name: figure}
    generator = np.random.default_rng(seed)
    drawn = [_resampled(statistic, columns, generator) for _ in range(resamples)]
    low, high = np.percentile([value for value in drawn if value is not None], INTERVAL)
    return {name: figure, f"{name}_low": float(low), f"{name}_high": float(high)}


def _resampled(
    statistic: Callable[..., float | None], columns: tuple[Column, ...], generator: np.random.Generator
) -> float | None:
    rows = generator.integers(0, len(columns[0]), len(columns[0]))
    return statistic(*(column[rows] for column in columns))


def share(hits: Floats) -> float | None:
    """The mean of zeros and ones; None of nothing."""
    return float(np.mean(hits)) if len(hits) else None
