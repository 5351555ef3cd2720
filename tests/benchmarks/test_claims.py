"""Claims hold for metrics that meet them and fail for others."""

import gzip
import zlib
from argparse import Namespace
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from transformers import BertConfig

from benchmarks import clinic, distill, encode, sts, tagging
from benchmarks.harness import Result, Spread
from teachers.evaluation.sts import StsPairs
from teachers.evaluation.sts_sets import set_metrics


def test_operations_are_those_of_every_matrix_product():
    network = BertConfig(hidden_size=4, intermediate_size=6, num_hidden_layers=3, num_attention_heads=2)
    expected = 0
    for tokens in (2, 5):
        maps = 4 * tokens * 4 * 4 + 2 * tokens * 4 * 6  # query, key, value, output; up and down
        attention = 2 * tokens * tokens * 4  # scores and mixture
        expected += 3 * 2 * (maps + attention)
    assert encode.operations(np.array([2, 5]), network) == expected


def results_of(**answers: dict[str, float]) -> dict[str, Result]:
    return {name.replace("_", "-"): Result(name.replace("_", "-"), [answer]) for name, answer in answers.items()}


def test_encoding_is_compared_with_the_default_and_with_the_fastest_peer():
    seconds = {"default": 10.0, "onnx": 4.0, "ours": 2.0, "ours_fp32": 5.0}
    results = results_of(**{name: {"seconds": value} for name, value in seconds.items()})
    judged = encode.claims(results, 1.0, Spread(0.6, 0.6, 0.6))
    assert [claim.found.split()[0] for claim in judged] == ["5.00", "2.00", "1.000000", "0.60", "2.00"]
    assert "(onnx)" in judged[1].text and all(claim.holds for claim in judged)
    far = encode.smallest_cosine(np.eye(3, dtype=np.float32) + np.float32(0.1), np.eye(3, dtype=np.float32))
    assert far == pytest.approx(1.1 / np.sqrt(1.1**2 + 2 * 0.1**2))
    judged = encode.claims(results, far, Spread(0.5, 0.5, 0.5))
    assert [claim.holds for claim in judged] == [True, True, False, False, True]


@pytest.mark.parametrize(
    ("accuracies", "found", "held"),
    [
        ({}, ["6.67", "3.00", "3.00"], [True, True, True]),
        ({"ours_48": 0.79}, ["6.67", "2.50", "3.00"], [True, False, True]),  # the next is slower
        ({"weights": 0.86}, ["6.67", "none", "3.00"], [True, False, True]),
        ({"ours_fp32": 0.6}, ["6.67", "3.00", "none"], [True, True, False]),  # fast, but worse than the default
    ],
)
def test_each_distillation_is_compared_with_the_fastest_of_ours_that_is_as_accurate(accuracies, found, held):
    reached = {"default": 0.7, "bf16": 0.9, "weights": 0.8, "ours_64": 0.75, "ours_48": 0.8, "ours_32": 0.85}
    reached |= {"ours_fp32": 0.9, **accuracies}
    seconds = {"default": 60.0, "bf16": 33.0, "weights": 30.0, "ours_64": 9.0, "ours_48": 10.0, "ours_32": 12.0}
    seconds |= {"ours_fp32": 20.0}
    judged = distill.claims(
        results_of(**{name: {"seconds": seconds[name], "accuracy": reached[name]} for name in reached})
    )
    assert [claim.found.split()[0] for claim in judged] == found
    assert [claim.holds for claim in judged] == held


def test_every_drawn_sentence_is_paired_with_each_of_its_translations(tmp_path, monkeypatch):
    monkeypatch.setattr(distill, "TRIED_ON", 2)
    folder = tmp_path / "parallel" / "multi30k"
    folder.mkdir(parents=True)
    for code in ("en", "de", "fr", "cs"):
        with gzip.open(folder / f"train.{code}.gz", "wt") as file:
            file.writelines(f"{code} {number}\n" for number in range(9))
    distill.write_rows(Namespace(data=tmp_path, scratch=tmp_path, rows=7, seed=3))
    for name, count in (("rows", 6), ("few", 2)):
        english, other = ((tmp_path / name / file).read_text().split("\n")[:-1] for file in ("en.txt", "other.txt"))
        both = {(line.split()[1], found.split()[0]) for line, found in zip(english, other, strict=True)}
        assert [line.split()[1] for line in english] == [line.split()[1] for line in other]
        assert len(english) == len(both) == count
        if name == "rows":
            assert both == {(line.split()[1], code) for line in english for code in ("de", "fr", "cs")}


def test_one_bad_seed_fails_whatever_the_mean():
    assert [claim.holds for claim in clinic.seed_claims([0.82, 0.86, 0.84, 0.88])] == [True, True]
    assert [claim.holds for claim in clinic.seed_claims([0.752, 0.86, 0.89])] == [True, False]


@pytest.mark.parametrize(
    ("growth", "beyond", "held"),
    [
        (0.0, 100.0, [True, True, True]),
        (tagging.SLACK_MB + 1, 100.0, [True, False, True]),
        (0.0, tagging.MOST_MB + 1, [True, True, False]),
    ],
)
def test_memory_of_a_long_document_may_grow_by_the_slack_alone(growth, beyond, held):
    results = results_of(pipeline={"seconds": 4.0}, ours={"seconds": 1.0})
    ten = tagging.Memory(500.0, 500.0 + beyond - growth, 1.0)
    one = tagging.Memory(500.0, 500.0 + beyond, 1.0)
    assert [claim.holds for claim in tagging.claims(results, [ten, ten, one])] == held


PART = [(f"left {n}", f"right {n}", n % 6) for n in range(40)], 0
SETS = {"STSb": StsPairs.of({"": PART}), "STS13": StsPairs.of({"FNWN": PART, "OnWN": PART})}


def drawn_vectors(sentences: Sequence[str]) -> NDArray[np.float32]:
    drawn = [np.random.default_rng(zlib.crc32(sentence.encode())).normal(size=6) for sentence in sentences]
    return np.array(drawn, np.float32)


@pytest.mark.parametrize(("bend", "names"), [(0.0, []), (6e-5, ["sts/STSb/spearman_cosine"])])
def test_a_metric_that_differs_in_its_fourth_digit_is_named(bend: float, names: list[str]) -> None:
    ours = set_metrics(SETS, drawn_vectors, intervals=False)
    theirs = sts.by_scipy(SETS, drawn_vectors)
    assert set(theirs) == {f"sts/{name}/spearman_cosine" for name in ("STSb", "STS13/FNWN", "STS13/OnWN")}
    theirs["sts/STSb/spearman_cosine"] += bend
    assert [claim.text.split()[0] for claim in sts.claims(ours, theirs) if not claim.holds] == names


def test_a_missing_metric_fails() -> None:
    (claim,) = sts.claims({"sts/STSb/spearman_cosine": None}, {"sts/STSb/spearman_cosine": 0.8})
    assert not claim.holds
