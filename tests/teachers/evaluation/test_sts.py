"""Similarity tables in each form, and their scores against ranks by hand."""

import json

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.stats import rankdata

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError, WorkError
from bertrelay.model.encoder import SentenceEncoder
from teachers.evaluation.settings import StsSettings
from teachers.evaluation.stage import run_sts
from teachers.evaluation.sts import StsPairs, read_sts, sts_metrics
from teachers.settings import StsTable

ANGLES = {"a": 0, "b": 10, "c": 25, "d": 60, "e": 85, "f": 130}


def encode(sentences):
    """A vector of length 3 in the direction of each letter."""
    turned = np.radians([ANGLES[sentence] for sentence in sentences])
    return (np.stack([np.cos(turned), np.sin(turned)], axis=1) * 3).astype(np.float32)


def table(path, rows, **options):
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in [("sentence1", "sentence2", "score"), *rows]))
    return StsTable(path=str(path), **options)


def read(context, sts, limit=1.0):
    with Rejects(context.output / "rejects.jsonl", limit) as rejects:
        return read_sts(sts, context, rejects)


def test_the_interval_is_around_the_score_and_a_set_of_one_score_has_none():
    pairs = StsPairs.of({"": (list(zip("aaaba", "bcdee", (5, 4, 4, 1, 2), strict=True)), 0)})
    flat = StsPairs.of({"": ([("a", "c", 1), ("b", "d", 1)], 0)})
    metrics = sts_metrics({"toy": pairs, "flat": flat}, encode)
    low, score, high = (metrics[f"sts/toy/spearman_cosine{end}"] for end in ("_low", "", "_high"))
    assert low < score < high
    assert metrics["sts/flat/spearman_cosine"] is None, "it has no correlation, not 0"


def test_sets_do_not_mix_and_share_one_encoding():
    calls = []

    def counting(sentences):
        calls.append(list(sentences))
        return encode(sentences)

    rows = {"up": [("a", "b", 3), ("a", "c", 2), ("a", "d", 1)], "down": [("b", "c", 1), ("b", "d", 2), ("b", "f", 3)]}
    sets = {name: StsPairs.of({"": (pairs, 0)}) for name, pairs in rows.items()}
    metrics = sts_metrics(sets, counting, intervals=False)
    assert metrics == {"sts/up/spearman_cosine": pytest.approx(1), "sts/down/spearman_cosine": pytest.approx(-1)}
    assert len(calls) == 1


def test_pairs_across_two_languages_take_the_second_sentence_from_the_second_file(context, tmp_path):
    rows = [("a dog", "a cat", 1), ("c", "d", 2), ("e", "f", "many"), ("a bird", "a fish", 4)]
    english = table(tmp_path / "en.tsv", rows, second=str(tmp_path / "de.tsv"))
    table(tmp_path / "de.tsv", [("ein Hund", "eine Katze", 1), ("c",), ("e", "f", 3), ("ein Vogel", "ein Fisch", 4)])
    pairs = read(context, english)
    assert list(pairs.rows()) == [("a dog", "eine Katze", 1), ("a bird", "ein Fisch", 4)]
    listed = (context.output / "rejects.jsonl").read_text()
    assert '"line": 3' in listed and '"line": 4' in listed, "a broken row of either file takes its partner with it"
    with pytest.raises(WorkError):
        read(context, english, limit=0.4)


def test_scores_may_stand_in_a_second_file_as_in_semeval_2017(context, tmp_path):
    (tmp_path / "STS.input.track5.en-en.txt").write_text('A "dog".\tA cat.\nno partner\nc\td\ne\tf\tsource\n')
    (tmp_path / "STS.gs.track5.en-en.txt").write_text("2.4\n1\n\n5.0\n")
    table = {"path": str(tmp_path / "STS.input.track5.en-en.txt"), "format": "tsv", "header": False}
    pairs = read(context, StsTable(**table, scores=str(tmp_path / "STS.gs.track5.en-en.txt")))
    assert list(pairs.rows()) == [('A "dog".', "A cat.", 2.4), ("e", "f", 5.0)]
    listed = (context.output / "rejects.jsonl").read_text()
    assert '"line": 2' in listed and '"line": 3' in listed, "a line without a partner, and a pair without a score"
    (tmp_path / "short").write_text("2.4\n")
    with pytest.raises(RequestError, match="the first has 4 rows and the second 1"):
        read(context, StsTable(**table, scores=str(tmp_path / "short")))


