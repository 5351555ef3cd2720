"""Logistic recalibration of probabilities, and how far off they are (Cox 1958; Van Calster et al. 2019).

    calibrated = expit(intercept + slope · log-odds of P)

Both numbers are fitted on the validation admissions, which keep their prevalence. So the intercept also corrects for
training admissions that were sampled by their label: keeping a share r of the negatives adds −log r to the log-odds,
and subtracting that first would change no fitted probability. P, which joins those of chunks, is not even moved by
exactly so much, and the intercept corrects what it finds.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit

from bertrelay.progress import say
from domain.clinical.outcomes.bootstrap import FiguresOf
from domain.clinical.outcomes.measures import Bins, Flags, Floats, brier, ratio

TINY = 1e-9
FEWEST_FOR_SLOPE = 10
"""Admissions of either outcome; with fewer only the intercept is fitted, and the slope stays 1."""
UNCALIBRATED = "_uncalibrated"
CALIBRATION_ERRORS = ("calibration_error", f"calibration_error{UNCALIBRATED}")
STEPS, LARGEST_STEP, SMALLEST_STEP = 30, 2.0, 1e-5


class Recalibration(NamedTuple):
    """What moves the log-odds of P. A slope of 0 gives every admission the same probability."""

    slope: float = 1.0
    intercept: float = 0.0


def calibrated(probability: Floats, slope: float, intercept: float) -> Floats:
    """Recalibrated probabilities; their order stays."""
    found: Floats = expit(intercept + slope * log_odds(probability))
    return found


def log_odds(probability: Floats) -> Floats:
    """Finite ones, also of 0 and 1."""
    found: Floats = logit(np.clip(probability, TINY, 1 - TINY))
    return found


def fit_recalibration(probability: Floats, outcomes: Flags) -> Recalibration:
    """Slope and intercept by the likelihood of validation admissions; the slope alone stays 1 where they are too few.

    Targets are Platt's (1999), which lie a little inside of 0 and 1, so that the slope is finite where the outcomes are
    separable. Where a higher P goes with fewer positives the slope is 0: all that is known is their share.
    """
    fewest = min(outcomes.sum(), (~outcomes).sum())
    counts = f"found {np.sum(outcomes):,} positive of {len(outcomes):,} validation admissions"
    if fewest == 0:
        say(f"probabilities are not recalibrated: expected admissions of either outcome, {counts}")
        return Recalibration()
    if fewest < FEWEST_FOR_SLOPE:
        say(f"recalibration: only the intercept, since a slope takes {FEWEST_FOR_SLOPE} of either outcome; {counts}")
        return Recalibration(1.0, _intercept(probability, outcomes))
    slope, intercept = _slope_and_intercept(log_odds(probability), outcomes)
    if slope <= 0:
        say(f"recalibration: P does not rise with the outcome, so every admission gets the prevalence; {counts}")
        return Recalibration(0.0, float(logit(outcomes.mean())))
    return Recalibration(slope, intercept)


def _intercept(probability: Floats, outcomes: Flags) -> float:
    """The shift of the log-odds at which the mean probability is the share of positives."""
    given = log_odds(probability)
    widest = float(np.abs(given).max()) + abs(float(logit(outcomes.mean()))) + 1
    return float(brentq(lambda shift: float(expit(given + shift).mean() - outcomes.mean()), -widest, widest))


def _slope_and_intercept(given: Floats, outcomes: Flags) -> tuple[float, float]:
    from sklearn.linear_model import LogisticRegression

    positives, negatives = outcomes.sum(), (~outcomes).sum()
    targets = np.where(outcomes, (positives + 1) / (positives + 2), 1 / (negatives + 2))  # (admissions,)
    model = LogisticRegression(C=np.inf, tol=1e-8, max_iter=1_000)
    model.fit(
        np.tile(given, 2)[:, None],
        np.repeat([True, False], len(given)),
        sample_weight=np.concatenate([targets, 1 - targets]),
    )
    return float(model.coef_[0, 0]), float(model.intercept_[0])


# How far off probabilities are


class Calibration:
    """The calibration of probabilities, for weights of admissions, (…, admissions); figures (…,), nan if undefined.

    observed_expected: positives divided by the sum of the probabilities (calibration-in-the-large).
    calibration_slope: of a logistic regression of the outcome on the log-odds.
    calibration_intercept: of one with the slope held at 1.
    calibration_error: over bins of equal size.
    Ideal are 1, 1, 0 and 0.
    """

    def __init__(self, probability: Floats, outcomes: Flags) -> None:
        self._probability, self._outcomes = probability, outcomes.astype(np.float64)
        self._log_odds, self._bins = log_odds(probability), Bins.by_size(probability, outcomes)
        ones = np.ones(len(outcomes))
        self._features = np.stack([ones, self._log_odds], axis=1)  # (admissions, 2)
        self._start = logistic_regression(self._features, 0.0, self._outcomes, ones)
        self._shift = logistic_regression(self._features[:, :1], self._log_odds, self._outcomes, ones)

    def figures(self, weights: Floats, suffix: str = "") -> dict[str, Floats]:
        """Those above and the Brier score, by name."""
        both = logistic_regression(self._features, 0.0, self._outcomes, weights, self._start)
        shift = logistic_regression(self._features[:, :1], self._log_odds, self._outcomes, weights, self._shift)
        found = {
            "brier": brier(self._probability, self._outcomes > 0, weights),
            "calibration_error": self._bins.error(weights),
            "observed_expected": ratio(weights @ self._outcomes, weights @ self._probability),
            "calibration_slope": both[..., 1],
            "calibration_intercept": shift[..., 0],
        }
        return {f"{name}{suffix}": figure for name, figure in found.items()}


def calibration_figures(outcomes: Flags, probability: Floats, calibrated: Floats) -> FiguresOf:
    """The figures of `calibrated`, and as `_uncalibrated` those of `probability`."""
    after, before = Calibration(calibrated, outcomes), Calibration(probability, outcomes)
    return lambda weights: after.figures(weights) | before.figures(weights, UNCALIBRATED)


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
    found = np.broadcast_to(begin, (*weights.shape[:-1], size)).copy()
    unsolved = np.zeros(weights.shape[:-1], bool)
    for _ in range(STEPS):
        expected = expit(found @ features.T + offsets)  # (…, admissions)
        gradient = (weights * (outcomes - expected)) @ features
        curvature = ((weights * (expected * (1 - expected))) @ products).reshape(*gradient.shape, size)
        diagonal = np.diagonal(curvature, axis1=-2, axis2=-1)
        unsolved |= (diagonal.min(-1) <= TINY) | (np.linalg.det(curvature) <= TINY * diagonal.prod(-1))
        step = np.linalg.solve(np.where(unsolved[..., None, None], np.eye(size), curvature), gradient[..., None])
        step = np.where(unsolved[..., None], 0.0, np.clip(step[..., 0], -LARGEST_STEP, LARGEST_STEP))
        found, moves = found + step, np.abs(step).max(-1) > SMALLEST_STEP
        if not moves.any():
            break
    return np.where((unsolved | moves)[..., None], np.nan, found)
