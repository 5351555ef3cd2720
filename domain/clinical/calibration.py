"""Calibration of probabilities: its metrics, and logistic recalibration.

The latter is fitted on validation examples, which keep their prevalence:

    calibrated = expit(intercept + slope · log-odds of the probability)

(Cox 1958; Van Calster et al. 2019). So the intercept also corrects for training examples that were sampled by their
label.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import chdtrc, expit, logit

from bertrelay.evaluation.statistics import MetricsOfWeights, ratio
from bertrelay.progress import log

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

TINY = 1e-9
UNCALIBRATED = "_uncalibrated"
CALIBRATION_ERRORS = ("calibration_error", f"calibration_error{UNCALIBRATED}")
BINS = 10
SMALLEST_SPREAD = 1e-6
"""Of log-odds; what differs by less is rounding, and has no slope."""
FEWEST_FOR_SLOPE = 10
"""Examples of either outcome; with fewer only the intercept is fitted, and the slope stays 1."""
SIGNIFICANCE = 0.05


class Recalibration(NamedTuple):
    """A linear map of the log-odds of a probability; a slope of 0 gives every example the same probability."""

    slope: float = 1.0
    intercept: float = 0.0


UNCHANGED = Recalibration()


def fit_recalibration(
    probability: Floats, outcomes: Flags, name: str = "model", start: Recalibration = UNCHANGED
) -> Recalibration:
    """Slope and intercept by the likelihood of validation examples, as far as these give reason to change `start`.

    By the closed testing procedure of Vergouwe et al. (2017): `start` stays unless slope and intercept together fit
    better, and its slope stays unless it fits better too, by likelihood-ratio tests. Otherwise noise in validation
    would spoil what is calibrated. Where the outcome becomes rarer as the probability rises, the slope is 0, and all
    get the prevalence. A `start` of slope 0 ranks nobody, and the probabilities themselves take its place.
    name: of the model, for the log.
    """
    start = start if start.slope else UNCHANGED
    log_odds = start.intercept + start.slope * log_odds_of(probability)
    slope, intercept = _closed_test(log_odds, outcomes, name)
    return Recalibration(slope * start.slope, intercept + slope * start.intercept)


def _closed_test(log_odds: Floats, outcomes: Flags, name: str) -> Recalibration:
    fewest, of_all = min(outcomes.sum(), (~outcomes).sum()), f"{np.sum(outcomes):,} of {len(outcomes):,} positive"
    if fewest == 0:
        log(f"recalibration of {name}: none; it takes validation admissions of either outcome, found {of_all}")
        return UNCHANGED
    shifted = Recalibration(1.0, _intercept(log_odds, outcomes.mean()))
    fitted, parameters = shifted, 1
    if fewest >= FEWEST_FOR_SLOPE:
        fitted, parameters = _slope_and_intercept(log_odds, outcomes), 2
    else:
        needed = f"it takes {FEWEST_FOR_SLOPE} of either outcome on validation"
        log(f"recalibration of {name}: no slope; {needed}, found {of_all}")

    def deviance(fit: Recalibration) -> float:  # twice the negative log-likelihood of the outcomes
        moved = fit.intercept + fit.slope * log_odds
        return float(2 * np.logaddexp(0, np.where(outcomes, -moved, moved)).sum())

    def fits_better(than: Recalibration, parameters: int) -> bool:
        return float(chdtrc(parameters, max(deviance(than) - deviance(fitted), 0.0))) < SIGNIFICANCE

    if not fits_better(UNCHANGED, parameters):
        return UNCHANGED
    if parameters == 1 or not fits_better(shifted, 1):
        return shifted
    if fitted.slope <= 0:
        log(
            f"recalibration of {name}: its probability does not rise with the outcome on validation, so all get the "
            "prevalence"
        )
        return Recalibration(0.0, float(logit(outcomes.mean())))
    return fitted


def _intercept(log_odds: Floats, prevalence: float) -> float:
    """The shift of the log-odds at which the mean probability is the prevalence."""
    widest = float(np.abs(log_odds).max()) + abs(float(logit(prevalence))) + 1
    return float(brentq(lambda shift: float(expit(log_odds + shift).mean() - prevalence), -widest, widest))


def _slope_and_intercept(log_odds: Floats, outcomes: Flags) -> Recalibration:
    """By targets of Platt (1999) a little inside of 0 and 1, so that the slope of separable outcomes is finite."""
    from sklearn.linear_model import LogisticRegression

    positives, negatives = outcomes.sum(), (~outcomes).sum()
    targets = np.where(outcomes, (positives + 1) / (positives + 2), 1 / (negatives + 2))  # (examples,)
    model = LogisticRegression(C=np.inf, tol=1e-8, max_iter=1_000)
    model.fit(
        np.tile(log_odds, 2)[:, None],
        np.repeat([True, False], len(log_odds)),
        sample_weight=np.concatenate([targets, 1 - targets]),
    )
    return Recalibration(float(model.coef_[0, 0]), float(model.intercept_[0]))


def calibrated(probability: Floats, slope: float, intercept: float) -> Floats:
    """Recalibrated probabilities; their order stays."""
    return np.asarray(expit(intercept + slope * log_odds_of(probability)))


def log_odds_of(probability: Floats) -> Floats:
    """Finite ones, also of 0 and 1."""
    return np.asarray(logit(np.clip(probability, TINY, 1 - TINY)))


class Bins:
    """Admissions in ten groups of like probability, as equal in size as ties allow.

    numbers: of the bins that are not empty. points: (mean probability, fraction of positives, admissions) of each.
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
        """The mean distance of mean probability and fraction of positives, bins weighted by their sizes."""
        return ratio(np.abs((weights * self._gaps) @ self._is_in).sum(-1), weights.sum(-1))

    def fractions(self, weights: Floats) -> dict[str, Floats]:
        """The fraction of positives in each bin of `numbers`, by its number; nan where no weight is in it."""
        fractions = ratio((weights * self._outcomes) @ self._is_in, weights @ self._is_in)
        return {f"{number}": fractions[..., number] for number in self.numbers}


