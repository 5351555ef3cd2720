"""The true risk of return: four conditions, each of which raises it, and nothing else does.

Whether a patient comes back is drawn from the risk, so the best AUROC that anyone can reach is a matter of arithmetic.
"""

from itertools import product
from math import exp, prod
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

WEIGHTS = (2.1, 2.2, 2.3, 2.4)
"""What each condition adds to the log-odds of an unplanned return within 30 days."""
INTERCEPT = -4.4
SHARE = 0.35
"""Of stays that a condition is present in; the conditions are independent of each other."""


class Prognosis(NamedTuple):
    """Which conditions a patient leaves with, the risk that follows from them, and what came of it."""

    present: tuple[bool, ...]
    risk: float
    returns: bool


def draw_prognosis(random: Random) -> Prognosis:
    """A patient's conditions, and a return drawn from their risk."""
    present = tuple(random.random() < SHARE for _ in WEIGHTS)
    risk = risk_of(present)
    return Prognosis(present, risk, random.random() < risk)


def draw_given(random: Random, returns: bool) -> Prognosis:
    """A patient's conditions, given whether the patient returns: the risk is as true as it is for all."""
    while True:
        drawn = draw_prognosis(random)
        if drawn.returns == returns:
            return drawn


def risk_of(present: tuple[bool, ...]) -> float:
    """The probability of an unplanned return within 30 days."""
    log_odds = INTERCEPT + sum(weight for weight, is_present in zip(WEIGHTS, present, strict=True) if is_present)
    return 1 / (1 + exp(-log_odds))


def draw_risks(count: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """True risks and outcomes of `count` stays, both (count,), without a hospital around them."""
    generator = np.random.default_rng(seed)
    present = generator.random((count, len(WEIGHTS))) < SHARE  # (count, conditions)
    risks = 1 / (1 + np.exp(-(INTERCEPT + present @ np.array(WEIGHTS))))  # (count,)
    return risks, generator.random(count) < risks


def best_auroc() -> float:
    """The AUROC of the true risk over all stays there could be: no model can do better."""
    cases = list(product((False, True), repeat=len(WEIGHTS)))
    shares = np.array([prod(SHARE if is_present else 1 - SHARE for is_present in case) for case in cases])
    risks = np.array([risk_of(case) for case in cases])
    returning, staying = shares * risks, shares * (1 - risks)
    wins = (risks[:, None] > risks) + 0.5 * (risks[:, None] == risks)  # (cases that return, cases that do not)
    return float(returning @ wins @ staying / (returning.sum() * staying.sum()))


def prevalence() -> float:
    """The share of stays that an unplanned return follows within 30 days."""
    cases = product((False, True), repeat=len(WEIGHTS))
    return sum(risk_of(case) * prod(SHARE if each else 1 - SHARE for each in case) for case in cases)
