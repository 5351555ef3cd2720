import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import unit
from students import neighbours as both_ways
from students.bitext import Neighbours
from students.neighbours import bidirectional_knn


def drawn(count: int, dim: int = 16, seed: int = 0) -> np.ndarray:
    return unit(np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32))


def brute_force(own: np.ndarray, other: np.ndarray, k: int) -> Neighbours:
    cosines = own.astype(np.float64) @ other.astype(np.float64).T
    lengths = np.linalg.norm(own.astype(np.float64), axis=1)[:, None] * np.linalg.norm(other.astype(np.float64), axis=1)
    cosines = (cosines / np.where(lengths > 0, lengths, 1)).round(12)
    rows = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    return Neighbours(np.take_along_axis(cosines, rows, 1), rows)


def assert_same(found: Neighbours, expected: Neighbours) -> None:
    assert np.array_equal(found.rows, expected.rows)
    np.testing.assert_allclose(found.cosines, expected.cosines, atol=2e-12)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(both_ways, "RESCORE_BLOCK", 13)
    monkeypatch.setattr(both_ways, "QUERY_BLOCK", 19)
    monkeypatch.setattr(both_ways, "SECONDS_BETWEEN_SAVES", 0.0)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("sources", "targets", "k"), [(70, 50, 4), (17, 11, 1), (3, 90, 4), (1, 1, 4), (40, 40, 40)])
def test_both_directions_are_those_of_brute_force_in_float64(sources: int, targets: int, k: int) -> None:
    source, target = drawn(sources, seed=1), drawn(targets, seed=2)
    forward, backward = bidirectional_knn(source, target, k, "exact")
    assert_same(forward, brute_force(source, target, k))
    assert_same(backward, brute_force(target, source, k))


@pytest.mark.usefixtures("small_blocks")
def test_neighbours_nearer_to_one_another_than_float32_can_tell_are_told_apart() -> None:
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
def test_equal_vectors_are_neighbours_in_the_order_of_their_rows() -> None:
    source = drawn(5, dim=384)
    target = np.tile(source, (4 + both_ways.SPARE, 1))
    forward, backward = bidirectional_knn(source, target, 4, "exact")
    assert np.array_equal(forward.rows, np.arange(5)[:, None] + 5 * np.arange(4))
    assert np.array_equal(backward.rows[:, 0], np.arange(len(target)) % 5)


@pytest.mark.usefixtures("small_blocks")
def test_a_zero_vector_is_near_to_nothing_and_does_no_harm() -> None:
    source, target = drawn(20), drawn(30, seed=1)
    source[3] = 0
    forward, backward = bidirectional_knn(source, target, 2, "exact")
    assert not forward.cosines[3].any()
    assert_same(backward, brute_force(target, source, 2))


@pytest.mark.usefixtures("small_blocks")
def test_a_graph_finds_almost_all_neighbours_with_their_true_cosines() -> None:
    source, target = drawn(300, seed=1), drawn(400, seed=2)
    forward, backward = bidirectional_knn(source, target, 4, "approximate")
    for found, own, other in ((forward, source, target), (backward, target, source)):
        expected = brute_force(own, other, 4)
        assert (found.rows == expected.rows).mean() > 0.99
        cosines = np.einsum("nd,nkd->nk", own.astype(np.float64), other[found.rows].astype(np.float64))
        np.testing.assert_allclose(found.cosines, cosines, atol=1e-6)


def test_empty_places_of_a_graph_hold_the_best_again_or_the_first_row() -> None:
    own, other = drawn(2), drawn(9, seed=1)
    rows = np.array([[5, 2, -1, -1], [-1, -1, -1, -1]], np.int32)
    found = both_ways._rescore(rows, own, other, 4)
    assert set(found.rows[0]) == {5, 2}
    assert not found.rows[1].any()
    np.testing.assert_allclose(found.cosines[1], own[1] @ other[0], atol=1e-6)


def test_auto_is_exact_up_to_a_number_of_pairs_and_says_which(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(both_ways, "EXACT_PAIRS", 100)
    bidirectional_knn(drawn(10), drawn(10), 2)
    assert "comparing 10 with 10 sentences exactly" in capsys.readouterr().err
    bidirectional_knn(drawn(10), drawn(11), 2)
    assert "approximately, through a graph, as they make more than 100 pairs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "target", "k", "told"),
    [
        (drawn(3, dim=8), drawn(3, dim=4), 4, r"same dim.*found \(3, 8\) and \(3, 4\)"),
        (drawn(3), drawn(3)[:0], 4, r"at least one of each.*\(0, 16\)"),
        (drawn(3)[0], drawn(3), 4, r"\(16,\)"),
        (drawn(3), drawn(3), 0, "k: expected 1 or more, found 0"),
        (drawn(3), np.where(np.arange(48).reshape(3, 16) == 20, np.nan, drawn(3)), 4, "target sentence 2"),
    ],
)
def test_vectors_that_cannot_be_compared_are_refused(source: np.ndarray, target: np.ndarray, k: int, told: str) -> None:
    with pytest.raises(RequestError, match=told):
        bidirectional_knn(source, target, k)


# Stopped and resumed

KILLED_WHILE_COMPARING = """
import os, signal, sys
from pathlib import Path
import numpy as np
from students import neighbours as both_ways

both_ways.QUERY_BLOCK, both_ways.SECONDS_BETWEEN_SAVES = 19, 0.0
folder, method, after = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
save, saved = both_ways._save, []

def killed(*given):
    save(*given)
    saved.append(given)
    if len(saved) == after:
        os.kill(os.getpid(), signal.SIGKILL)

both_ways._save = killed
source, target = np.load(folder / "s.npy"), np.load(folder / "t.npy")
both_ways.bidirectional_knn(source, target, 4, method, folder=folder, key="k")
"""


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("method", "after", "left"), [("exact", 3, 7), ("exact", 6, 4), ("approximate", 2, 8), ("approximate", 8, 2)]
)
def test_killed_and_called_again_it_goes_on_after_the_last_save(
    method: both_ways.Method, after: int, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = drawn(110, seed=1), drawn(70, seed=2)
    np.save(tmp_path / "s.npy", source)
    np.save(tmp_path / "t.npy", target)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_COMPARING, tmp_path, method, str(after)], env=environment, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    whole = bidirectional_knn(source, target, 4, method)
    saves: list[int] = []
    save = both_ways._save
    monkeypatch.setattr(both_ways, "_save", lambda *given: saves.append(1) or save(*given))
    resumed = bidirectional_knn(source, target, 4, method, folder=tmp_path, key="k")
    assert len(saves) == left, "there are 6 blocks of sources and 4 of targets"
    for found, expected in zip(resumed, whole, strict=True):
        assert np.array_equal(found.rows, expected.rows)
        assert np.array_equal(found.cosines, expected.cosines)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["neighbours.npz", "s.npy", "t.npy"]
