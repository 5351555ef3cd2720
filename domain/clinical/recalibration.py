"""Logistic recalibration, fitted on validation examples, which keep their prevalence.

    calibrated = expit(intercept + slope · log-odds of P)

(Cox 1958; Van Calster et al. 2019). So the intercept also corrects for training examples that were sampled by their
label. `calibrated` of `domain.clinical.prediction` applies it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import chdtrc, expit, logit

from bertrelay.progress import log
from domain.clinical.prediction import log_odds_of

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

FEWEST_FOR_SLOPE = 10
"""Examples of either outcome; with fewer only the intercept is fitted, and the slope stays 1."""
SIGNIFICANCE = 0.05


class Recalibration(NamedTuple):
    """What moves the log-odds of P. A slope of 0 gives every example the same probability."""

    slope: float = 1.0
    intercept: float = 0.0


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
    unchanged, shifted = Recalibration(), Recalibration(1.0, _intercept(log_odds_of(probability), outcomes.mean()))
    fitted, parameters = shifted, 1
    if fewest >= FEWEST_FOR_SLOPE:
        fitted, parameters = _slope_and_intercept(log_odds_of(probability), outcomes), 2
    else:
        needed = f"it takes {FEWEST_FOR_SLOPE} of either outcome on validation"
        log(f"recalibration of {name}: no slope; {needed}, found {of_all}")

    def deviance(of: Recalibration) -> float:  # twice the negative log-likelihood of the outcomes
        moved = of.intercept + of.slope * log_odds_of(probability)
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