def calibration_metrics(outcomes: Flags, calibrated: Floats, uncalibrated: Floats | None = None) -> MetricsOfWeights:
    """Brier score, calibration error and observed/expected of `calibrated`, and `_uncalibrated` those before it.

    brier: mean squared distance of probability and outcome. calibration_error: over bins of equal size, ideally 0.
    observed_expected: positives divided by the sum of the probabilities (calibration-in-the-large), ideally 1.
    """
    endings = {"": calibrated} | ({} if uncalibrated is None else {UNCALIBRATED: uncalibrated})
    bins = {ending: Bins(probability, outcomes) for ending, probability in endings.items()}

    def metrics_of(weights: Floats) -> dict[str, Floats]:
        metrics: dict[str, Floats] = {}
        for ending, probability in endings.items():
            observed, expected = weights @ outcomes.astype(np.float64), weights @ probability
            metrics[f"brier{ending}"] = ratio(weights @ (probability - outcomes) ** 2, weights.sum(-1))
            metrics[f"calibration_error{ending}"] = bins[ending].error(weights)
            metrics[f"observed_expected{ending}"] = ratio(observed, expected)
        return metrics

    return metrics_of


def calibration_fits(outcomes: Flags, calibrated: Floats, uncalibrated: Floats | None = None) -> MetricsOfWeights:
    """Slope and intercept of logistic regressions on the log-odds of `calibrated`, and of those before it.

    calibration_slope: of a regression of the outcome on the log-odds, ideally 1.
    calibration_intercept: of one with the slope held at 1, ideally 0 (Van Calster et al. 2019).
    Weights are the numbers of times that an admission is in a resample; every resample is fitted by itself.
    """
    endings = {"": calibrated} | ({} if uncalibrated is None else {UNCALIBRATED: uncalibrated})
    fits = {"calibration_slope": calibration_slope, "calibration_intercept": calibration_intercept}

    def metrics_of(weights: Floats) -> dict[str, Floats]:
        metrics: dict[str, Floats] = {}
        for ending, probability in endings.items():
            log_odds = log_odds_of(probability)
            for name, fit in fits.items():
                metrics[f"{name}{ending}"] = np.apply_along_axis(_fitted_to, -1, weights, fit, log_odds, outcomes)
        return metrics

    return metrics_of


def _fitted_to(weights: Floats, fit: Callable[[Floats, Flags], float], log_odds: Floats, outcomes: Flags) -> float:
    rows = np.repeat(np.arange(len(outcomes)), weights.astype(np.int64))
    return fit(log_odds[rows], outcomes[rows])


def calibration_slope(log_odds: Floats, outcomes: Flags) -> float:
    """The slope of an unpenalised logistic regression of `outcomes` on `log_odds`, both (admissions,).

    nan where there is no finite one: one outcome, or outcomes that a threshold separates, or log-odds that are alike.
    """
    from sklearn.linear_model import LogisticRegression

    positive, negative = log_odds[outcomes], log_odds[~outcomes]
    if not len(positive) or not len(negative) or (spread := float(log_odds.std())) <= SMALLEST_SPREAD:
        return np.nan
    if positive.min() >= negative.max() or positive.max() <= negative.min():
        return np.nan
    model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-10)
    scaled = (log_odds - log_odds.mean()) / spread
    return float(model.fit(scaled[:, None], outcomes).coef_[0, 0]) / spread


def calibration_intercept(log_odds: Floats, outcomes: Flags) -> float:
    """The intercept of a logistic regression with `log_odds` as offset, both (admissions,); nan of one outcome."""
    if not outcomes.any() or outcomes.all():
        return np.nan
    return _intercept(log_odds, float(outcomes.mean()))
