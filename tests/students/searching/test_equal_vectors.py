from itertools import pairwise

import numpy as np
from unit_vectors import drawn

from students.searching.equal_vectors import EqualRows, equal_rows


def test_vectors_are_equal_to_rounding_and_no_farther():
    corpus = drawn(500, dim=64)
    assert equal_rows(corpus) is None
    rounded = corpus[[7, 9]] + np.float32(1e-7)
    near = corpus[[3]] * np.float32(1 + 1e-4)
    equal = equal_rows(np.concatenate([corpus, rounded, near]))
    assert equal.numbers.tolist() == [*range(500), 7, 9, 500]
    assert [equal.rows[start:end].tolist() for start, end in pairwise(equal.starts.tolist())][7:10] == [
        [7, 500],
        [8],
        [9, 501],
    ]


def test_rows_of_equal_vectors_fill_the_k_ranks():
    equal = EqualRows(np.array([0, 2, 3, 6]), np.array([0, 4, 1, 2, 3, 5]))
    numbers, nearness = (
        np.array([[2, 1, 0], [1, -1, -1]]),
        np.array([[0.9, 0.5, 0.1], [1.0, -np.inf, -np.inf]], np.float32),
    )
    similarities, rows = equal.spread(nearness, numbers, 5)
    assert rows.tolist() == [[2, 3, 5, 1, 0], [1, -1, -1, -1, -1]]
    np.testing.assert_array_equal(similarities[0], np.array([0.9, 0.9, 0.9, 0.5, 0.1], np.float32))
    assert equal.spread(nearness, numbers, 2)[1].tolist() == [[2, 3], [1, -1]]
    assert equal.spread(nearness, numbers, 99)[1].shape == (2, 6)
