"""How well probabilities predict an outcome: AUROC, average precision, recall at a precision, alarm threshold.

Every metric takes weights, (…, admissions), and gives a value for each row of them. A resample of a bootstrap is such
a row, so that a thousand of them cost one sort of the probabilities.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from bertrelay.evaluation.statistics import none_if_nan, ratio

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

PRECISION = 0.8
"""Of RP80: recall where at most one alarm in five is false."""
CONFIDENCE = 0.95


class Ranking:
    """Admissions from the highest probability down; those of equal probability are one step.

    thresholds: the probability of each step, falling, (steps,).
    """

    def __init__(self, probabilities: Floats, outcomes: Flags) -> None:
        self._order = np.argsort(-probabilities, kind="stable")
        falling = probabilities[self._order]
        self._positive = outcomes[self._order].astype(np.float64)
        self._ends = np.flatnonzero(np.append(falling[1:] != falling[:-1], True)[: len(falling)])
        self.thresholds: Floats = falling[self._ends]

    def counts(self, weights: Floats) -> tuple[Floats, Floats]:
        """True and false positives when the alarm is raised down to each step, both (…, steps)."""
        ordered = weights[..., self._order]
        raised = np.cumsum(ordered, axis=-1)[..., self._ends]
        hits = np.cumsum(ordered * self._positive, axis=-1)[..., self._ends]
        return hits, raised - hits


def auroc(hits: Floats, misses: Floats) -> Floats:
    """The share of pairs in which who is positive has the higher probability, ties counting half; nan of one class."""
    steps = np.diff(misses, axis=-1, prepend=0.0)
    before = hits - np.diff(hits, axis=-1, prepend=0.0) / 2
    return ratio((steps * before).sum(-1), _all_of(hits) * _all_of(misses))


def average_precision(hits: Floats, misses: Floats) -> Floats:
    """The mean of the precisions at which each positive is found, without interpolation; nan without positives."""
    steps = np.diff(hits, axis=-1, prepend=0.0)
    precisions = np.nan_to_num(ratio(hits, hits + misses))
    return ratio((steps * precisions).sum(-1), _all_of(hits))


def best_recall(hits: Floats, misses: Floats) -> Floats:
    """The highest recall at a precision of `PRECISION` or more, the threshold chosen on the same data.

    So Huang et al. (2019) reported RP80; it is too good, and the more so the less data there is. nan where no threshold
    reaches the precision.
    """
    reaching = np.where(precise_enough(hits, misses), hits, 0.0)
    found = reaching.max(-1, initial=0.0)
    return np.where(found > 0, ratio(found, _all_of(hits)), np.nan)


def threshold_at_precision(probabilities: Floats, outcomes: Flags) -> float | None:
    """The lowest probability down to which an alarm has a precision of `PRECISION` or more; None where none has."""
    ranking = Ranking(probabilities, outcomes)
    reaching = np.flatnonzero(precise_enough(*ranking.counts(np.ones(len(probabilities)))))
    return float(ranking.thresholds[reaching[-1]]) if len(reaching) else None


class AlarmThreshold(NamedTuple):
    """The probability from which on an alarm is raised, and what that rests on.

    alarms, right: how many reach it, and how many of them are positive. bound: a lower 95 % bound of their precision.
    """

    threshold: float
    alarms: int
    right: int
    bound: float


def alarm_threshold(
    probabilities: Floats, outcomes: Flags, precision: float, minimum_alarms: int
) -> AlarmThreshold | None:
    """The lowest threshold with `minimum_alarms` or more whose precision is `precision` or more with 95 % confidence.

    None where no threshold reaches it. That the lowest of many is taken is not in the confidence.
    """
    ranking = Ranking(probabilities, outcomes)
    hits, misses = ranking.counts(np.ones(len(probabilities)))
    bounds = precision_bound(hits, misses)
    reaching = np.flatnonzero((hits + misses >= minimum_alarms) & (bounds >= precision))
    if not len(reaching):
        return None
    last = reaching[-1]
    return AlarmThreshold(
        float(ranking.thresholds[last]), int(hits[last] + misses[last]), int(hits[last]), float(bounds[last])
    )


def precision_bound(hits: Floats, misses: Floats) -> Floats:
    """The one-sided lower 95 % bound of a precision by Clopper & Pearson (1934), alarms taken as independent."""
    return np.where(hits > 0, betaincinv(np.maximum(hits, 1), misses + 1, 1 - CONFIDENCE), 0.0)


def precise_enough(hits: Floats, misses: Floats) -> Flags:
    """Where the precision is `PRECISION` or more, and there are true positives."""
    reaching: Flags = (hits > 0) & (np.nan_to_num(ratio(hits, hits + misses)) >= PRECISION)
    return reaching


def auroc_of(probabilities: Floats, outcomes: Flags) -> float | None:
    """The AUROC of admissions that count once each; None of one class."""
    return none_if_nan(auroc(*Ranking(probabilities, outcomes).counts(np.ones(len(probabilities)))))


def auprc_of(probabilities: Floats, outcomes: Flags) -> float | None:
    """The average precision of admissions that count once each; None without positives."""
    return none_if_nan(average_precision(*Ranking(probabilities, outcomes).counts(np.ones(len(probabilities)))))


def mean_of_known(
    metric: Callable[[Floats, Flags], float | None], probabilities: Floats, labels: Flags
) -> float | None:
    """The mean of a metric over labels, both (admissions, labels), without those that it is not defined for."""
    values = [metric(*each) for each in zip(probabilities.T, labels.T, strict=True)]
    found = [value for value in values if value is not None]
    return float(np.mean(found)) if found else None


def _all_of(counts: Floats) -> Floats:
    """What the last step has counted; 0 without steps."""
    return counts[..., -1] if counts.shape[-1] else np.zeros(counts.shape[:-1])
