import csv
from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks import cross_encoder
from bertrelay.encoder import SentenceEncoder
from teachers.baselines import CrossEncoder
from teachers.baselines.cross_encoder import start_cross_encoder

SENTENCES = [f"the {animal} {verb}" for animal in ("dog", "cat", "bird") for verb in ("runs", "sleeps")]


@pytest.fixture
def run(tmp_path: Path, tiny_encoder: Callable[..., SentenceEncoder]) -> Path:
    """A folder of both networks, as the recipe leaves it."""
    tiny_encoder("bert", SENTENCES).save(tmp_path / "bi/latest/model")
    start_cross_encoder(tmp_path / "bi/latest/model", both_orders=True).save(tmp_path / "cross/latest/model")
    return tmp_path


def test_what_is_taught_is_the_mean_of_both_on_pairs_without_a_gold_score(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_encoder, "TAUGHT_PAIRS", 8)
    every = list(combinations(SENTENCES, 2))
    given, pairs = every[:4], run / "pairs.csv"
    with pairs.open("w", newline="") as file:
        csv.writer(file).writerows([*pair, 0.5] for pair in every)
    taught = list(cross_encoder.taught_pairs(given, pairs, run, seed=1))
    assert len({row[:2] for row in taught}) == 8
    assert {row[:2] for row in taught} <= set(every[4:])
    assert taught == list(cross_encoder.taught_pairs(given, pairs, run, seed=1))
    cross, bi = CrossEncoder.load(run / "cross/latest/model"), SentenceEncoder.load(run / "bi/latest/model")
    for first, second, score in taught:
        u, v = bi.encode([first, second]).astype(np.float64)
        cosine = max(0.0, float(u @ v / np.linalg.norm(u) / np.linalg.norm(v)))
        one_way, other_way = (cross.score([pair])[0] for pair in ((first, second), (second, first)))
        assert score == pytest.approx(5 * ((one_way + other_way) / 2 + cosine) / 2, abs=0.03)  # bf16 in other batches


def test_the_start_is_asked_about_the_given_pairs_and_three_others_of_each_sentence(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_encoder, "NEIGHBOURS", ((0, 1), (1, 3), (3, 5)))
    encoder = SentenceEncoder.load(run / "bi/latest/model")
    given = [(SENTENCES[0], SENTENCES[5])]
    rows = list(cross_encoder.scored_pairs(encoder, [*given, *pairwise(SENTENCES)], seed=1))
    assert given[0] in {row[:2] for row in rows}
    assert all(first != second for first, second, _ in rows)
    by_first = {sentence: {second for first, second, _ in rows if first == sentence} for sentence in SENTENCES}
    assert all(len(others) >= 3 for others in by_first.values())
    vectors = dict(zip(SENTENCES, encoder.encode(SENTENCES, precision="fp32").astype(np.float64), strict=True))
    for first, second, score in rows:
        u, v = vectors[first], vectors[second]
        cosine = u @ v / np.linalg.norm(u) / np.linalg.norm(v)
        assert score == pytest.approx(min(1.0, max(0.0, cosine)), abs=1e-5)
