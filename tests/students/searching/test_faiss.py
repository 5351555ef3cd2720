import os
import subprocess
import sys
from functools import partial

import faiss
import numpy as np
import pytest
from unit_vectors import brute_force, drawn

from bertrelay.errors import RequestError
from students.searching import faiss as neighbours
from students.searching.equal_vectors import distinct, equal_rows
from students.searching.faiss import (
    approximate_neighbours,
    build_codes,
    build_hnsw,
    exact_neighbours,
    merge,
    open_faiss,
    recall,
    rescored_neighbours,
    write_index,
)
from students.searching.settings import Hnsw

SMALL = Hnsw(links=8, ef_construction=40, ef_search=32)


@pytest.mark.parametrize("queries", [3, 50])  # FAISS computes few in another way
def test_exact_neighbours_are_those_of_float64_also_in_a_mapped_file(queries, tmp_path):
    np.save(tmp_path / "corpus.npy", drawn(500))
    corpus = np.load(tmp_path / "corpus.npy", mmap_mode="r")
    similarities, rows = exact_neighbours(drawn(queries, seed=1), corpus, 7)
    expected = brute_force(drawn(queries, seed=1), corpus, 7)
    np.testing.assert_array_equal(rows, expected[1])
    np.testing.assert_allclose(similarities, expected[0], atol=1e-6)


def test_more_neighbours_than_rows_are_all_rows_with_equals_in_their_order():
    corpus = np.repeat(np.eye(4, dtype=np.float32), 3, axis=0)
    assert exact_neighbours(corpus[6:7], corpus, 99)[1].tolist() == [[6, 7, 8, 0, 1, 2, 3, 4, 5, 9, 10, 11]]
    nearest = approximate_neighbours(build_hnsw(corpus, SMALL), corpus[:1], 99, 1)[1]
    assert sorted(nearest[0].tolist()) == list(range(12))
    with pytest.raises(RequestError, match=r"shape \(n, 4\), found \(2, 8\)"):
        exact_neighbours(drawn(2, 8), corpus, 3)


def through(graph, ef_search):
    return partial(approximate_neighbours, graph, candidates=ef_search)


@pytest.mark.parametrize("ef_search", [1, 4, 400])
def test_recall_is_the_fraction_of_the_ten_nearest_others(ef_search):
    corpus = drawn(400)
    graph = build_hnsw(corpus, Hnsw(links=2, ef_construction=4))
    cosines = corpus.astype(np.float64) @ corpus.astype(np.float64).T
    np.fill_diagonal(cosines, -2)
    expected_rows = [set(np.argsort(-row)[:10].tolist()) for row in cosines]
    nearest = approximate_neighbours(graph, corpus, 11, ef_search)[1]
    others = [[row for row in rows.tolist() if row != query][:10] for query, rows in enumerate(nearest)]
    expected = [len(expected_rows[query].intersection(rows)) / 10 for query, rows in enumerate(others)]
    np.testing.assert_allclose(recall(through(graph, ef_search), corpus), expected)
    assert 0.2 < np.mean(expected) <= 1


def test_in_recall_a_copy_is_as_good_as_the_neighbour_and_few_vectors_have_few_others():
    corpus = np.repeat(drawn(10), 30, axis=0)
    assert recall(through(build_hnsw(corpus, Hnsw()), 400), corpus).min() == 1
    assert recall(through(build_hnsw(drawn(3), SMALL), 10), drawn(3)).tolist() == [1, 1, 1]
    assert len(recall(through(build_hnsw(drawn(1), SMALL), 10), drawn(1))) == 0


