import tracemalloc

import numpy as np
import pytest
from scipy.spatial import distance

from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import METRICS, matrix, nearest, pairwise

PEERS = {
    "cosine": lambda a, b: 1 - distance.cosine(a, b),
    "dot": lambda a, b: sum(x * y for x, y in zip(a, b, strict=True)),
    "euclidean": lambda a, b: -distance.euclidean(a, b),
    "manhattan": lambda a, b: -distance.cityblock(a, b),
}


def vectors(rows, seed=0, dim=7):
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_agrees_with_scipy(metric):
    first, second = vectors(5), vectors(4, seed=1)
    expected = [[PEERS[metric](a.astype(float), b.astype(float)) for b in second] for a in first]
    for block in (3, 1024):
        np.testing.assert_allclose(matrix(first, second, metric, block), expected, atol=1e-5)
    np.testing.assert_allclose(pairwise(first[:4], second, metric), np.diag(expected), atol=1e-5)


@pytest.mark.parametrize(
    ("compare", "message"),
    [
        (lambda: pairwise(vectors(3), vectors(2)), r"\(3, 7\) and \(2, 7\)"),
        (lambda: nearest(vectors(1), vectors(0)), "empty corpus"),
    ],
)
def test_vectors_that_cannot_be_compared_are_refused(compare, message):
    with pytest.raises(RequestError, match=message):
        compare()


def test_a_zero_vector_has_cosine_0_with_everything():
    assert matrix(np.zeros((1, 2), np.float32), np.float32([[1, 0], [0, 0]]), "cosine").tolist() == [[0, 0]]


@pytest.mark.parametrize("block", [1, 4, 1000])
def test_nearest_is_the_argmax_of_the_whole_matrix(block):
    queries, corpus = vectors(33), vectors(21, seed=1)
    expected = (1 - distance.cdist(queries, corpus, "cosine")).argmax(axis=1)
    assert nearest(queries, corpus, block).tolist() == expected.tolist()


@pytest.mark.parametrize("block", [1, 16, 64, 1000])
def test_of_equal_vectors_the_lowest_row_wins_whatever_the_blocks(block):
    distinct = vectors(37, dim=384)
    corpus = np.concatenate([distinct, distinct * 3, distinct])  # a cosine knows no length
    assert nearest(distinct, corpus, block).tolist() == list(range(37))


def test_a_search_holds_less_than_the_full_matrix():
    rows = vectors(3000, dim=4)
    tracemalloc.start()
    nearest(rows, rows, 100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3000 * 3000 * 4 / 20
