import os
import resource
import subprocess
import sys
from functools import partial
from itertools import pairwise

import faiss
import numpy as np
import pytest

from bertrelay.errors import RequestError, WorkError
from bertrelay.evaluation.similarity import unit
from students import neighbours
from students.bitext import Neighbours
from students.equal_vectors import EqualRows, distinct, equal_rows
from students.neighbours import (
    approximate_neighbours,
    bidirectional_knn,
    build_codes,
    build_hnsw,
    exact_neighbours,
    open_faiss,
    recall,
    rescored_neighbours,
    write_index,
)
from students.search_settings import Hnsw

BLOCK = 64
SMALL = Hnsw(links=8, ef_construction=40, ef_search=32)


def drawn(rows, dim=16, seed=0):
    return unit(np.random.default_rng(seed).standard_normal((rows, dim)).astype(np.float32))


@pytest.fixture
def small_blocks(monkeypatch):
    """A checkpoint after every 64 vectors of a graph and every 19 queries, from one thread."""
    monkeypatch.setattr(neighbours, "GRAPH_BLOCK", BLOCK)
    monkeypatch.setattr(neighbours, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    monkeypatch.setattr(neighbours, "QUERY_BLOCK", 19)
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(before)


@pytest.fixture
def added(monkeypatch):
    """How many vectors each call adds to a graph."""
    calls = []
    add = faiss.IndexHNSWFlat.add

    def spy(self, vectors):
        calls.append(len(vectors))
        add(self, vectors)

    monkeypatch.setattr(faiss.IndexHNSWFlat, "add", spy)
    return calls


def brute_force(queries, corpus, k):
    """The cosines and rows of the nearest, in float64; of equals the lower row."""
    own, other = queries.astype(np.float64), corpus.astype(np.float64)
    lengths = np.linalg.norm(own, axis=1)[:, None] * np.linalg.norm(other, axis=1)
    cosines = (own @ other.T / np.where(lengths > 0, lengths, 1)).round(12)
    rows = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    return Neighbours(np.take_along_axis(cosines, rows, 1), rows)


@pytest.mark.parametrize("queries", [3, 50])  # FAISS has a way of its own for few
def test_exact_neighbours_are_those_of_float64_also_in_a_mapped_file(queries, tmp_path):
    np.save(tmp_path / "corpus.npy", drawn(500))
    corpus = np.load(tmp_path / "corpus.npy", mmap_mode="r")
    similarities, rows = exact_neighbours(drawn(queries, seed=1), corpus, 7)
    expected = brute_force(drawn(queries, seed=1), corpus, 7)
    np.testing.assert_array_equal(rows, expected[1])
    np.testing.assert_allclose(similarities, expected[0], atol=1e-6)


def test_more_neighbours_than_there_are_is_all_there_are_with_equals_in_the_order_of_their_rows():
    corpus = np.repeat(np.eye(4, dtype=np.float32), 3, axis=0)
    assert exact_neighbours(corpus[6:7], corpus, 99)[1].tolist() == [[6, 7, 8, 0, 1, 2, 3, 4, 5, 9, 10, 11]]
    found = approximate_neighbours(build_hnsw(corpus, SMALL), corpus[:1], 99, 1)[1]
    assert sorted(found[0].tolist()) == list(range(12))
    with pytest.raises(RequestError, match=r"shape \(n, 4\), found \(2, 8\)"):
        exact_neighbours(drawn(2, 8), corpus, 3)


def through(graph, ef_search):
    return partial(approximate_neighbours, graph, ef_search=ef_search)


@pytest.mark.parametrize("ef_search", [1, 4, 400])
def test_recall_is_the_share_of_the_ten_nearest_others(ef_search):
    corpus = drawn(400)
    graph = build_hnsw(corpus, Hnsw(links=2, ef_construction=4))
    cosines = corpus.astype(np.float64) @ corpus.astype(np.float64).T
    np.fill_diagonal(cosines, -2)
    wanted = [set(np.argsort(-row)[:10].tolist()) for row in cosines]
    found = approximate_neighbours(graph, corpus, 11, ef_search)[1]
    others = [[row for row in rows.tolist() if row != query][:10] for query, rows in enumerate(found)]
    expected = [len(wanted[query].intersection(rows)) / 10 for query, rows in enumerate(others)]
    np.testing.assert_allclose(recall(through(graph, ef_search), corpus), expected)
    assert 0.2 < np.mean(expected) <= 1


def test_in_recall_a_copy_is_as_good_as_the_neighbour_and_few_vectors_have_few_others():
    corpus = np.repeat(drawn(10), 30, axis=0)
    assert recall(through(build_hnsw(corpus, Hnsw()), 400), corpus).min() == 1
    assert recall(through(build_hnsw(drawn(3), SMALL), 10), drawn(3)).tolist() == [1, 1, 1]
    assert len(recall(through(build_hnsw(drawn(1), SMALL), 10), drawn(1))) == 0


@pytest.mark.parametrize(("stored", "bytes_a_vector"), [("int8", 16), ("binary", 2)])
def test_codes_keep_few_bytes_and_their_candidates_are_compared_in_float32(stored, bytes_a_vector, tmp_path):
    corpus, queries = drawn(500), drawn(20, seed=1)
    write_index(build_codes(corpus, stored), tmp_path / "codes.faiss")
    codes = open_faiss(tmp_path / "codes.faiss", stored)
    assert codes.code_size == bytes_a_vector and corpus.shape == (500, 16)
    wanted = brute_force(queries, corpus, 5)
    similarities, rows = rescored_neighbours(codes, corpus, queries, 5, 500)  # all are candidates
    np.testing.assert_array_equal(rows, wanted.rows)
    np.testing.assert_allclose(similarities, wanted.cosines, atol=1e-6)
    few, some = (
        np.mean((rescored_neighbours(codes, corpus, queries, 5, count)[1][:, :, None] == rows[:, None, :]).any(axis=1))
        for count in (5, 50)
    )
    assert few < some or few == 1
    assert few > (0.9 if stored == "int8" else 0.1) and some > (0.99 if stored == "int8" else 0.6)
    assert rescored_neighbours(codes, corpus, queries, 999, 1)[1].shape == (20, 500)
    with pytest.raises(RequestError, match="another model's"):
        rescored_neighbours(codes, corpus, drawn(2, 8), 3, 9)


def test_a_written_index_is_one_of_faiss_opens_without_a_copy_and_half_of_it_is_reported(tmp_path):
    corpus = drawn(200)
    write_index(build_hnsw(corpus, SMALL), tmp_path / "hnsw.faiss")
    asked = faiss.read_index(str(tmp_path / "hnsw.faiss")).search(corpus[:9], 5)[1]
    opened = open_faiss(tmp_path / "hnsw.faiss", "hnsw")
    np.testing.assert_array_equal(approximate_neighbours(opened, corpus[:9], 5, 16)[1], asked)
    assert not faiss.downcast_index(opened.storage).codes.is_owned
    assert [path.name for path in tmp_path.iterdir()] == ["hnsw.faiss"]
    whole = (tmp_path / "hnsw.faiss").read_bytes()
    for part in (whole[: len(whole) // 2], b"", b"something else"):
        (tmp_path / "hnsw.faiss").write_bytes(part)
        with pytest.raises(RequestError, match=r"expected an index of FAISS, .* in .*hnsw\.faiss"):
            open_faiss(tmp_path / "hnsw.faiss", "hnsw")


@pytest.mark.usefixtures("small_blocks")
def test_a_graph_that_was_killed_goes_on_to_the_same_bytes(tmp_path, added, kill_at):
    vectors = drawn(500)
    kill_at(faiss.IndexHNSWFlat, "add", 4, lambda: build_hnsw(vectors, SMALL, tmp_path / "graph", "key"))
    resumed = build_hnsw(vectors, SMALL, tmp_path / "graph", "key")
    assert sum(added) == 500 - 3 * BLOCK
    write_index(resumed, tmp_path / "resumed")
    write_index(build_hnsw(vectors, SMALL), tmp_path / "whole")
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.usefixtures("small_blocks")
def test_a_finished_graph_is_linked_again_only_for_other_vectors_or_links(tmp_path, added, capsys):
    def links(vectors, hnsw, key):
        added.clear()
        build_hnsw(vectors, hnsw, tmp_path / "graph", key)
        return sum(added)

    assert links(drawn(100), SMALL, "key") == 100
    assert links(drawn(100), SMALL, "key") == 0
    assert links(drawn(100), SMALL.model_copy(update={"ef_search": 99}), "key") == 0
    assert "built again" not in capsys.readouterr().err
    assert links(drawn(100), SMALL, "other key") == 100
    assert links(drawn(90), SMALL, "other key") == 90
    assert links(drawn(90), Hnsw(links=9), "other key") == 90
    assert capsys.readouterr().err.count("the graph is built again") == 3


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("place", [3, -1])
def test_a_flipped_byte_in_a_checkpoint_is_seen(place, tmp_path, added, capsys):
    build_hnsw(drawn(100), SMALL, tmp_path / "graph", "key")
    written = bytearray((tmp_path / "graph").read_bytes())
    written[place] ^= 1
    (tmp_path / "graph").write_bytes(written)
    added.clear()
    build_hnsw(drawn(100), SMALL, tmp_path / "graph", "key")
    assert sum(added) == 100
    assert "graph is damaged or of another index; the graph is built again" in capsys.readouterr().err


@pytest.mark.usefixtures("small_blocks")
def test_a_full_disk_is_reported_and_leaves_the_last_checkpoint(tmp_path):
    build_hnsw(drawn(100), SMALL, tmp_path / "graph", "key")
    before = (tmp_path / "graph").read_bytes()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limit[1]))
    try:
        with pytest.raises(WorkError, match=r"could not write .*graph: .*free space"):
            build_hnsw(drawn(200), SMALL, tmp_path / "graph", "key")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert (tmp_path / "graph").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]


