"""Every metric against scikit-learn or sums by hand: ties, weights, one class, a single admission, none."""

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score

from bertrelay.evaluation.statistics import none_if_nan
from domain.clinical.metrics import (
    Ranking,
    alarm_threshold,
    auroc,
    auroc_of,
    average_precision,
    best_recall,
    threshold_at_precision,
)


def drawn(seed: int, count: int = 400, steps: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities (in so many steps, so that they tie), outcomes that go with them, and weights, zeros among them."""
    generator = np.random.default_rng(seed)
    probabilities = generator.random(count)
    if steps:
        probabilities = np.round(probabilities * steps) / steps
    return probabilities, generator.random(count) < probabilities, generator.integers(0, 4, count).astype(float)


@pytest.mark.parametrize("steps", [None, 10, 2])
@pytest.mark.parametrize("seed", range(5))
def test_ranking_metrics_are_scikit_learns_with_ties_and_weights(seed, steps):
    probabilities, outcomes, weights = drawn(seed, steps=steps)
    rows = np.stack([np.ones(len(weights)), weights])
    hits, misses = Ranking(probabilities, outcomes).counts(rows)
    for row, weight in enumerate(rows):
        assert auroc(hits, misses)[row] == pytest.approx(roc_auc_score(outcomes, probabilities, sample_weight=weight))
        expected = average_precision_score(outcomes, probabilities, sample_weight=weight)
        assert average_precision(hits, misses)[row] == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(20))
def test_recall_at_precision_is_that_of_scikit_learns_curve(seed):
    probabilities, outcomes, _ = drawn(seed, count=60, steps=15)
    precisions, recalls, thresholds = precision_recall_curve(outcomes, probabilities)
    reaching = (precisions[:-1] >= 0.8) & (recalls[:-1] > 0)
    found = none_if_nan(best_recall(*Ranking(probabilities, outcomes).counts(np.ones(60))))
    threshold = threshold_at_precision(probabilities, outcomes)
    if not reaching.any():
        assert found is None and threshold is None
    else:
        assert found == pytest.approx(recalls[:-1][reaching].max())
        assert threshold == thresholds[reaching].min()
        assert outcomes[probabilities >= threshold].mean() >= 0.8


def test_an_alarm_threshold_does_not_rest_on_a_few_alarms():
    outcomes = np.append([True, True], np.random.default_rng(0).random(500) < 0.06)
    probabilities = np.append([0.9, 0.8], np.linspace(0.1, 0.7, 500))
    assert threshold_at_precision(probabilities, outcomes) == 0.8  # two alarms
    assert alarm_threshold(probabilities, outcomes, 0.8, minimum_alarms=20) == {}
    assert alarm_threshold(probabilities, outcomes, 0.2, minimum_alarms=2)["alarms"] >= 2  # the bound of two is 0.22
    given, found = (np.linspace(0.5, 0.9, 20), np.ones(20, bool)), {"threshold": 0.5, "alarms": 20, "alarms_right": 20}
    assert alarm_threshold(*given, 0.8, 20) == found
    assert alarm_threshold(*given, 0.8, 21) == alarm_threshold(*given, 0.9, 20) == {}  # the bound is 0.05^(1/20), 0.86


@pytest.mark.parametrize("seed", range(4))
def test_the_alarm_threshold_is_the_lowest_whose_exact_bound_reaches_the_precision(seed):
    probabilities, outcomes, _ = drawn(seed, count=300, steps=40)
    expected = None
    for threshold in np.unique(probabilities)[::-1]:
        raised = probabilities >= threshold
        test = binomtest(int(outcomes[raised].sum()), int(raised.sum()), alternative="greater")
        bound = test.proportion_ci(0.95, "exact").low
        if raised.sum() >= 20 and bound >= 0.7:
            expected = threshold, raised.sum(), outcomes[raised].sum()
    assert expected is not None and tuple(alarm_threshold(probabilities, outcomes, 0.7, 20).values()) == expected


@pytest.mark.parametrize("outcome", [True, False])
def test_of_one_class_there_is_no_auroc(outcome):
    probabilities, outcomes = np.array([0.1, 0.7]), np.full(2, outcome)
    counts = Ranking(probabilities, outcomes).counts(np.ones(2))
    assert auroc_of(probabilities, outcomes) is None
    assert none_if_nan(average_precision(*counts)) == (1.0 if outcome else None)


def test_one_admission_and_none():
    one = np.array([0.7]), np.array([True])
    assert auroc_of(*one) is None
    none = np.zeros(0), np.zeros(0, bool)
    assert auroc_of(*none) is None
    assert threshold_at_precision(*none) is None and alarm_threshold(*none, 0.8, 20) == {}
