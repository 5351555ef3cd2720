"""Errors of finding translations by margin, against LASER's definition one sentence at a time."""

import numpy as np
import pytest

from students.evaluate.xsim import best_by_margin, xsim_metrics
from students.mining.knn import Neighbours
from students.parallel.pairs import Translations


def encode(table):
    return lambda sentences: np.array([table[sentence] for sentence in sentences], np.float32)


def test_sentences_with_one_vector_are_found_as_either():
    vectors = {"Hello": (0, 1), "hello": (0, 1), "east": (1, 0), "west": (-1, 0), "up": (0.1, -1)}
    vectors |= {"Hallo": (0, 1), "hallo": (0, 1), "Ost": (1, 0), "West": (-1, 0), "auf": (0.1, -1)}
    crossed = {"de": Translations(["Hello", "hello", "east", "west", "up"], ["hallo", "Hallo", "Ost", "West", "auf"])}
    errors = xsim_metrics("s", crossed, encode(vectors), "english")
    assert {name: errors[f"xsim_error/s/{name}"] for name in ("en/de", "de/en")} == {"en/de": 0, "de/en": 0}
    wrong = vectors | {"Ost": (-1, 0.1), "West": (1, 0)}
    assert xsim_metrics("s", crossed, encode(wrong), "english")["xsim_error/s/en/de"] >= 40


def test_the_margin_finds_what_a_hub_hides_by_hand():
    # The first target is near to everything, so that by cosine alone both sources would find it.
    forward = Neighbours(np.array([[0.9, 0.5], [0.8, 0.7]]), np.array([[0, 1], [0, 1]]))  # of sources
    backward = Neighbours(np.array([[0.9, 0.8], [0.7, 0.5]]), np.array([[0, 1], [1, 0]]))  # of targets
    # 0.8 / ((0.75 + 0.85) / 2) = 1, but 0.7 / ((0.75 + 0.6) / 2) = 1.037
    assert best_by_margin(forward, backward).tolist() == [0, 1]


@pytest.fixture
def laser(margins):
    """`laser(source, target)`: xsim's errors in %, as LASER's README defines them, one sentence at a time."""

    def errors(source, target, k=4):
        units = [vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (source, target)]
        chosen = []
        for row_margins, cosines in zip(margins(source, target, k), units[0] @ units[1].T, strict=True):
            candidates = np.argsort(-cosines)[:k]
            chosen.append(candidates[np.argmax(row_margins[candidates])])
        return 100 * np.mean(chosen != np.arange(len(source)))

    return errors


@pytest.fixture
def n_way():
    """Sentences in four languages with vectors that err now and then, and all vectors by sentence."""
    generator = np.random.default_rng(1)
    meaning = generator.normal(size=(120, 12))
    noise = {"en": 0.3, "de": 0.5, "ko": 0.7, "zh-Hant": 1.0}
    vectors = {code: meaning + size * generator.normal(size=meaning.shape) for code, size in noise.items()}
    table = {f"{code}{row}": vector for code, rows in vectors.items() for row, vector in enumerate(rows)}
    english = [f"en{row}" for row in range(120)]
    pairs = {code: Translations(english, [f"{code}{row}" for row in range(120)]) for code in noise if code != "en"}
    return pairs, vectors, encode(table)


@pytest.mark.promise("`xsim` has the errors of LASER's", about="exact")
def test_xsim_is_that_of_laser_for_any_two_languages(n_way, laser):
    pairs, vectors, student = n_way
    metrics = xsim_metrics("flores", pairs, student, "all")
    errors = {name: value for name, value in metrics.items() if not name.endswith(("_low", "_high"))}
    assert len(errors) == 4 * 3
    for name, value in errors.items():
        _, _, source, target = name.split("/")
        assert value == pytest.approx(laser(vectors[source], vectors[target])), name
        assert metrics[f"{name}_low"] <= value <= metrics[f"{name}_high"]
    assert 0 < min(errors.values()) < max(errors.values()) < 100


def test_pairs_of_languages_are_those_of_the_setting(n_way):
    pairs, _, student = n_way

    def directions(setting):
        names = xsim_metrics("s", pairs, student, setting)
        return {tuple(name.split("/")[2:]) for name in names if not name.endswith(("_low", "_high"))}

    others = ("de", "ko", "zh-Hant")
    assert directions("english") == {(code, "en") for code in others} | {("en", code) for code in others}
    assert directions([["de", "zh-Hant"], ["ko", "en"], ["fr", "de"]]) == {("de", "zh-Hant"), ("ko", "en")}


def test_sentences_of_two_languages_belong_together_by_their_english(n_way, laser):
    pairs, vectors, student = n_way
    english, german = pairs["de"]
    # German lacks a row, and two rows have the same English, once more than Korean has it.
    pairs |= {"de": Translations([*english[:7], *english[8:], english[3]], [*german[:7], *german[8:], "de7"])}
    rows = [row for row in range(120) if row != 7]
    metrics = xsim_metrics("s", pairs, student, [["de", "ko"]])
    assert metrics["xsim_error/s/de/ko"] == pytest.approx(laser(vectors["de"][rows], vectors["ko"][rows]))
