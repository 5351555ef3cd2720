import numpy as np
import pytest

from students.bitext import Neighbours, Pairs, best_quality, one_to_one, quality_at, score_pairs


def neighbours(cosines: np.ndarray, k: int) -> Neighbours:
    """By sorting whole rows."""
    rows = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    return Neighbours(np.take_along_axis(cosines, rows, 1), rows)


def as_dict(pairs: Pairs) -> dict[tuple[int, int], float]:
    return {(s, t): score for score, s, t in zip(*(column.tolist() for column in pairs), strict=True)}


def test_the_margin_is_that_of_arithmetic_by_hand() -> None:
    cosines = np.array([[0.9, 0.6, 0.1], [0.5, 0.7, 0.2]])
    found = as_dict(score_pairs(neighbours(cosines, 2), neighbours(cosines.T, 2)))
    # (0, 0): of row 0 the mean of 0.9 and 0.6 is 0.75, of column 0 that of 0.9 and 0.5 is 0.7; their mean is 0.725.
    assert found[0, 0] == pytest.approx(0.9 / 0.725)
    assert found[1, 1] == pytest.approx(0.7 / (((0.7 + 0.5) / 2 + (0.6 + 0.7) / 2) / 2))
    # (0, 2) is of the two nearest of column 2 alone, and nobody counts it twice.
    assert found[0, 2] == pytest.approx(0.1 / ((0.75 + 0.15) / 2))
    assert len(found) == 6


def test_a_pair_that_is_near_in_neither_direction_is_none() -> None:
    cosines = np.eye(3) + 0.1 * np.arange(9).reshape(3, 3) / 9
    found = as_dict(score_pairs(neighbours(cosines, 1), neighbours(cosines.T, 1)))
    assert set(found) == {(0, 0), (1, 1), (2, 2)}


def test_what_is_near_to_nothing_has_the_score_zero() -> None:
    cosines = np.array([[0.0, -0.5], [-0.25, -0.5]])
    found = as_dict(score_pairs(neighbours(cosines, 2), neighbours(cosines.T, 2)))
    assert set(found.values()) == {0.0}


def test_pairs_stand_best_first_and_equal_ones_by_their_rows() -> None:
    cosines = np.array([[0.5, 0.5], [0.5, 0.9]])
    pairs = score_pairs(neighbours(cosines, 2), neighbours(cosines.T, 2))
    assert list(as_dict(pairs)) == [(1, 1), (0, 0), (0, 1), (1, 0)]
    assert np.all(np.diff(pairs.scores) <= 0)


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_each_row_is_taken_once_by_its_best_pair_that_is_left(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("students.bitext.CHUNK", chunk)
    pairs = Pairs(np.array([5.0, 4, 3, 2, 1]), np.array([0, 0, 1, 2, 2]), np.array([1, 0, 1, 1, 0]))
    taken = one_to_one(pairs)
    assert list(zip(*(column.tolist() for column in taken), strict=True)) == [(5.0, 0, 1), (1.0, 2, 0)]


def test_the_best_threshold_is_the_best_of_all_that_one_can_try() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        scores = np.sort(generator.integers(0, 12, 30) / 4)[::-1]  # with many ties
        right = generator.random(30) < 0.4
        gold = int(right.sum()) + 5
        found = best_quality(scores, right, gold)
        tried = [quality_at(threshold, scores, right, gold).f1 for threshold in np.unique(scores)]
        assert found.f1 == pytest.approx(max(tried), abs=0)


def test_figures_at_a_threshold_are_those_of_arithmetic_by_hand() -> None:
    scores, right = np.array([1.4, 1.3, 1.3, 1.0]), np.array([True, True, False, True])
    assert quality_at(1.3, scores, right, 5) == (pytest.approx(4 / 8), pytest.approx(2 / 3), pytest.approx(2 / 5), 1.3)
    assert quality_at(2.0, scores, right, 5) == (0.0, None, 0.0, 2.0)
    best = best_quality(scores, right, 3)
    assert (best.precision, best.recall) == (3 / 4, 1.0)


def test_the_threshold_stands_between_what_is_taken_and_what_is_not() -> None:
    scores, right = np.array([1.4, 1.2, 1.1]), np.array([True, False, False])
    assert best_quality(scores, right, 1).threshold == pytest.approx(1.3)
    assert best_quality(scores, ~right, 2).threshold == pytest.approx(1.1)  # all are taken


def test_where_nothing_is_right_the_fewest_are_taken() -> None:
    found = best_quality(np.array([1.4, 1.2]), np.array([False, False]), 2)
    assert found == (0.0, 0.0, 0.0, pytest.approx(1.3))
