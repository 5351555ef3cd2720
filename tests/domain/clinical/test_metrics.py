"""Every metric against scikit-learn or sums by hand: ties, weights, one class, a single admission, none."""

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import binomtest
from sklearn.calibration import calibration_curve as sklearn_curve
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, brier_score_loss, precision_recall_curve, roc_auc_score

from bertrelay.evaluation.statistics import none_if_nan, with_intervals
from domain.clinical.calibration import (
    Bins,
    calibration_fits,
    calibration_intercept,
    calibration_metrics,
    calibration_slope,
    log_odds_of,
)
from domain.clinical.metrics import (
    Ranking,
    alarm_threshold,
    auroc,
    auroc_of,
    average_precision,
    best_recall,
    threshold_at_precision,
)


def drawn(seed, count=400, steps=None):
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
    best = none_if_nan(best_recall(*Ranking(probabilities, outcomes).counts(np.ones(60))))
    threshold = threshold_at_precision(probabilities, outcomes)
    if not reaching.any():
        assert best is None and threshold is None
    else:
        assert best == pytest.approx(recalls[:-1][reaching].max())
        assert threshold == thresholds[reaching].min()
        assert outcomes[probabilities >= threshold].mean() >= 0.8


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


@pytest.mark.parametrize("outcomes", [[True, True], [False, False], [True], []])
def test_of_one_class_of_a_single_admission_and_of_none_there_is_no_auroc(outcomes):
    columns = np.linspace(0.1, 0.7, len(outcomes)), np.array(outcomes, bool)
    assert auroc_of(*columns) is None
    counts, bins = Ranking(*columns).counts(np.ones(len(outcomes))), Bins(*columns)
    assert none_if_nan(average_precision(*counts)) == (1.0 if any(outcomes) else None)
    if not outcomes:
        assert threshold_at_precision(*columns) is None and alarm_threshold(*columns, 0.8, 20) == {}
        assert np.isnan(bins.error(np.ones(0))) and bins.points == []
    elif len(outcomes) == 1:
        assert float(bins.error(np.ones(1))) == pytest.approx(0.9)


# Calibration


def log_odds_and_outcomes(count, seed=0):
    """Log-odds of true risks, and outcomes drawn from them."""
    generator = np.random.default_rng(seed)
    log_odds = generator.normal(logit(0.3), 1.2, count)
    return log_odds, generator.random(count) < expit(log_odds)


@pytest.mark.parametrize("count", [40, 1_000])
def test_calibration_metrics_are_scikit_learns_for_every_resample(count):
    log_odds, outcomes = log_odds_and_outcomes(count, seed=3)
    weights = np.random.default_rng(1).integers(0, 4, (5, count)).astype(float)
    probability = expit(0.6 * log_odds + 0.8)
    metrics = calibration_metrics(outcomes, probability)(weights) | calibration_fits(outcomes, probability)(weights)
    x = logit(probability)
    for row, weight in enumerate(weights):
        theirs = LogisticRegression(C=np.inf, tol=1e-10, max_iter=500).fit(x[:, None], outcomes, sample_weight=weight)
        assert metrics["calibration_slope"][row] == pytest.approx(theirs.coef_[0, 0], rel=1e-3)
        expected = weight @ expit(x + metrics["calibration_intercept"][row])
        assert expected == pytest.approx(weight @ outcomes, rel=1e-5)
        assert metrics["observed_expected"][row] == pytest.approx(weight @ outcomes / (weight @ probability))
        assert metrics["brier"][row] == pytest.approx(brier_score_loss(outcomes, probability, sample_weight=weight))


def test_metrics_before_a_recalibration_are_those_of_its_probabilities():
    log_odds, outcomes = log_odds_and_outcomes(400)
    before, after, ones = expit(log_odds + 1), expit(log_odds), np.ones(400)
    for metrics in (calibration_metrics, calibration_fits):
        alone = metrics(outcomes, before)(ones)
        both = metrics(outcomes, after, before)(ones)
        assert {name: both[f"{name}_uncalibrated"] for name in alone} == alone
        assert {name: both[name] for name in alone} == metrics(outcomes, after)(ones)