def test_rows_are_chosen_by_the_value_of_a_column(context, tmp_path):
    lines = [("en-de", "a", "b", 1), ("en-en", "c", "d", 2), ("en-de", "e", "f", 3)]
    names = ("lang", "sentence1", "sentence2", "score")
    jsonl = "".join(json.dumps(dict(zip(names, line, strict=True))) + "\n" for line in lines)
    (tmp_path / "sts17.jsonl").write_text(jsonl)
    table = {"path": str(tmp_path / "sts17.jsonl")}
    assert list(read(context, StsTable(**table, where={"lang": "en-de"})).rows()) == [("a", "b", 1), ("e", "f", 3)]
    chosen = StsTable(**table, columns=["sentence2", "sentence1", "score"], where={"lang": "en-en", "score": 2})
    assert list(read(context, chosen).rows()) == [("d", "c", 2)]
    with pytest.raises(
        RequestError, match=r"sts17\.jsonl: expected pairs with a score where lang is ko-ko, found none"
    ):
        read(context, StsTable(**table, where={"lang": "ko-ko"}))
    with pytest.raises(RequestError, match="has no column 'language'"):
        read(context, StsTable(**table, where={"language": "en-en"}))


def test_a_reversed_scale_changes_only_the_sign(context, tmp_path):
    rows = [("a", "b", 1), ("a", "c", 2.5), ("a", "d", 4)]  # less and less alike, as in SemEval-2022
    plain, turned = table(tmp_path / "sts.tsv", rows), table(tmp_path / "sts.tsv", rows, reversed=True)
    sets = {"plain": read(context, plain), "turned": read(context, turned)}
    assert sts_metrics(sets, encode, intervals=False) == {
        "sts/plain/spearman_cosine": pytest.approx(-1),
        "sts/turned/spearman_cosine": pytest.approx(1),
    }


def test_only_one_way_to_read_rows_is_taken():
    with pytest.raises(ValidationError, match="second and where: expected one of them"):
        StsTable(path="a.tsv", second="b.tsv", where={"lang": "en-de"})


def test_the_stage_scores_a_model_as_arithmetic_on_its_vectors_does(context, tmp_path, tiny_encoder):
    sentences = ["A dog runs.", "Two cats sleep.", "The bird sings.", "A child reads.", "The dog sleeps."]
    encoder = tiny_encoder("bert", sentences)
    encoder.save(tmp_path / "model")
    rows = [(sentences[i], sentences[j], (3 * i + 5 * j) % 6) for i in range(5) for j in range(i)]
    sts = {"toy": {"path": table(tmp_path / "sts.tsv", rows).path}}
    settings = {"model": str(tmp_path / "model"), "sts": sts, "precision": "fp32", "dimensions": [4]}
    vectors = SentenceEncoder.load(tmp_path / "model").encode(sentences, precision="fp32").astype(np.float64)
    metrics = run_sts(StsSettings.model_validate(settings), context)
    for name, cut in (("toy", vectors), ("toy/4-dimensions", vectors[:, :4])):
        lengths = np.linalg.norm(cut, axis=1)
        cosines = [cut[i] @ cut[j] / lengths[i] / lengths[j] for i in range(5) for j in range(i)]
        expected = np.corrcoef(rankdata(cosines), rankdata([score for *_, score in rows]))[0, 1]
        assert metrics[f"sts/{name}/spearman_cosine"] == pytest.approx(expected)
    with pytest.raises(RequestError, match="dimensions: expected at most the 16 of the model's vectors, found 17"):
        run_sts(StsSettings.model_validate({**settings, "dimensions": [17]}), context)


@pytest.mark.parametrize("longer", ["en", "de"])
def test_files_that_are_not_aligned_are_refused_with_file_and_line(context, tmp_path, longer):
    rows = [("a", "b", 1), ("c", "d", 2), ("e", "f", 3)]
    table(tmp_path / "de.tsv", rows[: 3 if longer == "de" else 2])
    english = table(tmp_path / "en.tsv", rows[: 3 if longer == "en" else 2], second=str(tmp_path / "de.tsv"))
    counts = "the first has 3 rows and the second 2" if longer == "en" else "has 2 rows and the second 3"
    with pytest.raises(RequestError, match=rf"{counts}.*line 4 of .*{longer}\.tsv has no partner"):
        read(context, english)
