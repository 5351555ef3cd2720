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
LEAST_SHARE = 0.5
"""Of the resamples, how many must have a figure: the interval of the few that have one would tell of nothing else."""


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
    name: str,
    statistic: Callable[..., float | None],
    *columns: Column,
    groups: Column | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Metrics:
    """`statistic(*columns)` as `name`, with `name_low` and `name_high`: a 95 % bootstrap interval over the rows.

    groups: what each row belongs to, (rows,); every resample then has as many rows of each group as there are.
    Without a figure, with fewer than two rows, or when fewer than half of the resamples have a figure, there is no
    interval.
    """
    figure = statistic(*columns)
    if figure is None or len(columns[0]) < 2:
        return {name: figure}
    members = _members(np.zeros(len(columns[0])) if groups is None else groups)
    generator = np.random.default_rng(seed)
    drawn = [_resampled(statistic, columns, members, generator) for _ in range(resamples)]
    known = [value for value in drawn if value is not None]
    if len(known) < LEAST_SHARE * resamples:
        return {name: figure}
    low, high = np.percentile(known, INTERVAL)
    return {name: figure, f"{name}_low": float(low), f"{name}_high": float(high)}


def _members(groups: Column) -> list[NDArray[np.intp]]:
    """The rows of each group."""
    return [np.flatnonzero(groups == group) for group in np.unique(groups)]


def _resampled(
    statistic: Callable[..., float | None],
    columns: tuple[Column, ...],
    members: list[NDArray[np.intp]],
    generator: np.random.Generator,
) -> float | None:
    rows = np.concatenate([rows[generator.integers(0, len(rows), len(rows))] for rows in members])
    return statistic(*(column[rows] for column in columns))


def share(hits: Floats) -> float | None:
    """The mean of zeros and ones; None of nothing."""
    return float(np.mean(hits)) if len(hits) else None
