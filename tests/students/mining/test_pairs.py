"""Pairs scored by ratio margin and taken one to one, against arithmetic by hand."""

import numpy as np
import pytest

from students.mining.knn import Neighbours
from students.mining.pairs import Pairs, one_to_one, score_pairs


def neighbours(cosines, k):
    """Sorts whole rows."""
    rows = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    return Neighbours(np.take_along_axis(cosines, rows, 1), rows)


def as_dict(pairs):
    return {(s, t): score for score, s, t in zip(*(column.tolist() for column in pairs), strict=True)}


def test_the_margin_is_that_of_arithmetic_by_hand():
    cosines = np.array([[0.9, 0.6, 0.1], [0.5, 0.7, 0.2]])
    scores = as_dict(score_pairs(neighbours(cosines, 2), neighbours(cosines.T, 2)))
    # (0, 0): of row 0 the mean of 0.9 and 0.6 is 0.75, of column 0 that of 0.9 and 0.5 is 0.7; their mean is 0.725.
    assert scores[0, 0] == pytest.approx(0.9 / 0.725)
    assert scores[1, 1] == pytest.approx(0.7 / (((0.7 + 0.5) / 2 + (0.6 + 0.7) / 2) / 2))
    # (0, 2) is among the two nearest of column 2 only, and counts once.
    assert scores[0, 2] == pytest.approx(0.1 / ((0.75 + 0.15) / 2))
    assert len(scores) == 6


def test_pairs_near_in_one_direction_are_scored_and_others_not():
    near = np.eye(3) + 0.1 * np.arange(9).reshape(3, 3) / 9
    assert set(as_dict(score_pairs(neighbours(near, 1), neighbours(near.T, 1)))) == {(0, 0), (1, 1), (2, 2)}


def test_a_sentence_near_to_nothing_has_a_margin_of_zero():
    far = np.array([[0.0, -0.5], [-0.25, -0.5]])
    assert set(as_dict(score_pairs(neighbours(far, 2), neighbours(far.T, 2))).values()) == {0.0}


def test_pairs_come_best_first_and_equal_ones_in_the_order_of_their_rows():
    equal = np.array([[0.5, 0.5], [0.5, 0.9]])
    pairs = score_pairs(neighbours(equal, 2), neighbours(equal.T, 2))
    assert list(as_dict(pairs)) == [(1, 1), (0, 0), (0, 1), (1, 0)]
    assert np.all(np.diff(pairs.scores) <= 0)


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_a_row_is_taken_once_in_its_best_remaining_pair(chunk, monkeypatch):
    monkeypatch.setattr("students.mining.pairs.CHUNK", chunk)
    pairs = Pairs(np.array([5.0, 4, 3, 2, 1]), np.array([0, 0, 1, 2, 2]), np.array([1, 0, 1, 1, 0]))
    taken = one_to_one(pairs)
    assert list(zip(*(column.tolist() for column in taken), strict=True)) == [(5.0, 0, 1), (1.0, 2, 0)]