def test_faiss_and_torch_compute_in_one_process_also_when_faiss_comes_first():
    script = (
        "import faiss, torch, numpy as np\n"
        "v = np.random.default_rng(0).standard_normal((3000, 32)).astype('float32')\n"
        "for _ in range(3):\n"
        "    found = faiss.knn(v[:100], v, 5, metric=faiss.METRIC_INNER_PRODUCT)[1]\n"
        "    exact = (torch.from_numpy(v[:100]) @ torch.from_numpy(v).T).topk(5).indices.numpy()\n"
        "    assert (found == exact).mean() > 0.999\n"
        "faiss.IndexHNSWFlat(32, 8).add(v)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, env=os.environ | {"OMP_NUM_THREADS": "2"})


def assert_same(found, expected):
    assert np.array_equal(found.rows, expected.rows)
    np.testing.assert_allclose(found.cosines, expected.cosines, atol=2e-12)


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
    target = np.tile(source, (4 + neighbours.SPARE, 1))
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
    for found, own, other in ((forward, source, target), (backward, target, source)):
        expected = brute_force(own, other, 4)
        assert (found.rows == expected.rows).mean() > 0.99
        cosines = np.einsum("nd,nkd->nk", own.astype(np.float64), other[found.rows].astype(np.float64))
        np.testing.assert_allclose(found.cosines, cosines, atol=1e-6)


def test_empty_places_of_a_graph_hold_the_best_again_or_the_first_row():
    own, other = drawn(2), drawn(9, seed=1)
    rows = np.array([[5, 2, -1, -1], [-1, -1, -1, -1]], np.int32)
    found = neighbours._rescore(rows, own, other, 4)
    assert set(found.rows[0]) == {5, 2}
    assert not found.rows[1].any()
    np.testing.assert_allclose(found.cosines[1], own[1] @ other[0], atol=1e-6)


def test_auto_is_exact_up_to_a_number_of_pairs_and_says_which(monkeypatch, capsys):
    monkeypatch.setattr(neighbours, "EXACT_PAIRS", 100)
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


# Equal vectors


def test_a_graph_finds_every_vector_among_thousands_of_equal_ones():
    """A thousand times each of two vectors: linked as they are, they fill each other's links, and of the other 500
    fewer than a third are found.
    """
    others, repeated = drawn(500), np.repeat(drawn(2, seed=1), 1000, axis=0)
    corpus = np.concatenate([others, repeated])[np.random.default_rng(2).permutation(2500)]
    equal = equal_rows(corpus)
    assert equal is not None and len(equal) == 502
    graph = build_hnsw(distinct(corpus, equal), SMALL)
    similarities, rows = equal.spread(*approximate_neighbours(graph, others, 5, 64), 5)
    wanted = brute_force(others, corpus, 5)
    np.testing.assert_array_equal(rows[:, 0], wanted.rows[:, 0])
    np.testing.assert_allclose(similarities[:, 0], wanted.cosines[:, 0], atol=1e-6)
    assert len(set(equal.spread(*approximate_neighbours(graph, repeated[:1], 5, 64), 900)[1][0].tolist())) == 900
    assert recall(through(graph, 64), distinct(corpus, equal)).mean() > 0.99


def test_recall_of_distinct_vectors_is_the_same_block_by_block(monkeypatch):
    corpus = drawn(300)
    equal = equal_rows(np.concatenate([corpus, corpus[:50]]))
    graph = build_hnsw(corpus, Hnsw(links=2, ef_construction=4))
    wanted = recall(through(graph, 4), corpus)
    monkeypatch.setattr(neighbours, "EXACT_BLOCK", 64)
    np.testing.assert_array_equal(
        recall(through(graph, 4), distinct(np.concatenate([corpus, corpus[:50]]), equal)), wanted
    )
    assert wanted.mean() < 1


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


def test_rows_of_equal_vectors_fill_the_places_that_are_asked_for():
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


def test_mining_through_a_graph_finds_what_stands_beside_thousands_of_equal_targets():
    source, others = drawn(300), drawn(300) + np.float32(0.01) * drawn(300, seed=3)
    target = np.concatenate([np.repeat(drawn(1, seed=5), 2000, axis=0), unit(others)])
    forward, _ = bidirectional_knn(source, target, 4, "approximate")
    np.testing.assert_array_equal(forward.rows[:, 0], np.arange(2000, 2300))
