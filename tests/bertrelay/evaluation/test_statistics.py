"""Figures and their intervals, against scipy, numpy and the exact binomial."""

import warnings

import numpy as np
import pytest
from scipy import stats

from bertrelay.evaluation.statistics import pearson, share, spearman, with_interval

CHANCE = np.random.default_rng(0)


def test_spearman_is_scipys_with_many_ties():
    gold = CHANCE.integers(0, 6, 200).astype(float)
    scores = gold + CHANCE.integers(-3, 4, 200)
    assert spearman(scores, gold) == pytest.approx(stats.spearmanr(scores, gold).statistic)


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


def test_about_19_of_20_intervals_hold_the_true_share():
    covered = 0
    for seed in range(100):
        hits = (np.random.default_rng(seed).random(100) < 0.7).astype(float)
        found = with_interval("accuracy", share, hits, seed=seed, resamples=200)
        covered += found["accuracy_low"] <= 0.7 <= found["accuracy_high"]
    assert 86 <= covered <= 100  # 95 ± 4 standard deviations of a binomial


def test_columns_are_drawn_together():
    """Rows stay rows: the correlation of a column with itself is 1 in every sample."""
    values = CHANCE.random(50)
    found = with_interval("same", spearman, values, values)
    assert list(found.values()) == pytest.approx([1, 1, 1])


def test_an_interval_is_the_same_each_time():
    hits = (CHANCE.random(60) < 0.5).astype(float)
    assert with_interval("a", share, hits, seed=3) == with_interval("a", share, hits, seed=3)
    assert with_interval("a", share, hits, seed=3) != with_interval("a", share, hits, seed=4)


def test_what_was_not_measured_is_none_and_one_row_has_no_interval():
    assert with_interval("a", share, np.array([])) == {"a": None}
    assert with_interval("a", share, np.array([1.0])) == {"a": 1.0}
    assert share(np.array([])) is None


def test_samples_without_a_figure_are_left_out():
    """Of five rows with one odd one, a third of the samples are constant and have no correlation."""
    first, second = np.array([0.0, 0, 0, 0, 1]), np.array([0.0, 0, 0, 0, 1])
    assert list(with_interval("s", spearman, first, second).values()) == pytest.approx([1, 1, 1])


def mean_of_groups(statistic):
    def mean(first, second, groups):
        values = [statistic(first[groups == group], second[groups == group]) for group in np.unique(groups)]
        return None if None in values else float(np.mean(values))

    return mean


def test_rows_of_a_group_stay_in_it():
    """In each group the columns fall together, in all taken as one they rise: every resample has the groups' figure."""
    first = np.concatenate([np.arange(20.0), 100 + np.arange(20.0)])
    second, groups = np.concatenate([-np.arange(20.0), 100 - np.arange(20.0)]), np.repeat([0, 1], 20)
    sizes = []

    def counted(*columns):
        sizes.append(tuple(np.bincount(columns[2])))
        return mean_of_groups(pearson)(*columns)

    found = with_interval("s", counted, first, second, groups, groups=groups, resamples=50)
    assert list(found.values()) == pytest.approx([-1, -1, -1])
    assert set(sizes) == {(20, 20)}


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


def test_there_is_no_interval_where_most_resamples_have_no_figure():
    """Half the resamples of two pairs are constant, so that twelve folds of two nearly never have a mean."""
    first, second, folds = np.arange(24.0), np.tile([0.0, 5.0], 12), np.repeat(np.arange(12), 2)
    assert with_interval("s", mean_of_groups(spearman), first, second, folds, groups=folds) == {"s": pytest.approx(1)}
