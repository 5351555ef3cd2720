"""Probabilities that mean what they say: temperature, calibration error, logistic recalibration.

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
    fitted = minimize_scalar(negative_log_likelihood, bounds=bounds, method="bounded", options={"xatol": 0.01})
    return float(np.exp(fitted.x))


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
    return np.asarray(expit(intercept + slope * log_odds(probability)))


def log_odds(probability: Floats) -> Floats:
    """Finite ones, also of 0 and 1."""
    return np.asarray(logit(np.clip(probability, TINY, 1 - TINY)))


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
    unchanged, shifted = Recalibration(), Recalibration(1.0, _intercept(log_odds(probability), outcomes.mean()))
    fitted, parameters = shifted, 1
    if fewest >= FEWEST_FOR_SLOPE:
        fitted, parameters = _slope_and_intercept(log_odds(probability), outcomes), 2
    else:
        needed = f"it takes {FEWEST_FOR_SLOPE} of either outcome on validation"
        log(f"recalibration of {name}: no slope; {needed}, found {of_all}")

    def deviance(of: Recalibration) -> float:  # twice the negative log-likelihood of the outcomes
        moved = of.intercept + of.slope * log_odds(probability)
        return float(2 * np.logaddexp(0, np.where(outcomes, -moved, moved)).sum())

    def fits_better(than: Recalibration, parameters: int) -> bool:
        return float(chdtrc(parameters, max(deviance(than) - deviance(fitted), 0.0))) < SIGNIFICANCE

    if not fits_better(unchanged, parameters):
        return unchanged
    if parameters == 1 or not fits_better(shifted, 1):
        return shifted
    if fitted.slope <= 0:
        log(f"recalibration of {name}: P does not rise with the outcome on validation, so all get the prevalence")
        return Recalibration(0.0, float(logit(outcomes.mean())))
    return fitted


def _intercept(given: Floats, prevalence: float) -> float:
    """The shift of the log-odds at which the mean probability is the share of positives."""
    widest = float(np.abs(given).max()) + abs(float(logit(prevalence))) + 1
    return float(brentq(lambda shift: float(expit(given + shift).mean() - prevalence), -widest, widest))


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
