"""None"""

import json
from pathlib import Path
from typing import Any

import pytest

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError, WorkError
from bertrelay.stage import StageContext
from teachers.data import Examples, read_examples
from teachers.settings import TrainSettings


def read(context: StageContext, objective: str, *rows: Any, limit: float = 1.0, **settings: Any) -> Examples:
    """The examples of a JSONL file whose records are `rows`; what is rejected is listed in the output folder."""
    path = context.cache / "train.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    given = {"base": "./base", "objective": objective, "train": [{"path": str(path)}], **settings}
    chosen = TrainSettings.model_validate(given)
    with Rejects(context.output / "rejects.jsonl", limit) as rejects:
        return read_examples(chosen.train, chosen.objective, context, rejects, chosen.score_range)


def rejected(context: StageContext) -> list[tuple[int, str]]:
    listed = [json.loads(line) for line in (context.output / "rejects.jsonl").read_text().splitlines()]
    return [(reject["line"], reject["reason"]) for reject in listed]


def pair(premise: Any, hypothesis: Any, label: Any) -> dict[str, Any]:
    return {"premise": premise, "hypothesis": hypothesis, "label": label}


def scored(score: Any) -> dict[str, Any]:
    return {"sentence1": "A dog runs.", "sentence2": "A cat runs.", "score": score}


def test_each_distinct_sentence_stands_once_and_items_point_at_it(context: StageContext) -> None:
    rows = [pair("A dog runs.", "A dog.", "yes"), pair("A dog.", "A cat.", "no"), pair("A cat.", "A cat.", "yes")]
    found = read(context, "softmax", *rows)
    assert found.sentences == ["A dog runs.", "A dog.", "A cat."]
    assert found.indices.tolist() == [[0, 1], [1, 2], [2, 2]]
    assert found.labels == ["yes", "no", "yes"]


def test_labels_may_be_numbers_or_words(context: StageContext) -> None:
    assert read(context, "softmax", pair("a", "b", 0), pair("b", "a", 2), pair("b", "c", "1 ")).labels == [
        "0",
        "2",
        "1",
    ]


def test_pairs_without_a_gold_label_are_rejected_with_the_reason(context: StageContext) -> None:
    rows = [
        pair("a", "b", "neutral"),
        pair("a", "c", "-"),
        pair("a", "d", -1),
        pair("b", "d", " "),
        pair("b", "c", "-1"),
    ]
    assert read(context, "softmax", *rows).labels == ["neutral"]
    assert rejected(context) == [(line, "no gold label") for line in (2, 3, 4, 5)]


def test_sentences_that_are_none_are_rejected(context: StageContext) -> None:
    rows = [pair("a", "b", "x"), pair("  ", "b", "x"), pair(3, "b", "x"), pair(None, "b", "x")]
    assert len(read(context, "softmax", *rows).labels) == 1
    assert rejected(context) == [(2, "an empty sentence"), (3, "a sentence that is not text"), (4, "a missing value")]


def test_scores_become_numbers_from_0_to_1(context: StageContext) -> None:
    found = read(context, "cosine", scored(1), scored("2.5"), scored(5.0), score_range=[1, 5])
    assert found.labels == [0.0, 0.375, 1.0]


def test_scores_outside_the_range_or_not_numbers_are_rejected(context: StageContext) -> None:
    found = read(context, "cosine", scored(5), scored(5.01), scored(-0.1), scored("high"), scored("nan"), scored([1]))
    assert found.labels == [1.0]
    no_number = "a score that is not a number"
    outside = "a score outside 0 … 5"
    assert rejected(context) == [(2, outside), (3, outside), (4, no_number), (5, no_number), (6, no_number)]


def test_triplets_have_three_sentences_and_no_label(context: StageContext) -> None:
    found = read(context, "triplet", {"anchor": "a", "positive": "b", "negative": "c"})
    assert (found.sentences, found.indices.tolist(), found.labels) == (["a", "b", "c"], [[0, 1, 2]], [None])


def test_too_many_rejects_stop_the_stage(context: StageContext) -> None:
    rows = [pair("a", "b", "x")] * 98 + [pair("a", "b", "-")] * 2
    assert len(read(context, "softmax", *rows, limit=0.02).labels) == 98
    with pytest.raises(WorkError, match=r"2 of 100 records.*2 × no gold label.*line 99"):
        read(context, "softmax", *rows, limit=0.01)


def test_nothing_usable_is_told_with_the_reasons(context: StageContext) -> None:
    with pytest.raises(RequestError, match=r"softmax.*no gold label"):
        read(context, "softmax", pair("a", "b", "-"))


def test_a_wrong_number_of_columns_is_told_with_the_right_ones(context: StageContext) -> None:
    path = context.cache / "train.jsonl"
    with pytest.raises(RequestError, match=r"reads 3 columns \(premise, hypothesis, label\), found 2"):
        read(context, "softmax", pair("a", "b", "x"), train=[{"path": str(path), "columns": ["premise", "label"]}])


def test_several_tables_are_read_one_after_the_other(context: StageContext, tmp_path: Path) -> None:
    for name, label in (("snli", "0"), ("multinli", "1")):
        (tmp_path / f"{name}.tsv").write_text(f"premise\thypothesis\tlabel\na {name}\tb\t{label}\n")
    tables = [{"path": str(tmp_path / f"{name}.tsv")} for name in ("snli", "multinli")]
    found = read(context, "softmax", pair("a", "b", "x"), train=tables)
    assert (found.sentences, found.labels) == (["a snli", "b", "a multinli"], ["0", "1"])
