import tracemalloc

import numpy as np
import pytest
from scipy.spatial import distance

from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import METRICS, is_among_nearest, matrix, pairwise

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


def test_vectors_that_cannot_be_compared_are_refused():
    with pytest.raises(RequestError, match=r"\(3, 7\) and \(2, 7\)"):
        pairwise(vectors(3), vectors(2))


def test_a_zero_vector_has_cosine_0_with_everything():
    assert matrix(np.zeros((1, 2), np.float32), np.float32([[1, 0], [0, 0]]), "cosine").tolist() == [[0, 0]]


@pytest.mark.parametrize("block", [1, 4, 1000])
@pytest.mark.parametrize("k", [1, 3, 21])
def test_a_row_is_among_the_nearest_by_its_rank_in_the_whole_matrix(k, block):
    queries, corpus = vectors(33), vectors(21, seed=1)
    targets = np.arange(33) % 21
    distances = distance.cdist(queries, corpus, "cosine")
    expected = (distances < distances[np.arange(33), targets][:, None]).sum(axis=1) < k
    assert is_among_nearest(queries, corpus, targets, k, block).tolist() == expected.tolist()
    assert expected.any()


@pytest.mark.parametrize("block", [1, 16, 1000])
def test_of_equal_vectors_each_is_the_nearest_and_where_all_are_equal_none_is(block):
    distinct = vectors(37, dim=384)
    corpus = np.concatenate([distinct, distinct * 3, distinct])  # a cosine knows no length
    assert is_among_nearest(corpus, corpus, block=block).all()
    assert is_among_nearest(distinct[:5], corpus, np.arange(5) + 1, block=block).tolist() == [False] * 5
    one = np.repeat(distinct[:1], 30, axis=0)
    assert not is_among_nearest(distinct[:30], one, block=block).any()
    assert not is_among_nearest(np.zeros((4, 384), np.float32), distinct, block=block).any()
    assert is_among_nearest(one[:1], one[:1], block=block).all(), "the one that there is"


def test_a_search_holds_less_than_the_full_matrix():
    rows = vectors(3000, dim=4)
    tracemalloc.start()
    is_among_nearest(rows, rows, block=100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3000 * 3000 * 4 / 20