@pytest.mark.parametrize(("stored", "bytes_a_vector"), [("int8", 16), ("binary", 2)])
def test_codes_have_few_bytes_and_their_candidates_are_compared_in_float32(stored, bytes_a_vector, tmp_path):
    corpus, queries = drawn(500), drawn(20, seed=1)
    write_index(build_codes(corpus, stored), tmp_path / "codes.faiss")
    codes = open_faiss(tmp_path / "codes.faiss", stored)
    assert codes.code_size == bytes_a_vector and corpus.shape == (500, 16)
    expected = brute_force(queries, corpus, 5)
    similarities, rows = rescored_neighbours(codes, corpus, queries, 5, 500)  # all are candidates
    np.testing.assert_array_equal(rows, expected.rows)
    np.testing.assert_allclose(similarities, expected.cosines, atol=1e-6)
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
    expected = faiss.read_index(str(tmp_path / "hnsw.faiss")).search(corpus[:9], 5)[1]
    opened = open_faiss(tmp_path / "hnsw.faiss", "hnsw")
    np.testing.assert_array_equal(approximate_neighbours(opened, corpus[:9], 5, 16)[1], expected)
    assert not faiss.downcast_index(opened.storage).codes.is_owned
    assert [path.name for path in tmp_path.iterdir()] == ["hnsw.faiss"]
    whole = (tmp_path / "hnsw.faiss").read_bytes()
    for part in (whole[: len(whole) // 2], b"", b"something else"):
        (tmp_path / "hnsw.faiss").write_bytes(part)
        with pytest.raises(RequestError, match=r"expected an index of FAISS, .* in .*hnsw\.faiss"):
            open_faiss(tmp_path / "hnsw.faiss", "hnsw")


def test_faiss_and_torch_compute_in_one_process_also_when_faiss_comes_first():
    script = (
        "import faiss, torch, numpy as np\n"
        "v = np.random.default_rng(0).standard_normal((3000, 32)).astype('float32')\n"
        "for _ in range(3):\n"
        "    rows = faiss.knn(v[:100], v, 5, metric=faiss.METRIC_INNER_PRODUCT)[1]\n"
        "    exact = (torch.from_numpy(v[:100]) @ torch.from_numpy(v).T).topk(5).indices.numpy()\n"
        "    assert (rows == exact).mean() > 0.999\n"
        "faiss.IndexHNSWFlat(32, 8).add(v)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, env=os.environ | {"OMP_NUM_THREADS": "2"})


def test_a_graph_finds_every_vector_among_thousands_of_equal_ones():
    """A thousand times each of two vectors: linked as they are, they fill each other's links, and of the other 500
    FAISS finds fewer than a third.
    """
    others, repeated = drawn(500), np.repeat(drawn(2, seed=1), 1000, axis=0)
    corpus = np.concatenate([others, repeated])[np.random.default_rng(2).permutation(2500)]
    equal = equal_rows(corpus)
    assert equal is not None and len(equal) == 502
    graph = build_hnsw(distinct(corpus, equal), SMALL)
    similarities, rows = equal.spread(*approximate_neighbours(graph, others, 5, 64), 5)
    expected = brute_force(others, corpus, 5)
    np.testing.assert_array_equal(rows[:, 0], expected.rows[:, 0])
    np.testing.assert_allclose(similarities[:, 0], expected.cosines[:, 0], atol=1e-6)
    assert len(set(equal.spread(*approximate_neighbours(graph, repeated[:1], 5, 64), 900)[1][0].tolist())) == 900
    assert recall(through(graph, 64), distinct(corpus, equal)).mean() > 0.99


@pytest.mark.parametrize("block", [16, 64])
def test_exact_search_and_recall_are_the_same_block_by_block(block, monkeypatch):
    corpus, queries = drawn(300), drawn(40, seed=1)
    repeated = np.concatenate([corpus, corpus[:50]])
    graph = build_hnsw(corpus, Hnsw(links=2, ef_construction=4))
    recall_of_one_block = recall(through(graph, 4), corpus)
    assert recall_of_one_block.mean() < 1
    monkeypatch.setattr(neighbours, "EXACT_BLOCK", block)
    for k in (3, 70, 999):
        similarities, rows = exact_neighbours(queries, corpus, k)
        expected = brute_force(queries, corpus, k)
        np.testing.assert_array_equal(rows, expected.rows)
        np.testing.assert_allclose(similarities, expected.cosines, atol=1e-6)
    np.testing.assert_array_equal(
        recall(through(graph, 4), distinct(repeated, equal_rows(repeated))), recall_of_one_block
    )


def test_merged_neighbours_are_in_the_order_of_similarity_then_row():
    first = np.array([[0.9, 0.5]], np.float32), np.array([[7, 3]])
    second = np.array([[0.9, 0.6, -np.inf]], np.float32), np.array([[0, 2, -1]])
    similarities, rows = merge([(0, first), (10, second)], 4)
    assert rows.tolist() == [[7, 10, 12, 3]]
    np.testing.assert_array_equal(similarities, np.array([[0.9, 0.9, 0.6, 0.5]], np.float32))
    assert merge([(0, first), (10, second)], 9)[1].tolist() == [[7, 10, 12, 3, -1]]
