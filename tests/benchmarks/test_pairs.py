"""The closest pair beside scipy."""

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from benchmarks.pairs import closest_pair


@pytest.mark.parametrize("pair", [(7, 31), (44, 45), (0, 49)])
def test_the_closest_pair_in_float64_is_that_of_scipy_wherever_it_stands(pair, monkeypatch):
    monkeypatch.setattr("benchmarks.pairs.ROWS_AT_ONCE", 7)
    vectors = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    vectors[pair[1]] = vectors[pair[0]] + np.float32(0.01)
    distances = pdist(vectors.astype(np.float64), "cosine")
    assert tuple(side[distances.argmin()] for side in np.triu_indices(50, 1)) == pair
    assert closest_pair(vectors, np.float64) == (pytest.approx(1 - distances.min(), abs=1e-12), *pair)
    assert closest_pair(vectors)[1:] == pair
