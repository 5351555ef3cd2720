"""Temperature scaling and calibration error of confidences.

A temperature changes no decision: the best answer stays the best (Guo et al. 2017, section 4.2).
"""

from collections.abc import Callable
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.optimize import minimize_scalar

from bertrelay.progress import log

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

BINS = 10
MIN_FITTED, MAX_FITTED = 0.2, 10.0
Temperature = Annotated[float, Field(ge=MIN_FITTED / 10, le=MAX_FITTED * 10, allow_inf_nan=False)]
"""A temperature in a model's folder; beyond these limits, all confidences would be alike."""
MIN_EXAMPLES = 20
"""With fewer examples, or if all are right or all are wrong, no temperature can be fitted."""
MIN_CONFIDENCE = 1e-6


def fit_temperature(confidences_at: Callable[[float], Floats], is_right: Flags) -> float:
    """Fits the temperature that minimizes the negative log-likelihood; 1, and a message, with too few examples.

    confidences_at: temperature → confidences, (n,). is_right: the outcomes, (n,).
    """
    if len(is_right) < MIN_EXAMPLES or is_right.all() or not is_right.any():
        log(
            f"probabilities are not calibrated: expected at least {MIN_EXAMPLES} dev examples, not all of one outcome, "
            f"found {np.sum(is_right):,} right (or positive) of {len(is_right):,}; give more dev data"
        )
        return 1.0

    def negative_log_likelihood(logarithm: float) -> float:
        confidences = confidences_at(float(np.exp(logarithm)))
        confidences = np.clip(confidences, MIN_CONFIDENCE, 1 - MIN_CONFIDENCE)
        return -float(np.where(is_right, np.log(confidences), np.log1p(-confidences)).mean())

    bounds = np.log(MIN_FITTED), np.log(MAX_FITTED)
    fitted = minimize_scalar(negative_log_likelihood, bounds=bounds, method="bounded", options={"xatol": 0.01})
    return float(np.exp(fitted.x))


def expected_calibration_error(confidences: Floats, is_right: Flags) -> float | None:
    """Expected calibration error (Naeini, Cooper & Hauskrecht 2015); None without examples.

    The distance between the mean confidence and the fraction of right ones in each of ten bins of equal width, averaged
    with the sizes of the bins as weights.
    """
    if not len(confidences):
        return None
    bins = np.minimum((confidences * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(bins, confidences - is_right, BINS)  # per bin: size · (mean confidence − fraction right)
    return float(np.abs(gaps).sum() / len(confidences))
