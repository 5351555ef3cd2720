"""Statistics and their intervals, against scipy, numpy, copied rows and the exact binomial."""

import warnings

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from bertrelay.evaluation.statistics import (
    distance_interval,
    pearson,
    resampled_weights,
    share,
    spearman,
    with_interval,
    with_intervals,
)
from domain.clinical.metrics import Bins, Ranking, auroc

CHANCE = np.random.default_rng(0)


def draw_risks(count, seed):
    """Risks that four independent conditions raise, and outcomes drawn from them."""
    generator = np.random.default_rng(seed)
    conditions = generator.random((count, 4)) < 0.35
    risks = 1 / (1 + np.exp(4.4 - conditions @ np.array((2.1, 2.2, 2.3, 2.4))))
    return risks, generator.random(count) < risks


def test_spearman_by_hand_gives_ties_their_mean_rank():
    """Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: Pearson of these is 4.5 / √(4.5 · 5)."""
    assert spearman(np.array([0.1, 0.5, 0.5, 0.9]), np.array([1.0, 2, 3, 4])) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)


@pytest.mark.parametrize(
    ("first", "second"),
    [([], []), ([1.0], [2.0]), ([1.0, 1, 1], [1.0, 2, 3]), ([1.0, 2, 3], [2.0, 2, 2])],
)
def test_a_correlation_that_does_not_exist_is_none_without_a_warning(first, second):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert spearman(np.array(first), np.array(second)) is None


def test_the_interval_of_a_share_is_near_the_exact_binomial_one():
    hits = np.zeros(400)
    hits[:300] = 1
    found = with_interval("accuracy", share, hits)
    exact = stats.binomtest(300, 400).proportion_ci(0.95, method="exact")
    assert found["accuracy"] == 0.75
    assert found["accuracy_low"] == pytest.approx(exact.low, abs=0.01)
    assert found["accuracy_high"] == pytest.approx(exact.high, abs=0.01)


def test_what_was_not_measured_is_none_and_one_row_has_no_interval():
    assert with_interval("a", share, np.array([])) == {"a": None}
    assert with_interval("a", share, np.array([1.0])) == {"a": 1.0}
    assert share(np.array([])) is None


def mean_of_groups(statistic):
    def mean(first, second, groups):
        values = [statistic(first[groups == group], second[groups == group]) for group in np.unique(groups)]
        return None if None in values else float(np.mean(values))

    return mean


def test_the_interval_of_a_mean_over_groups_is_that_of_numpys_stratified_resamples():
    groups = np.repeat([0, 1, 2], [12, 30, 7])
    first = CHANCE.normal(size=len(groups))
    second = first + CHANCE.normal(size=len(groups))
    found = with_interval("s", mean_of_groups(pearson), first, second, groups, groups=groups)
    chance, drawn = np.random.default_rng(99), []
    for _ in range(2000):
        rows = [chance.choice(np.flatnonzero(groups == group), np.sum(groups == group)) for group in range(3)]
        drawn.append(np.mean([stats.pearsonr(first[each], second[each]).statistic for each in rows]))
    assert [found["s_low"], found["s_high"]] == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=0.03)


def test_there_is_no_interval_where_most_resamples_have_no_metric():
    """Half the resamples of two pairs are constant, so that twelve folds of two nearly never have a mean."""
    first, second, folds = np.arange(24.0), np.tile([0.0, 5.0], 12), np.repeat(np.arange(12), 2)
    assert with_interval("s", mean_of_groups(spearman), first, second, folds, groups=folds) == {"s": pytest.approx(1)}


# Units of several rows

SETS, STAYS, NOISE = 400, 500, 1.0


def auroc_with_interval(scores, outcomes, subjects, **options):
    ranking = Ranking(scores, outcomes)
    return with_intervals(lambda weights: {"auroc": auroc(*ranking.counts(weights))}, subjects, **options)


def test_a_resample_has_as_many_subjects_and_all_stays_of_each():
    subjects = np.array(["b", "a", "b", "c", "b"])
    weights = np.concatenate(list(resampled_weights(subjects, seed=0, resamples=500)))
    assert weights.shape == (500, 5)
    assert (weights[:, 0] == weights[:, 2]).all() and (weights[:, 0] == weights[:, 4]).all()
    assert (weights[:, [0, 1, 3]].sum(1) == 3).all()
    assert weights[:, [0, 1, 3]].mean(0) == pytest.approx([1, 1, 1], abs=0.15)


