"""Nearness of vectors to a teacher's, beside NumPy and SciPy on all pairs."""

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import ortho_group, spearmanr

from bertrelay.errors import RequestError
from bertrelay.evaluation.statistics import resampled_weights, spearman, weighted_spearman
from students.evaluate import nearness as module
from students.evaluate.nearness import drawn_pairs, nearness, nearness_metrics
from students.evaluate.verdicts import NEAR_COSINE, NEAR_RECALL, of_nearness, of_student, worst_of
from students.parallel.pairs import Translations


@pytest.fixture
def teacher():
    """Unit vectors around a common mean, as an encoder gives them."""
    vectors = np.random.default_rng(0).normal(size=(60, 16)) + 0.4
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def student(teacher):
    vectors = teacher + 0.3 * np.random.default_rng(1).normal(size=teacher.shape)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def by_hand(student, teacher):
    """The measures in float64, by loops over all pairs of rows."""
    student, teacher = student.astype(np.float64), teacher.astype(np.float64)
    units = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (student, teacher)]
    pairs = list(combinations(range(len(student)), 2))
    similarities = [[rows[i] @ rows[j] for i, j in pairs] for rows in units]
    return {
        "cosine": np.mean([a @ b for a, b in zip(*units, strict=True)]),
        "agreement": spearmanr(*similarities).statistic,
        "error": np.sum((student - teacher) ** 2) / np.sum((teacher - teacher.mean(axis=0)) ** 2),
        "unrelated": np.mean([units[0][i] @ units[1][j] for i, j in pairs]),
    }


def test_the_measures_are_those_of_arithmetic_on_all_pairs(student, teacher):
    assert nearness(student, teacher) == pytest.approx(by_hand(student, teacher), abs=1e-6)
    scaled = student * np.arange(1, 61, dtype=np.float32)[:, None]
    assert nearness(scaled, 3 * teacher) == pytest.approx(by_hand(scaled, 3 * teacher), rel=1e-5)


def test_the_teacher_its_mean_a_rotation_and_chance_are_at_the_ends_of_the_scales(teacher):
    unrelated = by_hand(teacher, teacher)["unrelated"]
    itself = nearness(teacher, teacher)
    assert itself == pytest.approx({"cosine": 1, "agreement": 1, "error": 0, "unrelated": unrelated}, abs=1e-6)
    mean = np.broadcast_to(teacher.mean(axis=0), teacher.shape)
    assert nearness(mean, teacher)["error"] == pytest.approx(1, rel=1e-5)
    assert nearness(mean, teacher)["agreement"] is None  # all similarities are equal
    rotated = nearness(teacher @ ortho_group.rvs(16, random_state=2).astype(np.float32), teacher)
    assert rotated["agreement"] == pytest.approx(1, abs=1e-4) and abs(rotated["cosine"]) < 0.5 < rotated["error"]
    wide = np.random.default_rng(3).normal(size=(2, 300, 256)).astype(np.float32)
    by_chance = nearness(*wide)
    assert all(abs(by_chance[name]) < 0.03 for name in ("cosine", "agreement", "unrelated"))


