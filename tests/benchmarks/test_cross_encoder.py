import csv
import gzip
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from benchmarks import cross_encoder
from bertrelay.encoder import SentenceEncoder
from pipelines.recipe import read_recipe
from pipelines.registry import REGISTRY
from teachers.baselines.cross_encoder import CrossEncoder, start_cross_encoder
from teachers.baselines.pair_scores import score_pairs

SENTENCES = [f"the {animal} {verb}" for animal in ("dog", "cat", "bird") for verb in ("runs", "sleeps")]
PAIRS = list(combinations(SENTENCES, 2))


@pytest.fixture
def bi(tiny_encoder: Callable[..., SentenceEncoder]) -> SentenceEncoder:
    return tiny_encoder("bert", SENTENCES)


@pytest.fixture
def cross(bi: SentenceEncoder, tmp_path: Path) -> CrossEncoder:
    bi.save(tmp_path / "bi")
    model = start_cross_encoder(tmp_path / "bi", both_orders=True).eval()
    model.network.classifier.weight.data *= 20  # a new head is so near to zero that all scores are ½
    return model


def cosine(encoder: SentenceEncoder, first: str, second: str) -> float:
    u, v = encoder.encode([first, second], precision="fp32").astype(np.float64)
    return float(u @ v / np.linalg.norm(u) / np.linalg.norm(v))


def test_a_pair_stands_once_and_in_neither_order_where_it_is_unwanted() -> None:
    pairs = [("a", "b"), ("b", "a"), ("c", "a"), ("b", "c"), ("d", "d")]
    assert cross_encoder.one_order(pairs, [("c", "b")]) == [("a", "b"), ("c", "a"), ("d", "d")]


def test_what_is_taught_is_the_mean_of_both_networks_in_both_orders(
    cross: CrossEncoder, bi: SentenceEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_encoder, "TAUGHT_PAIRS", 8)
    taught = list(cross_encoder.taught_pairs(cross, bi, PAIRS, seed=1))
    assert len({row[:2] for row in taught}) == 8 and {row[:2] for row in taught} <= set(PAIRS)
    for first, second, score in taught:
        one_way, other_way = (
            float(score_pairs(cross, [pair], "fp32", None)[0]) for pair in ((first, second), (second, first))
        )
        expected = 5 * ((one_way + other_way) / 2 + max(0.0, cosine(bi, first, second))) / 2
        assert score == pytest.approx(expected, abs=0.03)  # which is of bf16 where the machine has it


def test_the_start_is_asked_about_given_pairs_and_near_ones_but_none_that_is_left_out(
    bi: SentenceEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_encoder, "NEIGHBOURS", ((0, 1), (1, 3), (3, 5)))
    given = [(SENTENCES[0], SENTENCES[5]), *PAIRS[5:9]]
    rows = list(cross_encoder.scored_pairs(bi, given, [PAIRS[6], PAIRS[14][::-1]], seed=1))
    found = {frozenset(row[:2]) for row in rows}
    assert len(found) == len(rows)
    assert frozenset(given[0]) in found
    assert not {frozenset(PAIRS[6]), frozenset(PAIRS[14])} & found
    for sentence in SENTENCES:
        nearest = max(
            (other for other in SENTENCES if other != sentence), key=lambda other: cosine(bi, sentence, other)
        )
        assert frozenset({sentence, nearest}) in found | {frozenset(PAIRS[6]), frozenset(PAIRS[14])}
    for first, second, score in rows:
        assert score == pytest.approx(min(1.0, max(0.0, cosine(bi, first, second))), abs=1e-5)


def test_how_far_one_is_ahead_is_scipys_difference(cross: CrossEncoder, bi: SentenceEncoder, tmp_path: Path) -> None:
    gold = [0, 5, 1, 4, 2, 3, 0, 5, 1, 4, 2, 3, 0, 5, 1]
    path = tmp_path / cross_encoder.STSB["test"]
    path.parent.mkdir(parents=True)
    with gzip.open(path, "wt", newline="") as file:
        csv.writer(file).writerows([*pair, score] for pair, score in zip(PAIRS, gold, strict=True))
    found = cross_encoder.ahead(cross, bi, tmp_path)
    one = spearmanr(cross.score(PAIRS), gold).statistic
    other = spearmanr(cross_encoder.cosines(bi, PAIRS), gold).statistic
    difference, low, high = (float(word.strip("()")) for word in found.replace(" (", "–(").split("–"))
    assert difference == pytest.approx(one - other, abs=1e-4)
    assert low < difference < high


def test_every_figure_is_of_a_stage_of_the_recipes() -> None:
    recipes = [read_recipe(str(path), REGISTRY) for path in (cross_encoder.RECIPE, cross_encoder.RECIPE_TAUGHT)]
    assert cross_encoder.FIGURES.keys() <= {step.name for recipe in recipes for step in recipe.steps}
