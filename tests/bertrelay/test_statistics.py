"""Figures and their intervals, against scipy, numpy and the exact binomial."""

import warnings

import numpy as np
import pytest
from scipy import stats

from bertrelay.statistics import share, spearman, with_interval

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
