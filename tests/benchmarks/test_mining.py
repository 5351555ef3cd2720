"""The closest pair and mined pairs beside scipy and beside brute force."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from benchmarks import mining
from benchmarks.pairs import closest_pair
from bertrelay.model.encoder import SentenceEncoder

WORDS = ["Katze", "Hund", "Maus", "Vogel", "Fisch", "Pferd", "Kuh", "Huhn"]


@pytest.fixture
def hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> mining.Hidden:
    """Four pairs; two German sentences without English, two English ones without German, and two strange ones."""
    monkeypatch.setattr(mining, "PAIRED", 4)
    monkeypatch.setattr(mining, "SOURCE_ONLY", 2)
    sides = {
        "deu-eng.deu": [f"eine {word}" for word in WORDS],
        "deu-eng.eng": [f"one {word}" for word in WORDS],
        "fra-eng.eng": ["one cow more", "one hen more", "one Katze"],
    }
    for name, lines in sides.items():
        (tmp_path / f"tatoeba.{name}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return mining.hide(tmp_path, "deu", seed=1)


def test_true_pairs_are_known_and_the_other_sentences_have_no_partner(hidden: mining.Hidden) -> None:
    assert (len(hidden.source), len(hidden.target), len(hidden.pairs)) == (6, 8, 4)
    assert all(hidden.source[s].replace("eine", "one") == hidden.target[t] for s, t in hidden.pairs)
    alone = {text.replace("eine", "one") for text in hidden.source} - {hidden.target[t] for _, t in hidden.pairs}
    assert len(alone) == 2 and not alone & set(hidden.target)
    assert {"one cow more", "one hen more"} <= set(hidden.target)


def test_brute_force_is_the_margin_by_hand_and_the_best_f1_that_of_the_best_beginning() -> None:
    margins = mining.brute_force(np.float32([[1, 0], [0, 1]]), np.float32([[1, 0], [0.6, 0.8]]), k=2)
    assert margins == [(pytest.approx(1 / 0.65), 0, 0), (pytest.approx(0.8 / 0.55), 1, 1)]
    found = [(0.9, 0, 0), (0.8, 1, 2), (0.7, 2, 2), (0.6, 3, 3)]
    assert mining.best_f1(found, [(0, 0), (2, 2), (4, 4)]) == pytest.approx(2 * 2 / (3 + 3))


def test_the_claims_are_kept_by_an_encoder(
    hidden: mining.Hidden, tiny_encoder: Callable[..., SentenceEncoder], tmp_path: Path
) -> None:
    pytest.importorskip("faiss")
    encoder = tiny_encoder("bert", [*hidden.source, *hidden.target])
    assert all(claim.holds for claim in mining.compare("deu", hidden, encoder, tmp_path))


@pytest.mark.parametrize("pair", [(7, 31), (44, 45), (0, 49)])
def test_the_closest_pair_in_float64_is_that_of_scipy_wherever_it_stands(
    pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.pairs.ROWS_AT_ONCE", 7)
    vectors = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    vectors[pair[1]] = vectors[pair[0]] + np.float32(0.01)
    distances = pdist(vectors.astype(np.float64), "cosine")
    assert tuple(side[distances.argmin()] for side in np.triu_indices(50, 1)) == pair
    assert closest_pair(vectors, np.float64) == (pytest.approx(1 - distances.min(), abs=1e-12), *pair)
    assert closest_pair(vectors)[1:] == pair
