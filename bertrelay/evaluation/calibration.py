"""Confidences that mean what they say: a temperature found on dev data, and how far they are off.

One temperature for all scores (Guo et al. 2017, section 4.2): it changes no decision, for what is best stays the best.
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

COLDEST, HOTTEST = 0.2, 10.0
Temperature = Annotated[float, Field(ge=COLDEST / 10, le=HOTTEST * 10, allow_inf_nan=False)]
"""What a model's folder may say; beyond, all confidences would be alike."""
FEWEST = 20
"""With fewer of them, or all right or all wrong, there is nothing to learn a temperature from."""
BINS = 10
TINY = 1e-6


def fit_temperature(confidences_at: Callable[[float], Floats], is_right: Flags) -> float:
    """The temperature at which confidences, (n,), make what is right and wrong likeliest.

    1, which is told, where there is nothing to learn it from.
    """
    if len(is_right) < FEWEST or is_right.all() or not is_right.any():
        log(
            f"probabilities are not calibrated: expected at least {FEWEST} dev examples, not all of one outcome, found "
            f"{np.sum(is_right):,} right (or positive) of {len(is_right):,}; give more dev data"
        )
        return 1.0

    def unlikeliness(logarithm: float) -> float:
        confidences = np.clip(confidences_at(float(np.exp(logarithm))), TINY, 1 - TINY)
        return -float(np.where(is_right, np.log(confidences), np.log1p(-confidences)).mean())

    found = minimize_scalar(
        unlikeliness, bounds=(np.log(COLDEST), np.log(HOTTEST)), method="bounded", options={"xatol": 0.01}
    )
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
