import numpy as np
import pytest

from students.evaluate.retrieval import search_metrics
from students.parallel.pairs import Translations

# The teacher's vectors: four directions, and the student's, which turn some of them round.
TEACHER = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
STUDENT = {
    "north": (0, 2),
    "east": (3, 0),
    "south": (0, -1),
    "west": (1, 0.1),  # taken for east
    "Nord": (0.1, 1),
    "Ost": (1, -0.1),
    "Süd": (0, 1),  # taken for north
    "oben": (0.9, 1),
    "unten": (-0.1, -1),
}


def encode(table):
    return lambda sentences: np.array([table[sentence] for sentence in sentences], np.float32)


def search(pairs, k):
    return search_metrics(pairs, encode(STUDENT), encode(TEACHER), k)


def test_recall_is_of_all_english_sentences_of_all_languages_by_hand():
    pairs = {
        "de": Translations(["north", "east", "south"], ["Nord", "Ost", "Süd"]),
        "de-x-map": Translations(["north", "east", "south", "west"], ["oben", "oben", "unten", "unten"]),
    }
    metrics = search(pairs, 1)
    assert metrics["recall_at_1/en"] == 3 / 4  # of the four distinct ones, west does not find itself
    assert metrics["recall_at_1/de"] == pytest.approx(2 / 3)
    assert metrics["recall_at_1_ratio/de"] == pytest.approx(2 / 3)  # to north, east and south, which find themselves
    # Each of the two queries has two translations, of which the nearest alone is found.
    assert metrics["recall_at_1/de-x-map"] == 1 / 2
    assert metrics["recall_at_1_ratio/de-x-map"] == pytest.approx((1 / 2) / ((1 + 1 / 2) / 2))
    metrics = search(pairs, 2)
    assert metrics["recall_at_2/de-x-map"] == pytest.approx((1 + 1) / 2)  # oben: north and east; unten: south and west
    assert metrics["recall_at_2/de"] == pytest.approx(2 / 3)


def test_recall_is_that_of_a_full_ranking_and_has_intervals():
    generator = np.random.default_rng(0)
    english, other = [f"e{row}" for row in range(80)], [f"x{row}" for row in range(80)]
    taught = dict(zip(english, generator.normal(size=(80, 8)), strict=True))
    student = {**taught, **{f"x{row}": taught[f"e{row}"] + generator.normal(size=8) for row in range(80)}}
    metrics = search_metrics({"qaa": Translations(english, other)}, encode(student), encode(taught), 10)
    unit = [np.array([table[name] for name in names]) for table, names in ((student, other), (taught, english))]
    unit = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in unit]
    cosines = unit[0] @ unit[1].T
    ranks = (cosines > np.diag(cosines)[:, None]).sum(axis=1)
    expected = np.mean(ranks < 10)
    assert 0.3 < expected < 1
    assert metrics["recall_at_10/qaa"] == metrics["recall_at_10_ratio/qaa"] == pytest.approx(expected)
    assert metrics["recall_at_10/en"] == 1
    for name in ("recall_at_10/qaa", "recall_at_10_ratio/qaa"):
        assert metrics[f"{name}_low"] < metrics[name] < metrics[f"{name}_high"]
    # Of a mean of n zeros and ones: √(p(1 − p)/n), on both sides of it twice.
    wide = 2 * 1.96 * np.sqrt(expected * (1 - expected) / 80)
    assert metrics["recall_at_10/qaa_high"] - metrics["recall_at_10/qaa_low"] == pytest.approx(wide, rel=0.2)


def test_sentences_with_one_vector_are_found_as_either():
    same = {"Hello": (0, 1), "hello": (0, 1), "east": (1, 0), "west": (-1, 0)}
    same |= {"Hallo": (0, 1), "hallo": (0, 1), "Ost": (1, 0), "West": (-1, 0)}
    pairs = {"de": Translations(["Hello", "hello", "east", "west"], ["Hallo", "hallo", "Ost", "West"])}
    metrics = search_metrics(pairs, encode(same), encode(same), 1)
    assert (metrics["recall_at_1/en"], metrics["recall_at_1/de"]) == (1, 1)


def test_a_ratio_to_nothing_is_none():
    backwards = {name: tuple(-value for value in vector) for name, vector in TEACHER.items()} | {"Ost": (1, 0)}
    pairs = {"de": Translations(["east"], ["Ost"]), "fr": Translations(["west"], ["Ost"])}
    metrics = search_metrics(pairs, encode(backwards), encode(TEACHER), 1)
    assert (metrics["recall_at_1/en"], metrics["recall_at_1/de"]) == (0, 1)
    assert metrics["recall_at_1_ratio/de"] is None
