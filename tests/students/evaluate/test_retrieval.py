import numpy as np
import pytest

from students.evaluate.retrieval import best_by_margin, search_metrics, xsim_metrics
from students.mining.knn import Neighbours
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


def searched(pairs, k):
    return search_metrics(pairs, encode(STUDENT), encode(TEACHER), k)


def test_recall_is_of_all_english_sentences_of_all_languages_by_hand():
    pairs = {
        "de": Translations(["north", "east", "south"], ["Nord", "Ost", "Süd"]),
        "de-x-map": Translations(["north", "east", "south", "west"], ["oben", "oben", "unten", "unten"]),
    }
    metrics = searched(pairs, 1)
    assert metrics["recall_at_1/en"] == 3 / 4  # of the four distinct ones, west does not find itself
    assert metrics["recall_at_1/de"] == pytest.approx(2 / 3)
    assert metrics["recall_at_1_ratio/de"] == pytest.approx(2 / 3)  # to north, east and south, which find themselves
    # Each of the two queries has two translations, of which the nearest alone is found.
    assert metrics["recall_at_1/de-x-map"] == 1 / 2
    assert metrics["recall_at_1_ratio/de-x-map"] == pytest.approx((1 / 2) / ((1 + 1 / 2) / 2))
    metrics = searched(pairs, 2)
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
    crossed = {"de": Translations(["Hello", "hello", "east", "west", "up"], ["hallo", "Hallo", "Ost", "West", "auf"])}
    apart = same | {"up": (0.1, -1), "auf": (0.1, -1)}
    errors = xsim_metrics("s", crossed, encode(apart), "english")
    assert {name: errors[f"xsim_error/s/{name}"] for name in ("en/de", "de/en")} == {"en/de": 0, "de/en": 0}
    wrong = apart | {"Ost": (-1, 0.1), "West": (1, 0)}
    assert xsim_metrics("s", crossed, encode(wrong), "english")["xsim_error/s/en/de"] >= 40


def test_a_ratio_to_nothing_is_none():
    backwards = {name: tuple(-value for value in vector) for name, vector in TEACHER.items()} | {"Ost": (1, 0)}
    pairs = {"de": Translations(["east"], ["Ost"]), "fr": Translations(["west"], ["Ost"])}
    metrics = search_metrics(pairs, encode(backwards), encode(TEACHER), 1)
    assert (metrics["recall_at_1/en"], metrics["recall_at_1/de"]) == (0, 1)
    assert metrics["recall_at_1_ratio/de"] is None


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
        units = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in (source, target)]
        found = []
        for own, cosines in zip(margins(source, target, k), units[0] @ units[1].T, strict=True):
            candidates = np.argsort(-cosines)[:k]
            found.append(candidates[np.argmax(own[candidates])])
        return 100 * np.mean(found != np.arange(len(source)))

    return errors


@pytest.fixture
def n_way():
    """Sentences in four languages with vectors that err now and then, and all vectors by sentence."""
    generator = np.random.default_rng(1)
    meaning = generator.normal(size=(120, 12))
    noise = {"en": 0.3, "de": 0.5, "ko": 0.7, "zh-Hant": 1.0}
    vectors = {of: meaning + size * generator.normal(size=meaning.shape) for of, size in noise.items()}
    table = {f"{of}{row}": vector for of, rows in vectors.items() for row, vector in enumerate(rows)}
    english = [f"en{row}" for row in range(120)]
    pairs = {of: Translations(english, [f"{of}{row}" for row in range(120)]) for of in noise if of != "en"}
    return pairs, vectors, encode(table)


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


def test_pairs_of_languages_are_those_asked_for(n_way):
    pairs, _, student = n_way

    def directions(chosen):
        names = xsim_metrics("s", pairs, student, chosen)
        return {tuple(name.split("/")[2:]) for name in names if not name.endswith(("_low", "_high"))}

    others = ("de", "ko", "zh-Hant")
    assert directions("english") == {(of, "en") for of in others} | {("en", of) for of in others}
    assert directions([["de", "zh-Hant"], ["ko", "en"], ["fr", "de"]]) == {("de", "zh-Hant"), ("ko", "en")}


def test_sentences_of_two_languages_belong_together_by_their_english(n_way, laser):
    pairs, vectors, student = n_way
    english, german = pairs["de"]
    # German lacks a row, and two rows have the same English, once more than Korean has it.
    pairs |= {"de": Translations([*english[:7], *english[8:], english[3]], [*german[:7], *german[8:], "de7"])}
    kept = [row for row in range(120) if row != 7]
    metrics = xsim_metrics("s", pairs, student, [["de", "ko"]])
    assert metrics["xsim_error/s/de/ko"] == pytest.approx(laser(vectors["de"][kept], vectors["ko"][kept]))
