"""Quality of mined pairs by gold: against every threshold, arithmetic by hand and resampled sources."""

import numpy as np
import pytest

from students.mining.gold import best_quality, compare_with_gold, f1_interval, quality_at
from students.mining.pairs import Pairs


@pytest.fixture
def crossed():
    """Mined pairs of rows 0 to 3, where rows 1 and 2 have one vector, and gold with these two crossed."""
    pairs = Pairs(np.array([1.4, 1.3, 1.2, 1.1]), np.array([1, 2, 0, 3]), np.array([1, 2, 0, 0]))
    return pairs, np.array([1 * 4 + 2, 2 * 4 + 1, 0, 3 * 4 + 3])


ONE_VECTOR = np.array([0, 1, 1, 2])


def test_pairs_of_equal_vectors_are_true_whichever_is_taken(crossed):
    compared = compare_with_gold(*crossed, ONE_VECTOR, ONE_VECTOR)
    assert compared.is_true.tolist() == [True, True, True, False]
    assert (compared.true.tolist(), compared.mined.tolist()) == ([1, 1, 0, 2], [1, 1, 0, 2])
    apart = compare_with_gold(*crossed, np.arange(4), np.arange(4))
    assert apart.is_true.tolist() == [False, False, True, False]


def test_as_many_pairs_of_equal_vectors_are_true_as_gold_has(crossed):
    pairs, true_pairs = crossed
    once = compare_with_gold(pairs, true_pairs[1:], ONE_VECTOR, ONE_VECTOR)
    assert once.is_true.tolist() == [True, False, True, False]
    without_gold = compare_with_gold(pairs, np.array([], np.int64), ONE_VECTOR, ONE_VECTOR)
    assert without_gold.is_true.tolist() == [False] * 4


def test_the_interval_of_f1_is_that_of_resampled_sources():
    true, mined = np.arange(60), np.arange(20, 100)  # 40 of each are the same
    low, high = f1_interval(true, mined, mined < 60)
    generator, drawn = np.random.default_rng(5), []
    for _ in range(2000):
        sources = generator.integers(0, 100, 100)
        drawn.append(2 * np.sum((sources >= 20) & (sources < 60)) / (np.sum(sources < 60) + np.sum(sources >= 20)))
    assert (low, high) == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=0.015)
    assert f1_interval(true, np.array([], int), np.array([], bool)) == (0, 0)


def test_the_best_threshold_is_the_best_of_all():
    generator = np.random.default_rng(0)
    for _ in range(50):
        scores = np.sort(generator.integers(0, 12, 30) / 4)[::-1]  # with many ties
        is_true = generator.random(30) < 0.4
        true_pairs = int(is_true.sum()) + 5
        all_f1 = [quality_at(threshold, scores, is_true, true_pairs).f1 for threshold in np.unique(scores)]
        assert best_quality(scores, is_true, true_pairs).f1 == pytest.approx(max(all_f1), abs=0)


def test_metrics_at_a_threshold_are_those_of_arithmetic_by_hand():
    scores, is_true = np.array([1.4, 1.3, 1.3, 1.0]), np.array([True, True, False, True])
    expected = pytest.approx(4 / 8), pytest.approx(2 / 3), pytest.approx(2 / 5), 1.3
    assert quality_at(1.3, scores, is_true, 5) == expected
    assert quality_at(2.0, scores, is_true, 5) == (0.0, None, 0.0, 2.0)


def test_the_best_threshold_lies_between_the_last_pair_taken_and_the_next():
    scores, is_true = np.array([1.4, 1.2, 1.1]), np.array([True, False, False])
    assert best_quality(scores, is_true, 1).threshold == pytest.approx(1.3)
    assert best_quality(scores, ~is_true, 2).threshold == pytest.approx(1.1)  # all are taken
    none = best_quality(np.array([1.4, 1.2]), np.array([False, False]), 2)
    assert none == (0.0, 0.0, 0.0, pytest.approx(1.3)), "without a true pair the fewest are taken"
