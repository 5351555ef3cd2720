"""Probabilities that mean what they say: temperature, logistic recalibration, and how far off they are.

A temperature changes no decision, for what is best stays the best (Guo et al. 2017, section 4.2). Recalibration is

    calibrated = expit(intercept + slope · log-odds of P)

(Cox 1958; Van Calster et al. 2019), fitted on validation examples, which keep their prevalence. So the intercept also
corrects for training examples that were sampled by their label.
"""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.optimize import brentq, minimize_scalar
from scipy.special import chdtrc, expit, logit

from bertrelay.evaluation.statistics import MetricsOfWeights, ratio
from bertrelay.progress import log

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

BINS = 10
COLDEST, HOTTEST = 0.2, 10.0
Temperature = Annotated[float, Field(ge=COLDEST / 10, le=HOTTEST * 10, allow_inf_nan=False)]
"""What a model's folder may hold; beyond, all confidences would be alike."""
FEWEST = 20
"""With fewer examples, or with all right or all wrong, no temperature can be fitted."""
FEWEST_FOR_SLOPE = 10
"""Examples of either outcome; with fewer only the intercept is fitted, and the slope stays 1."""
SIGNIFICANCE = 0.05
LEAST_CONFIDENCE = 1e-6
TINY = 1e-9
UNCALIBRATED = "_uncalibrated"
CALIBRATION_ERRORS = ("calibration_error", f"calibration_error{UNCALIBRATED}")
STEPS, LARGEST_STEP, SMALLEST_STEP = 30, 2.0, 1e-5
SMALLEST_SPREAD = 1e-6
"""Of log-odds; what differs by less is rounding, and has no slope."""


def fit_temperature(confidences_at: Callable[[float], Floats], is_right: Flags) -> float:
    """The temperature at which confidences, (n,), make what is right and wrong likeliest.

    1, and a message, where there are too few examples to fit it.
    """
    if len(is_right) < FEWEST or is_right.all() or not is_right.any():
        log(
            f"probabilities are not calibrated: expected at least {FEWEST} dev examples, not all of one outcome, found "
            f"{np.sum(is_right):,} right (or positive) of {len(is_right):,}; give more dev data"
        )
        return 1.0

    def negative_log_likelihood(logarithm: float) -> float:
        confidences = confidences_at(float(np.exp(logarithm)))
        confidences = np.clip(confidences, LEAST_CONFIDENCE, 1 - LEAST_CONFIDENCE)
        return -float(np.where(is_right, np.log(confidences), np.log1p(-confidences)).mean())

    bounds = np.log(COLDEST), np.log(HOTTEST)
    found = minimize_scalar(negative_log_likelihood, bounds=bounds, method="bounded", options={"xatol": 0.01})
    return float(np.exp(found.x))


