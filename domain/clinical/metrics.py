"""How well probabilities predict an outcome: AUROC, average precision, recall at a precision, calibration.

Every metric takes weights, (…, admissions), and gives a value for each row of them. A resample of a bootstrap is such
a row, so that a thousand of them cost one sort of the probabilities.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, expit

from bertrelay.evaluation.statistics import MetricsOfWeights, none_if_nan, ratio
from domain.clinical.prediction import TINY, log_odds_of

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

PRECISION = 0.8
"""Of RP80: recall where at most one alarm in five is false."""
CONFIDENCE = 0.95
UNCALIBRATED = "_uncalibrated"
CALIBRATION_ERRORS = ("calibration_error", f"calibration_error{UNCALIBRATED}")
BINS = 10
STEPS, LARGEST_STEP, SMALLEST_STEP = 30, 2.0, 1e-5
SMALLEST_SPREAD = 1e-6
"""Of log-odds; what differs by less is rounding, and has no slope."""


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
    return ratio((steps * before).sum(-1), hits[..., -1:].sum(-1) * misses[..., -1:].sum(-1))


def average_precision(hits: Floats, misses: Floats) -> Floats:
    """The mean of the precisions at which each positive is found, without interpolation; nan without positives."""
    steps = np.diff(hits, axis=-1, prepend=0.0)
    precisions = np.nan_to_num(ratio(hits, hits + misses))
    return ratio((steps * precisions).sum(-1), hits[..., -1:].sum(-1))


def best_recall(hits: Floats, misses: Floats) -> Floats:
    """The highest recall at a precision of `PRECISION` or more, the threshold chosen on the same data.

    So Huang et al. (2019) reported RP80; it is too good, and the more so the less data there is. nan where no threshold
    reaches the precision.
    """
    reaching = np.where(precise_enough(hits, misses), hits, 0.0)
    most = reaching.max(-1, initial=0.0)
    return np.where(most > 0, ratio(most, hits[..., -1:].sum(-1)), np.nan)


def threshold_at_precision(probabilities: Floats, outcomes: Flags) -> float | None:
    """The lowest probability down to which an alarm has a precision of `PRECISION` or more; None where none has."""
    ranking = Ranking(probabilities, outcomes)
    reaching = np.flatnonzero(precise_enough(*ranking.counts(np.ones(len(probabilities)))))
    return float(ranking.thresholds[reaching[-1]]) if len(reaching) else None


def alarm_threshold(
    probabilities: Floats, outcomes: Flags, precision: float, minimum_alarms: int
) -> dict[str, float | int]:
    """The lowest threshold with `minimum_alarms` or more whose precision is `precision` or more with 95 % confidence.

    With it how many `alarms` reach it, and how many of them are right; nothing where no threshold reaches it. That the
    lowest of many is taken is not in the confidence.
    """
    ranking = Ranking(probabilities, outcomes)
    hits, misses = ranking.counts(np.ones(len(probabilities)))
    # The one-sided lower bound by Clopper & Pearson (1934), alarms taken as independent.
    bounds = np.where(hits > 0, betaincinv(np.maximum(hits, 1), misses + 1, 1 - CONFIDENCE), 0.0)
    reaching = np.flatnonzero((hits + misses >= minimum_alarms) & (bounds >= precision))
    if not len(reaching):
        return {}
    last = reaching[-1]
    alarms, right = int(hits[last] + misses[last]), int(hits[last])
    return {"threshold": float(ranking.thresholds[last]), "alarms": alarms, "alarms_right": right}


def precise_enough(hits: Floats, misses: Floats) -> Flags:
    """Where the precision is `PRECISION` or more, and there are true positives."""
    return (hits > 0) & (np.nan_to_num(ratio(hits, hits + misses)) >= PRECISION)


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
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


# Calibration


class Bins:
    """Admissions in ten groups of like probability, as equal in size as ties allow.

    numbers: of the bins that are not empty. points: (mean probability, share of positives, admissions) of each of them.
    """

    def __init__(self, probability: Floats, outcomes: Flags) -> None:
        self._gaps, self._outcomes = probability - outcomes, outcomes
        borders = np.quantile(probability, np.linspace(0, 1, BINS + 1)) if len(probability) else np.zeros(BINS + 1)
        bin_of = np.searchsorted(borders[1:-1], probability)  # (admissions,)
        self.numbers: list[int] = np.unique(bin_of).tolist()
        groups = [bin_of == number for number in self.numbers]
        self.points = [(float(probability[g].mean()), float(outcomes[g].mean()), int(g.sum())) for g in groups]
        self._is_in = (bin_of[:, None] == np.arange(BINS)).astype(np.float64)  # (admissions, bins)

    def error(self, weights: Floats) -> Floats:
        """The mean distance of mean probability and share of positives, bins weighted by their sizes."""
        return ratio(np.abs((weights * self._gaps) @ self._is_in).sum(-1), weights.sum(-1))

    def shares(self, weights: Floats) -> dict[str, Floats]:
        """The share of positives in each bin of `numbers`, by its number; nan where no weight is in it."""
        shares = ratio((weights * self._outcomes) @ self._is_in, weights @ self._is_in)
        return {f"{number}": shares[..., number] for number in self.numbers}


class Calibration:
    """The calibration of probabilities; metrics (…,), nan where undefined.

    observed_expected: positives divided by the sum of the probabilities (calibration-in-the-large).
    calibration_slope: of a logistic regression of the outcome on the log-odds.
    calibration_intercept: of one with the slope held at 1.
    calibration_error: over bins of equal size.
    Ideal are 1, 1, 0 and 0.
    """

    def __init__(self, probability: Floats, outcomes: Flags) -> None:
        self._probability, self._outcomes = probability, outcomes.astype(np.float64)
        self._log_odds, self._bins = log_odds_of(probability), Bins(probability, outcomes)
        ones = np.ones(len(outcomes))
        centre, spread = (self._log_odds.mean(), self._log_odds.std()) if len(outcomes) else (0.0, 0.0)
        self._spread = float(spread) if spread > SMALLEST_SPREAD else np.inf
        scaled = (self._log_odds - centre) / self._spread
        self._features = np.stack([ones, scaled], axis=1)  # (admissions, 2)
        self._start = logistic_regression(self._features, 0.0, self._outcomes, ones)
        self._shift = logistic_regression(self._features[:, :1], self._log_odds, self._outcomes, ones)

    def metrics(self, weights: Floats, suffix: str = "") -> dict[str, Floats]:
        """Those above and the Brier score, by name."""
        both = logistic_regression(self._features, 0.0, self._outcomes, weights, self._start)
        shift = logistic_regression(self._features[:, :1], self._log_odds, self._outcomes, weights, self._shift)
        metrics = {
            "brier": ratio(weights @ (self._probability - self._outcomes) ** 2, weights.sum(-1)),
            "calibration_error": self._bins.error(weights),
            "observed_expected": ratio(weights @ self._outcomes, weights @ self._probability),
            "calibration_slope": both[..., 1] / self._spread,
            "calibration_intercept": shift[..., 0],
        }
        return {f"{name}{suffix}": value for name, value in metrics.items()}


def calibration_metrics(outcomes: Flags, probability: Floats, recalibrated: Floats) -> MetricsOfWeights:
    """The metrics of `recalibrated`, and as `_uncalibrated` those of `probability`."""
    after, before = Calibration(recalibrated, outcomes), Calibration(probability, outcomes)
    return lambda weights: after.metrics(weights) | before.metrics(weights, UNCALIBRATED)


def logistic_regression(
    features: Floats, offsets: Floats | float, outcomes: Floats, weights: Floats, start: Floats | None = None
) -> Floats:
    """Coefficients of unpenalised logistic regressions, one for each row of weights, (…, features), all at once.

    features: (admissions, features). offsets: added to the log-odds. start: coefficients to begin with.
    nan where there is no finite solution: one outcome, separable ones, features that say the same. By Newton's method.
    """
    size = features.shape[1]
    products = (features[:, :, None] * features[:, None, :]).reshape(len(features), size * size)
    begin = np.zeros(size) if start is None or np.isnan(start).any() else start
    coefficients = np.broadcast_to(begin, (*weights.shape[:-1], size)).copy()
    unsolved = np.zeros(weights.shape[:-1], bool)
    for _ in range(STEPS):
        expected = expit(coefficients @ features.T + offsets)  # (…, admissions)
        gradient = (weights * (outcomes - expected)) @ features
        curvature = ((weights * (expected * (1 - expected))) @ products).reshape(*gradient.shape, size)
        diagonal = np.diagonal(curvature, axis1=-2, axis2=-1)
        unsolved |= (diagonal.min(-1) <= TINY) | (np.linalg.det(curvature) <= TINY * diagonal.prod(-1))
        step = np.linalg.solve(np.where(unsolved[..., None, None], np.eye(size), curvature), gradient[..., None])
        step = np.where(unsolved[..., None], 0.0, np.clip(step[..., 0], -LARGEST_STEP, LARGEST_STEP))
        coefficients, moves = coefficients + step, np.abs(step).max(-1) > SMALLEST_STEP
        if not moves.any():
            break
    return np.where((unsolved | moves)[..., None], np.nan, coefficients)