def test_the_interval_is_that_of_copied_rows():
    risks, outcomes = draw_risks(300, seed=4)
    subjects = np.arange(300) // 2
    found = auroc_with_interval(risks, outcomes, subjects, seed=9, resamples=200)
    (weights,) = resampled_weights(subjects, 9, 200)
    copies = [np.repeat(np.arange(300), row.astype(int)) for row in weights]
    slow = [roc_auc_score(outcomes[rows], risks[rows]) for rows in copies]
    assert found["auroc"] == pytest.approx(roc_auc_score(outcomes, risks))
    assert (found["auroc_low"], found["auroc_high"]) == pytest.approx(tuple(np.percentile(slow, [2.5, 97.5])))


def test_what_is_not_defined_has_no_value_and_one_subject_no_interval():
    scores = np.array([0.1, 0.9, 0.4])
    assert auroc_with_interval(scores, np.zeros(3, bool), np.arange(3)) == {"auroc": None}
    assert auroc_with_interval(scores, np.array([False, True, False]), np.zeros(3)) == {"auroc": 1.0}


def noisy(risks, seed):
    """A score that a model might give: the log-odds of the true risk, and noise of one size, each patient's own."""
    return np.log(risks / (1 - risks)) + np.random.default_rng(seed).normal(0, NOISE, len(risks))


def test_the_interval_holds_the_truth_in_95_of_100_test_sets():
    risks, outcomes = draw_risks(1_000_000, seed=1)
    truth = roc_auc_score(outcomes, noisy(risks, 1))
    held = 0
    for number in range(SETS):
        risks, outcomes = draw_risks(STAYS, seed=1_000 + number)
        scores = noisy(risks, 1_000 + number)
        found = auroc_with_interval(scores, outcomes, np.arange(STAYS), seed=number, resamples=400)
        held += found["auroc_low"] <= truth <= found["auroc_high"]
    assert 0.92 <= held / SETS <= 0.98


def calibration_error(probabilities, outcomes, subjects, **options):
    bins = Bins(probabilities, outcomes)
    return with_intervals(lambda weights: {"error": bins.error(weights)}, subjects, distances=["error"], **options)


@pytest.mark.parametrize("stays", [300, 2000])
def test_the_interval_of_a_calibration_error_holds_that_of_perfect_probabilities_which_is_0(stays):
    held = 0
    for seed in range(40):
        risks, outcomes = draw_risks(stays, seed=seed)
        found = calibration_error(risks, outcomes, np.arange(stays), seed=seed, resamples=200)
        assert 0 <= found["error_low"] < found["error"] <= found["error_high"]
        held += found["error_low"] < 0.005
    assert held >= 38


def test_a_distance_is_freed_of_the_noise_of_a_resample():
    assert distance_interval(0.5, 0.4, 0.6) == pytest.approx(((2 * 0.25 - 0.36) ** 0.5, (2 * 0.25 - 0.16) ** 0.5))
    assert distance_interval(0.026, 0.021, 0.049) == pytest.approx((0, (2 * 0.026**2 - 0.021**2) ** 0.5))
    assert distance_interval(0.01, 0.02, 0.03) == (0, 0.01)


def test_columns_are_drawn_together():
    """Rows stay rows: the correlation of a column with itself is 1 in every sample."""
    values = CHANCE.random(50)
    found = with_interval("same", spearman, values, values)
    assert list(found.values()) == pytest.approx([1, 1, 1])


def test_stays_that_repeat_their_subject_widen_the_interval():
    risks, outcomes = draw_risks(200, seed=5)
    alone = auroc_with_interval(risks, outcomes, np.arange(200))
    times = np.repeat(np.arange(200), 9)
    repeated = auroc_with_interval(risks[times], outcomes[times], times)
    blind = auroc_with_interval(risks[times], outcomes[times], np.arange(1800))

    def width(found):
        return found["auroc_high"] - found["auroc_low"]

    assert width(repeated) == pytest.approx(width(alone), rel=0.2)
    assert width(blind) < 0.5 * width(alone)
