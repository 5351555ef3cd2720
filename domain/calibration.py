"""Probabilities that mean what they say: temperature and calibration error.

A temperature changes no decision, for what is best stays the best (Guo et al. 2017, section 4.2).
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
COLDEST, HOTTEST = 0.2, 10.0
Temperature = Annotated[float, Field(ge=COLDEST / 10, le=HOTTEST * 10, allow_inf_nan=False)]
"""What a model's folder may hold; beyond, all confidences would be alike."""
FEWEST = 20
"""With fewer examples, or with all right or all wrong, no temperature can be fitted."""
LEAST_CONFIDENCE = 1e-6


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