def expected_calibration_error(confidences: Floats, is_right: Flags) -> float | None:
    """Mean distance of confidence and share of right ones, over ten bins of equal width, weighted by their sizes.

    Naeini, Cooper & Hauskrecht 2015. None of nothing.
    """
    if not len(confidences):
        return None
    bins = np.minimum((confidences * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(bins, confidences - is_right, BINS)  # of each bin: size · (mean confidence − share right)
    return float(np.abs(gaps).sum() / len(confidences))


# Logistic recalibration


class Recalibration(NamedTuple):
    """What moves the log-odds of P. A slope of 0 gives every example the same probability."""

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


def fit_recalibration(probability: Floats, outcomes: Flags, name: str = "model") -> Recalibration:
    """Slope and intercept by the likelihood of validation examples, as far as these give reason to change P.

    By the closed testing procedure of Vergouwe et al. (2017): P stays as it is unless slope and intercept together fit
    better, and the slope stays 1 unless it fits better too, by likelihood-ratio tests. Else noise in validation would
    spoil what is calibrated. Where P falls as the outcome rises the slope is 0, and all get the prevalence.
    name: of what gave the probabilities, for the log.
    """
    fewest, of_all = min(outcomes.sum(), (~outcomes).sum()), f"{np.sum(outcomes):,} of {len(outcomes):,} positive"
    if fewest == 0:
        log(f"recalibration of {name}: none; it takes validation admissions of either outcome, found {of_all}")
        return Recalibration()
    unchanged, shifted = Recalibration(), Recalibration(1.0, _intercept(probability, outcomes))
    fitted, parameters = shifted, 1
    if fewest >= FEWEST_FOR_SLOPE:
        fitted, parameters = _slope_and_intercept(log_odds(probability), outcomes), 2
    else:
        needed = f"it takes {FEWEST_FOR_SLOPE} of either outcome on validation"
        log(f"recalibration of {name}: no slope; {needed}, found {of_all}")

    def fits_better(than: Recalibration, parameters: int) -> bool:
        gain = _deviance(probability, outcomes, than) - _deviance(probability, outcomes, fitted)
        return float(chdtrc(parameters, max(gain, 0.0))) < SIGNIFICANCE

    if not fits_better(unchanged, parameters):
        return unchanged
    if parameters == 1 or not fits_better(shifted, 1):
        return shifted
    if fitted.slope <= 0:
        log(f"recalibration of {name}: P does not rise with the outcome on validation, so all get the prevalence")
        return Recalibration(0.0, float(logit(outcomes.mean())))
    return fitted


def _deviance(probability: Floats, outcomes: Flags, recalibration: Recalibration) -> float:
    """Twice the negative log-likelihood of the outcomes."""
    moved = recalibration.intercept + recalibration.slope * log_odds(probability)
    return float(2 * np.logaddexp(0, np.where(outcomes, -moved, moved)).sum())


def _intercept(probability: Floats, outcomes: Flags) -> float:
    """The shift of the log-odds at which the mean probability is the share of positives."""
    given = log_odds(probability)
    widest = float(np.abs(given).max()) + abs(float(logit(outcomes.mean()))) + 1
    return float(brentq(lambda shift: float(expit(given + shift).mean() - outcomes.mean()), -widest, widest))


def _slope_and_intercept(given: Floats, outcomes: Flags) -> Recalibration:
    """By targets of Platt (1999) a little inside of 0 and 1, so that the slope of separable outcomes is finite."""
    from sklearn.linear_model import LogisticRegression

    positives, negatives = outcomes.sum(), (~outcomes).sum()
    targets = np.where(outcomes, (positives + 1) / (positives + 2), 1 / (negatives + 2))  # (examples,)
    model = LogisticRegression(C=np.inf, tol=1e-8, max_iter=1_000)
    model.fit(
        np.tile(given, 2)[:, None],
        np.repeat([True, False], len(given)),
        sample_weight=np.concatenate([targets, 1 - targets]),
    )
    return Recalibration(float(model.coef_[0, 0]), float(model.intercept_[0]))


# Calibration metrics. All take weights, (…, examples), as a bootstrap draws them, and give a metric for each row.


class Bins:
    """Examples in ten groups of like probability, as equal in size as ties allow.

    numbers: of the bins that are not empty. points: (mean probability, share of positives, examples) of each of them.
    """

    def __init__(self, probability: Floats, outcomes: Flags) -> None:
        self._gaps, self._outcomes = probability - outcomes, outcomes
        borders = np.quantile(probability, np.linspace(0, 1, BINS + 1)) if len(probability) else np.zeros(BINS + 1)
        bin_of = np.searchsorted(borders[1:-1], probability)  # (examples,)
        self.numbers: list[int] = np.unique(bin_of).tolist()
        groups = [bin_of == number for number in self.numbers]
        self.points = [(float(probability[g].mean()), float(outcomes[g].mean()), int(g.sum())) for g in groups]
        self._is_in = (bin_of[:, None] == np.arange(BINS)).astype(np.float64)  # (examples, bins)

    def error(self, weights: Floats) -> Floats:
        """The mean distance of mean probability and share of positives, bins weighted by their sizes."""
        return ratio(np.abs((weights * self._gaps) @ self._is_in).sum(-1), weights.sum(-1))

    def shares(self, weights: Floats) -> Floats:
        """The share of positives in each bin, (…, bins); nan of an empty one."""
        return ratio((weights * self._outcomes) @ self._is_in, weights @ self._is_in)


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
        self._log_odds, self._bins = log_odds(probability), Bins(probability, outcomes)
        ones = np.ones(len(outcomes))
        centre, spread = (self._log_odds.mean(), self._log_odds.std()) if len(outcomes) else (0.0, 0.0)
        self._spread = float(spread) if spread > SMALLEST_SPREAD else np.inf
        scaled = (self._log_odds - centre) / self._spread
        self._features = np.stack([ones, scaled], axis=1)  # (examples, 2)
        self._start = logistic_regression(self._features, 0.0, self._outcomes, ones)
        self._shift = logistic_regression(self._features[:, :1], self._log_odds, self._outcomes, ones)

    def metrics(self, weights: Floats, suffix: str = "") -> dict[str, Floats]:
        """Those above and the Brier score, by name."""
        both = logistic_regression(self._features, 0.0, self._outcomes, weights, self._start)
        shift = logistic_regression(self._features[:, :1], self._log_odds, self._outcomes, weights, self._shift)
        found = {
            "brier": ratio(weights @ (self._probability - self._outcomes) ** 2, weights.sum(-1)),
            "calibration_error": self._bins.error(weights),
            "observed_expected": ratio(weights @ self._outcomes, weights @ self._probability),
            "calibration_slope": both[..., 1] / self._spread,
            "calibration_intercept": shift[..., 0],
        }
        return {f"{name}{suffix}": value for name, value in found.items()}


def calibration_metrics(outcomes: Flags, probability: Floats, recalibrated: Floats) -> MetricsOfWeights:
    """The metrics of `recalibrated`, and as `_uncalibrated` those of `probability`."""
    after, before = Calibration(recalibrated, outcomes), Calibration(probability, outcomes)
    return lambda weights: after.metrics(weights) | before.metrics(weights, UNCALIBRATED)


def logistic_regression(
    features: Floats, offsets: Floats | float, outcomes: Floats, weights: Floats, start: Floats | None = None
) -> Floats:
    """Coefficients of unpenalised logistic regressions, one for each row of weights, (…, features), all at once.

    features: (examples, features). offsets: added to the log-odds. start: coefficients to begin with.
    nan where there is no finite solution: one outcome, separable ones, features that say the same. By Newton's method.
    """
    size = features.shape[1]
    products = (features[:, :, None] * features[:, None, :]).reshape(len(features), size * size)
    begin = np.zeros(size) if start is None or np.isnan(start).any() else start
    found = np.broadcast_to(begin, (*weights.shape[:-1], size)).copy()
    unsolved = np.zeros(weights.shape[:-1], bool)
    for _ in range(STEPS):
        expected = expit(found @ features.T + offsets)  # (…, examples)
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
