"""Statistics with their uncertainty: correlations, proportions, and 95 % bootstrap intervals."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from bertrelay.blocks import blocks_of
from bertrelay.stage import Metrics

Floats = NDArray[np.floating]
Rows = NDArray[np.intp]
Column = NDArray[Any]
MetricsOfWeights = Callable[[NDArray[np.float64]], Mapping[str, NDArray[np.float64]]]
"""Weights (…, rows) to metrics by name, each (…,); nan where not defined."""

RESAMPLES = 1000
INTERVAL = (2.5, 97.5)
LEAST_FRACTION = 0.5
"""The fraction of resamples that must have a value, as an interval of the few that have one would mislead."""
WEIGHTS_AT_ONCE = 1_000_000


def spearman(first: Floats, second: Floats) -> float | None:
    """Spearman's rank correlation, ties at their mean rank; None where one column is constant or shorter than two."""
    return pearson(rankdata(first), rankdata(second))


def pearson(first: Floats, second: Floats) -> float | None:
    """Pearson's correlation; None where one column is constant or shorter than two."""
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    # scipy's own functions also compute a p-value, which takes most of the time of a bootstrap.
    return float(np.corrcoef(first, second)[0, 1])


def weighted_spearman(first: Floats, second: Floats) -> Callable[[NDArray[np.float64]], float]:
    """A function from weights (rows,) to Spearman's correlation of two columns whose row i counts `weights[i]` times.

    With equal weights it is `spearman`; it is nan where a column is constant. For many resamples of the same columns.
    """
    columns = [np.unique(column, return_inverse=True)[1] for column in (first, second)]  # equal values, equal numbers

    def correlation(weights: NDArray[np.float64]) -> float:
        centred, squares, total = [], [], weights.sum()
        for numbers in columns:
            counts = np.bincount(numbers, weights)
            ranks = np.cumsum(counts) - (counts + total) / 2  # mean ranks of ties; their mean over all rows is 0
            centred.append(ranks[numbers])
            squares.append(float(counts @ ranks**2))
        spread = np.sqrt(squares[0] * squares[1]) if len(first) else 0.0
        return float((weights * centred[0]) @ centred[1] / spread) if spread else np.nan

    return correlation


def share(hits: Floats) -> float | None:
    """The mean of zeros and ones; None for an empty list."""
    return float(np.mean(hits)) if len(hits) else None


def ratio(parts: NDArray[np.float64], wholes: NDArray[np.float64]) -> NDArray[np.float64]:
    """`parts` / `wholes`, and nan where a whole is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(wholes > 0, parts / wholes, np.nan)


def none_if_nan(value: NDArray[np.float64] | float) -> float | None:
    """A single metric; None where it is not defined."""
    return None if np.isnan(value) else float(value)


def with_interval(
    name: str,
    statistic: Callable[..., float | None],
    *columns: Column,
    groups: Column | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Metrics:
    """`statistic(*columns)` as `name`, with `name_low` and `name_high`: a 95 % bootstrap interval over the rows.

    groups: the stratum of each row, (rows,); a resample then has as many rows of a stratum as the data.
    The interval is absent without a value, with fewer than two rows, or if fewer than half of the resamples have one.
    """
    value = statistic(*columns)
    if value is None or len(columns[0]) < 2:
        return {name: value}
    strata = np.zeros(len(columns[0])) if groups is None else groups
    members = [np.flatnonzero(strata == stratum) for stratum in np.unique(strata)]
    drawn = [statistic(*(column[rows] for column in columns)) for rows in _resampled_rows(members, seed, resamples)]
    return _with_bounds(name, value, np.array([np.nan if other is None else other for other in drawn]), resamples)


def with_intervals(
    metrics_of: MetricsOfWeights,
    units: Column,
    *,
    distances: Collection[str] = (),
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Metrics:
    """All metrics of `metrics_of` with 95 % bootstrap intervals over `units`, from the same resamples for all of them.

    units: the unit of each row that is resampled as a whole, such as a subject, whose rows depend on another, (rows,).
    A metric that is not defined is None and has no interval.
    distances: metrics that are 0 at best and that noise makes larger; see `distance_interval`.
    """
    drawn = [metrics_of(weights) for weights in resampled_weights(units, seed, resamples)]
    metrics: Metrics = {}
    for name, metric in metrics_of(np.ones(len(units))).items():
        values = np.concatenate([np.zeros(0), *(block[name] for block in drawn)])
        metrics |= _with_bounds(name, none_if_nan(metric), values, resamples, name in distances)
    return metrics


def resampled_weights(units: Column, seed: int, resamples: int = RESAMPLES) -> Iterator[NDArray[np.float64]]:
    """Yields blocks of resamples (resamples, rows): the number of times that the unit of a row was drawn.

    Yields nothing for fewer than two units, which have no spread. Units a, a, b, drawn as (b, b), have the weights
    (0, 0, 2).
    """
    names, numbers = np.unique(units, return_inverse=True)
    if len(names) < 2:
        return
    draws = _resampled_rows([np.arange(len(names))], seed, resamples)
    for block in blocks_of(draws, max(1, WEIGHTS_AT_ONCE // len(units))):
        counts = np.stack([np.bincount(drawn, minlength=len(names)) for drawn in block])
        yield counts[:, numbers].astype(np.float64)


def distance_interval(value: float, low: float, high: float) -> tuple[float, float]:
    """The interval of a distance, which is 0 at best and which noise makes larger, from percentiles of resamples.

    Sampling noise biases the distance of the sample upward, and that of a resample by as much once more; squares of
    distance and noise add up. So this is the basic interval of the square (Davison & Hinkley 1997, section 5.2), cut
    off at 0; it always contains the value. (3, 2, 5) gives squares 18 − 25 and 18 − 4, so (0, 3.74).
    """
    squares = 2 * value**2 - np.square([high, low])
    lowest, highest = np.sqrt(np.clip(squares, 0, None))
    return min(float(lowest), value), max(float(highest), value)


def _resampled_rows(members: Sequence[Rows], seed: int, resamples: int) -> Iterator[Rows]:
    """The rows of each resample; members: the rows of each stratum."""
    generator = np.random.default_rng(seed)
    for _ in range(resamples):
        yield np.concatenate([rows[generator.integers(0, len(rows), len(rows))] for rows in members])


def _with_bounds(name: str, value: float | None, drawn: Floats, resamples: int, is_distance: bool = False) -> Metrics:
    """The value and the percentiles of the resamples' values `drawn`, (resamples,), nan where not defined."""
    defined = drawn[~np.isnan(drawn)]
    if value is None or not len(defined) or len(defined) < LEAST_FRACTION * resamples:
        return {name: value}
    low, high = np.percentile(defined, INTERVAL)
    if is_distance:
        low, high = distance_interval(value, low, high)
    return {name: value, f"{name}_low": float(low), f"{name}_high": float(high)}
