"""Statistics and their intervals, against scipy, numpy, copied rows and the exact binomial."""

import warnings

import numpy as np
import pytest
from scipy import stats

from bertrelay.evaluation.statistics import (
    distance_interval,
    pearson,
    ratio,
    resampled_weights,
    share,
    spearman,
    with_interval,
    with_intervals,
)

CHANCE = np.random.default_rng(0)


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
    metrics = with_interval("accuracy", share, hits)
    exact = stats.binomtest(300, 400).proportion_ci(0.95, method="exact")
    assert metrics["accuracy"] == 0.75
    assert metrics["accuracy_low"] == pytest.approx(exact.low, abs=0.01)
    assert metrics["accuracy_high"] == pytest.approx(exact.high, abs=0.01)


def test_what_was_not_measured_is_none_and_one_row_has_no_interval():
    assert with_interval("a", share, np.array([])) == {"a": None}
    assert with_interval("a", share, np.array([1.0])) == {"a": 1.0}
    assert share(np.array([])) is None


def correlation(first, second):
    return float(np.corrcoef(first, second)[0, 1])


def mean_of_groups(statistic):
    def mean(first, second, groups):
        values = [statistic(first[groups == group], second[groups == group]) for group in np.unique(groups)]
        return None if None in values else float(np.mean(values))

    return mean


def test_the_interval_of_a_mean_over_groups_is_that_of_numpys_stratified_resamples():
    groups = np.repeat([0, 1, 2], [12, 30, 7])
    first = CHANCE.normal(size=len(groups))
    second = first + CHANCE.normal(size=len(groups))
    metrics = with_interval("s", mean_of_groups(pearson), first, second, groups, groups=groups)
    chance, drawn = np.random.default_rng(99), []
    for _ in range(2000):
        rows = [chance.choice(np.flatnonzero(groups == group), np.sum(groups == group)) for group in range(3)]
        drawn.append(np.mean([correlation(first[resampled], second[resampled]) for resampled in rows]))
    assert [metrics["s_low"], metrics["s_high"]] == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=0.03)


def test_there_is_no_interval_where_most_resamples_have_no_metric():
    """Half the resamples of two pairs are constant, so that twelve folds of two nearly never have a mean."""
    first, second, folds = np.arange(24.0), np.tile([0.0, 5.0], 12), np.repeat(np.arange(12), 2)
    metrics = with_interval("s", mean_of_groups(spearman), first, second, folds, groups=folds, resamples=100)
    assert metrics == {"s": pytest.approx(1)}


def test_a_resample_has_as_many_subjects_and_all_stays_of_each():
    subjects = np.array(["b", "a", "b", "c", "b"])
    weights = np.concatenate(list(resampled_weights(subjects, seed=0, resamples=500)))
    assert weights.shape == (500, 5)
    assert (weights[:, 0] == weights[:, 2]).all() and (weights[:, 0] == weights[:, 4]).all()
    assert (weights[:, [0, 1, 3]].sum(1) == 3).all()
    assert weights[:, [0, 1, 3]].mean(0) == pytest.approx([1, 1, 1], abs=0.15)


def mean_with_interval(values, subjects, **options):
    return with_intervals(lambda weights: {"mean": ratio(weights @ values, weights.sum(-1))}, subjects, **options)


def test_the_interval_is_that_of_copied_rows():
    values, subjects = np.random.default_rng(4).normal(size=300), np.arange(300) // 2
    metrics = mean_with_interval(values, subjects, seed=9, resamples=200)
    (weights,) = resampled_weights(subjects, 9, 200)
    slow = [np.repeat(values, row.astype(int)).mean() for row in weights]
    assert metrics["mean"] == pytest.approx(values.mean())
    assert (metrics["mean_low"], metrics["mean_high"]) == pytest.approx(tuple(np.percentile(slow, [2.5, 97.5])))


def test_what_is_not_defined_has_no_value_and_one_subject_no_interval():
    assert mean_with_interval(np.full(3, np.nan), np.arange(3)) == {"mean": None}
    assert mean_with_interval(np.array([1.0, 2.0, 3.0]), np.zeros(3)) == {"mean": 2.0}


def test_rows_that_repeat_their_subject_widen_the_interval():
    values = np.random.default_rng(5).normal(size=200)
    times = np.repeat(np.arange(200), 9)
    alone, repeated, blind = (
        metrics["mean_high"] - metrics["mean_low"]
        for metrics in (
            mean_with_interval(values, np.arange(200)),
            mean_with_interval(values[times], times),
            mean_with_interval(values[times], np.arange(1800)),
        )
    )
    assert repeated == pytest.approx(alone, rel=0.2)
    assert blind < 0.5 * alone


def test_a_distance_is_freed_of_the_noise_of_a_resample():
    assert distance_interval(0.5, 0.4, 0.6) == pytest.approx(((2 * 0.25 - 0.36) ** 0.5, (2 * 0.25 - 0.16) ** 0.5))
    assert distance_interval(0.026, 0.021, 0.049) == pytest.approx((0, (2 * 0.026**2 - 0.021**2) ** 0.5))
    assert distance_interval(0.01, 0.02, 0.03) == (0, 0.01)


def test_columns_are_drawn_together():
    """Rows stay rows: the correlation of a column with itself is 1 in every sample."""
    values = CHANCE.random(50)
    metrics = with_interval("same", spearman, values, values)
    assert list(metrics.values()) == pytest.approx([1, 1, 1])