def test_ties_have_their_mean_rank(teacher):
    repeated = teacher[np.arange(60) // 2]  # each sentence twice
    rounded = np.sign(repeated)  # few different similarities
    assert nearness(rounded, repeated)["agreement"] == pytest.approx(by_hand(rounded, repeated)["agreement"], abs=1e-3)
    first, second = (np.random.default_rng(seed).integers(0, 5, 200) for seed in (4, 5))
    weights = np.random.default_rng(6).integers(0, 4, 200)
    rows = np.repeat(np.arange(200), weights)
    expected = spearmanr(first[rows], second[rows]).statistic
    assert weighted_spearman(first, second)(weights.astype(np.float64)) == pytest.approx(expected, abs=1e-12)
    assert spearman(first[rows], second[rows]) == pytest.approx(expected, abs=1e-12)


def test_pairs_of_many_sentences_are_drawn_with_a_seed_and_those_of_few_are_all(student, teacher, monkeypatch):
    assert list(zip(*drawn_pairs(60, 0), strict=True)) == list(combinations(range(60), 2))
    draws = [set(zip(*map(np.ndarray.tolist, drawn_pairs(1000, seed)), strict=True)) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2] and {len(pairs) for pairs in draws} == {20_000}
    assert all(0 <= first < second < 1000 for first, second in draws[0])
    complete = nearness(student, teacher)
    monkeypatch.setattr(module, "PAIRS", 900)
    some = nearness(student, teacher)
    assert some["cosine"] == complete["cosine"] and some["error"] == complete["error"]
    assert some["agreement"] != complete["agreement"] == pytest.approx(some["agreement"], abs=0.1)


def test_intervals_are_percentiles_of_resampled_sentences(student, teacher):
    metrics = nearness(student[:20], teacher[:20], with_intervals=True)
    drawn = []
    for weights in resampled_weights(np.arange(20), 0):
        for counts in weights.astype(int):
            pairs = [(i, j) for i, j in combinations(range(20), 2) for _ in range(counts[i] * counts[j])]
            first, second = np.array(pairs).T
            columns = [np.einsum("nd,nd->n", rows[first], rows[second]) for rows in (student, teacher)]
            drawn.append(spearmanr(*columns).statistic)
        break
    low, high = np.percentile(drawn, (2.5, 97.5))
    assert (metrics["agreement_low"], metrics["agreement_high"]) == pytest.approx((low, high), abs=1e-4)
    for name in ("cosine", "error", "unrelated"):
        assert metrics[f"{name}_low"] < metrics[name] < metrics[f"{name}_high"]


def test_vectors_of_another_size_have_an_agreement_only_and_a_single_sentence_none(student, teacher):
    assert nearness(student[:, :8], teacher).keys() == {"agreement"}
    assert nearness(student[:1], teacher[:1]) == {
        "cosine": pytest.approx(float(student[0] @ teacher[0]), abs=1e-6),
        **dict.fromkeys(("agreement", "error", "unrelated")),
    }
    with pytest.raises(RequestError, match="expected vectors of the same sentences, found 3 and 4"):
        nearness(student[:3], teacher[:4])


def test_every_language_is_compared_with_its_english_and_the_mean_leaves_english_out(student, teacher):
    table = {f"s{row}": row for row in range(60)}
    pairs = {
        "de": Translations(["s0", "s1", "s2", "s3"], ["s10", "s11", "s12", "s13"]),
        "ko": Translations(["s2", "s3", "s4"], ["s22", "s23", "s24"]),
    }
    encoders = [lambda texts, rows=rows: rows[[table[text] for text in texts]] for rows in (student, teacher)]
    metrics = nearness_metrics(pairs, *encoders, kind="untrained/")
    rows = {
        "en": ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4]),
        "de": ([10, 11, 12, 13], [0, 1, 2, 3]),
        "ko": ([22, 23, 24], [2, 3, 4]),
    }
    expected = {language: by_hand(student[learnt], teacher[target]) for language, (learnt, target) in rows.items()}
    expected["mean"] = {name: (expected["de"][name] + expected["ko"][name]) / 2 for name in expected["de"]}
    assert metrics == pytest.approx(
        {
            f"nearness/{name}/untrained/{language}": value
            for language, values in expected.items()
            for name, value in values.items()
        },
        abs=1e-5,
    )
    of_itself = nearness_metrics(pairs, *encoders, own_vectors=True)
    assert of_itself["nearness/cosine/de"] == pytest.approx(by_hand(student[10:14], teacher[10:14])["cosine"], abs=1e-6)
    assert nearness_metrics({}, *encoders) == {}


NEAR = {f"nearness/cosine/{language}": cosine for language, cosine in (("en", 0.8), ("de", 0.75), ("mean", 0.1))}
NEAR |= {"nearness/unrelated/de": 0.1, "recall_at_10_ratio/de": 0.96, "translation_accuracy/en-de": 0.9}


def test_one_vector_space_is_said_only_where_every_language_is_near_and_found():
    claim = "one vector space"
    assert claim in of_student(NEAR).text and of_nearness(NEAR).is_one_space
    for name, value in (
        ("nearness/cosine/de", NEAR_COSINE - 0.01),
        ("nearness/cosine/en", NEAR_COSINE - 0.01),
        ("recall_at_10_ratio/de", NEAR_RECALL - 0.01),
    ):
        verdict = of_student(NEAR | {name: value})
        assert claim not in verdict.text and "not the teacher's vector space: mean cosine" in verdict.text
    unsearched = {name: value for name, value in NEAR.items() if "recall" not in name}
    assert of_nearness(unsearched).is_one_space is None and claim not in of_student(unsearched).text
    assert of_nearness(NEAR | {"nearness/cosine/ko": 0.9}).is_one_space is None  # not searched in Korean
    assert of_nearness(NEAR | {"nearness/cosine/ko": 0.5}, ["en", "de"]).is_one_space
    assert of_nearness({"translation_accuracy/en-de": 1.0}) is None


def test_of_several_results_the_farthest_count_and_of_a_training_what_is_not_trained():
    training = {"dev/nearness/cosine/de": 0.2, "dev/nearness/cosine/untrained/de": 0.72}
    results = [NEAR, training, NEAR | {"nearness/cosine/en": 0.9, "recall_at_10_ratio/de": 0.955}]
    worst = worst_of(results)
    assert worst["nearness/cosine/de"] == 0.72 and worst["nearness/cosine/en"] == 0.8
    assert worst["recall_at_10_ratio/de"] == 0.955 and of_nearness(worst).is_one_space
    assert not of_nearness(worst_of([*results, {"dev/nearness/cosine/untrained/de": 0.6}])).is_one_space
