"""Nearest neighbours in both directions, against brute force in float64."""

import faiss
import numpy as np
import pytest
from unit_vectors import brute_force, drawn

from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import unit
from students.mining import knn
from students.mining.knn import bidirectional_knn


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 19 queries, from one thread."""
    monkeypatch.setattr(knn, "QUERY_BLOCK", 19)
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(before)


def assert_same(actual, expected):
    assert np.array_equal(actual.rows, expected.rows)
    np.testing.assert_allclose(actual.cosines, expected.cosines, atol=2e-12)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("sources", "targets", "k"), [(70, 50, 4), (17, 11, 1), (3, 90, 4), (1, 1, 4), (40, 40, 40)])
def test_both_directions_are_those_of_brute_force_in_float64(sources, targets, k):
    source, target = drawn(sources, seed=1), drawn(targets, seed=2)
    forward, backward = bidirectional_knn(source, target, k, "exact")
    assert_same(forward, brute_force(source, target, k))
    assert_same(backward, brute_force(target, source, k))


@pytest.mark.usefixtures("small_blocks")
def test_neighbours_nearer_to_one_another_than_float32_can_resolve_are_ranked_right():
    source = drawn(30, dim=384, seed=1)
    target = np.repeat(source[:12], 5, axis=0)
    target += np.random.default_rng(3).normal(scale=2e-8, size=target.shape).astype(np.float32)
    forward, backward = bidirectional_knn(source, target, 4, "exact")
    expected = brute_force(source, target, 4)
    gaps = np.diff(brute_force(source, target, 5).cosines, axis=1)
    assert np.abs(gaps).min() < 1e-7, "float32 cosines could not order these"
    assert_same(forward, expected)
    assert_same(backward, brute_force(target, source, 4))


@pytest.mark.usefixtures("small_blocks")
def test_equal_vectors_are_in_the_order_of_their_rows_and_one_of_zeros_is_near_to_nothing():
    source = drawn(5, dim=384)
    target = np.tile(source, (4 + knn.SPARE, 1))
    forward, backward = bidirectional_knn(source, target, 4, "exact")
    assert np.array_equal(forward.rows, np.arange(5)[:, None] + 5 * np.arange(4))
    assert np.array_equal(backward.rows[:, 0], np.arange(len(target)) % 5)
    source[3] = 0
    forward, backward = bidirectional_knn(source, target, 2, "exact")
    assert not forward.cosines[3].any()
    assert_same(backward, brute_force(target, source, 2))


@pytest.mark.usefixtures("small_blocks")
def test_a_graph_finds_almost_all_neighbours_with_their_true_cosines():
    source, target = drawn(300, seed=1), drawn(400, seed=2)
    forward, backward = bidirectional_knn(source, target, 4, "approximate")
    for actual, queries, corpus in ((forward, source, target), (backward, target, source)):
        expected = brute_force(queries, corpus, 4)
        assert (actual.rows == expected.rows).mean() > 0.99
        cosines = np.einsum("nd,nkd->nk", queries.astype(np.float64), corpus[actual.rows].astype(np.float64))
        np.testing.assert_allclose(actual.cosines, cosines, atol=1e-6)


def test_where_a_graph_leads_to_fewer_the_best_or_the_first_row_is_repeated():
    queries, corpus = drawn(2), drawn(9, seed=1)
    rows = np.array([[5, 2, -1, -1], [-1, -1, -1, -1]], np.int32)
    neighbours = knn._rescore(rows, queries, corpus, 4)
    assert set(neighbours.rows[0]) == {5, 2}
    assert not neighbours.rows[1].any()
    np.testing.assert_allclose(neighbours.cosines[1], queries[1] @ corpus[0], atol=1e-6)


def test_auto_is_exact_up_to_a_number_of_pairs_and_logs_the_method(monkeypatch, capsys):
    monkeypatch.setattr(knn, "EXACT_PAIRS", 100)
    bidirectional_knn(drawn(10), drawn(10), 2)
    assert "comparing 10 with 10 sentences exactly" in capsys.readouterr().err
    bidirectional_knn(drawn(10), drawn(11), 2)
    assert "through a graph, as they make more than 100 pairs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "target", "k", "message"),
    [
        (drawn(3, dim=8), drawn(3, dim=4), 4, r"same dim.*found \(3, 8\) and \(3, 4\)"),
        (drawn(3), drawn(3)[:0], 4, r"at least one of each.*\(0, 16\)"),
        (drawn(3)[0], drawn(3), 4, r"\(16,\)"),
        (drawn(3), np.where(np.arange(48).reshape(3, 16) == 20, np.nan, drawn(3)), 4, "target sentence 2"),
    ],
)
def test_vectors_that_cannot_be_compared_are_refused(source, target, k, message):
    with pytest.raises(RequestError, match=message):
        bidirectional_knn(source, target, k)


def test_a_graph_finds_the_neighbours_beside_thousands_of_equal_targets():
    source, others = drawn(300), drawn(300) + np.float32(0.01) * drawn(300, seed=3)
    target = np.concatenate([np.repeat(drawn(1, seed=5), 2000, axis=0), unit(others)])
    forward, _ = bidirectional_knn(source, target, 4, "approximate")
    np.testing.assert_array_equal(forward.rows[:, 0], np.arange(2000, 2300))