@pytest.mark.parametrize("spread", [1.0, 0.01, 1e-4])
def test_probabilities_that_hardly_differ_have_a_slope(spread):
    log_odds, outcomes = log_odds_and_outcomes(800)
    model = LogisticRegression(C=np.inf, tol=1e-10).fit(log_odds[:, None], outcomes)
    slope = calibration_slope(log_odds_of(expit(-1 + spread * log_odds)), outcomes)
    assert slope * spread == pytest.approx(model.coef_[0, 0], rel=1e-3)


def test_without_a_finite_solution_there_is_no_metric():
    log_odds = logit(np.linspace(0.1, 0.9, 30))
    for outcomes in (log_odds > 0, log_odds < 0):
        assert np.isnan(calibration_slope(log_odds, outcomes)) and np.isfinite(
            calibration_intercept(log_odds, outcomes)
        )
    touching = np.array([-1.0, 0.0, 0.0, 1.0]), np.array([False, False, True, True])  # no finite slope either
    assert np.isnan(calibration_slope(*touching))
    nobody = np.zeros(30, bool)
    assert np.isnan(calibration_slope(log_odds, nobody)) and np.isnan(calibration_intercept(log_odds, nobody))
    alike = np.full(30, logit(0.2)), np.arange(30) < 12
    assert np.isnan(calibration_slope(*alike))
    assert calibration_intercept(*alike) == pytest.approx(logit(0.4) - logit(0.2))


@pytest.mark.parametrize("steps", [None, 7])
def test_the_calibration_curve_is_scikit_learns_and_its_error_the_sum_by_hand(steps):
    probabilities, outcomes, weights = drawn(11, steps=steps)
    bins = Bins(probabilities, outcomes)
    means, shares, counts = zip(*bins.points, strict=True)
    theirs = sklearn_curve(outcomes, probabilities, n_bins=10, strategy="quantile")
    assert (shares, means) == (pytest.approx(theirs[0]), pytest.approx(theirs[1])) and sum(counts) == 400
    by_hand = np.average(np.abs(np.subtract(means, shares)), weights=counts)
    assert float(bins.error(np.ones(400))) == pytest.approx(by_hand)
    bin_of = np.searchsorted(np.quantile(probabilities, np.arange(0.1, 1, 0.1)), probabilities)
    gaps = [abs((weights * (probabilities - outcomes))[bin_of == number].sum()) for number in range(10)]
    assert float(bins.error(weights)) == pytest.approx(sum(gaps) / weights.sum())


# Intervals


@pytest.mark.parametrize("stays", [300, 2000])
def test_the_interval_of_a_calibration_error_holds_that_of_perfect_probabilities_which_is_0(stays):
    held = 0
    for seed in range(20):
        log_odds, outcomes = log_odds_and_outcomes(stays, seed)
        bins = Bins(expit(log_odds), outcomes)
        metrics = with_intervals(
            lambda weights, bins=bins: {"error": bins.error(weights)},
            np.arange(stays),
            distances=["error"],
            seed=seed,
            resamples=200,
        )
        assert 0 <= metrics["error_low"] < metrics["error"] <= metrics["error_high"]
        held += metrics["error_low"] < 0.005
    assert held >= 19


@pytest.mark.promise("Intervals hold the truth in 95 of 100 test sets", about="exact")
def test_the_interval_holds_the_truth_in_95_of_100_test_sets():
    def noisy(count, seed):
        """Scores of a mediocre model: true log-odds with noise."""
        log_odds, outcomes = log_odds_and_outcomes(count, seed)
        return log_odds + np.random.default_rng(seed + 10_000).normal(size=count), outcomes

    scores, outcomes = noisy(1_000_000, 1)
    truth, held = roc_auc_score(outcomes, scores), 0
    for seed in range(1_000, 1_300):
        ranking = Ranking(*noisy(300, seed))
        metrics = with_intervals(
            lambda weights, ranking=ranking: {"auroc": auroc(*ranking.counts(weights))},
            np.arange(300),
            seed=seed,
            resamples=200,
        )
        held += metrics["auroc_low"] <= truth <= metrics["auroc_high"]
    assert 0.92 <= held / 300 <= 0.98
