"""Examples of each objective from tables, and the reasons of rejected rows."""

import json
import re

import pytest

from bertrelay.data.records import Rejects
from bertrelay.data.tables import Table
from bertrelay.errors import RequestError, WorkError
from teachers.data import ANCHORS, LABELLED_PAIRS, log_shared_pairs, read_examples
from teachers.objectives import OBJECTIVES
from teachers.settings import TrainSettings


def read(context, objective, *rows, limit=1.0, **settings):
    """Reads the examples of a JSONL file of `rows`; rejected rows are listed in the output folder."""
    path = context.cache.folder / "train.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    fields = {"base": "./base", "objective": objective, "train": [{"path": str(path)}], **settings}
    chosen = TrainSettings.model_validate(fields)
    with Rejects(context.output / "rejects.jsonl", limit) as rejects:
        return read_examples(chosen.train, OBJECTIVES[objective].rows, context, rejects, chosen.score_range)


def pair(premise, hypothesis, label):
    return {"premise": premise, "hypothesis": hypothesis, "label": label}


def scored(score):
    return {"sentence1": "A dog runs.", "sentence2": "A cat runs.", "score": score}


def test_a_sentence_is_stored_once_and_items_are_positions(context):
    rows = [pair("A dog runs.", "A dog.", "yes"), pair("A dog.", "A cat.", 0), pair("A cat.", "A cat.", "1 ")]
    examples = read(context, "softmax", *rows)
    assert examples.sentences == ["A dog runs.", "A dog.", "A cat."]
    assert examples.indices.tolist() == [[0, 1], [1, 2], [2, 2]]
    assert examples.labels == ["yes", "0", "1"]
    triplet = read(context, "triplet", {"anchor": "a", "positive": "b", "negative": "c"})
    assert (triplet.sentences, triplet.indices.tolist(), triplet.labels) == (["a", "b", "c"], [[0, 1, 2]], [None])


@pytest.mark.parametrize(
    ("keys", "width"), [((), 2), (("negative",), 3), (("negative_1", "negative_2", "negative_4"), 4)]
)
def test_negatives_of_a_table_are_read_without_being_named(context, keys, width):
    row = {"anchor": "a", "positive": "b", **{key: f"no {key}" for key in keys}, "positive_score": 0.5}
    examples = read(context, "contrastive", row)
    assert examples.sentences == ["a", "b", *(f"no {key}" for key in keys)][:width]
    assert examples.indices.tolist() == [list(range(width))]


def test_pairs_that_training_and_held_out_data_share_are_counted(context, capsys):
    train = read(context, "triplet", *({"anchor": f"a{n}", "positive": "b", "negative": "c"} for n in range(3)))
    dev = read(
        context, "triplet", {"anchor": "a1", "positive": "b", "negative": "d"}, {"anchor": "b", "positive": "a1"}
    )
    log_shared_pairs(train, dev, {"dev_sts stsb": [("a0", "b"), ("a2", "b"), ("a2", "c")]})
    logged = capsys.readouterr().err
    assert "dev: of 1 distinct pairs, 1 in train too" in logged
    assert "dev_sts stsb: of 3 distinct pairs, 2 in train too" in logged


def test_negatives_that_begin_in_a_later_record_are_an_error(context):
    rows = [{"anchor": "a", "positive": "b"}, {"anchor": "c", "positive": "d", "negative": "e"}]
    with pytest.raises(RequestError, match="has no column 'negative'"):
        read(context, "contrastive", *rows)


def test_a_table_without_a_header_or_with_a_broken_first_line_has_pairs(context, tmp_path):
    (tmp_path / "plain.tsv").write_text("a\tb\n")
    (tmp_path / "broken.jsonl").write_text('{"anchor"\n{"anchor": "a", "positive": "b"}\n')
    for table in ({"path": str(tmp_path / "plain.tsv"), "header": False}, {"path": str(tmp_path / "broken.jsonl")}):
        examples = read_examples([Table.model_validate(table)], ANCHORS, context, Rejects(None, 1.0))
        assert (examples.sentences, examples.indices.tolist()) == (["a", "b"], [[0, 1]])


def test_a_class_is_one_however_its_number_is_written(context):
    labels = (0, 0.0, "0", "0.0", float("nan"), -1.0, 2.0)
    rows = (pair(f"a{number}", "b", label) for number, label in enumerate(labels))
    assert read(context, "softmax", *rows).labels == [*"00002"]


def test_scores_far_below_their_range_are_logged(context, capsys):
    read(context, "cosine", scored(0.2), scored(0.9))
    assert "no score is above 0.9, and score_range is [0.0, 5.0]" in capsys.readouterr().err
    for case in ({"rows": [scored(0.2), scored(0.9)], "score_range": [0, 1]}, {"rows": [scored(0.2), scored(1.1)]}):
        read(context, "cosine", *case.pop("rows"), **case)
        assert "score_range" not in capsys.readouterr().err


def test_scores_become_numbers_from_0_to_1(context):
    examples = read(context, "cosine", scored(1), scored("2.5"), scored(5.0), score_range=[1, 5])
    assert examples.labels == [0.0, 0.375, 1.0]


NO_NUMBER, OUTSIDE, NO_LABEL = "a score that is not a number", "a score outside 0 … 5", "no gold label"


@pytest.mark.parametrize(
    ("objective", "rows", "reasons"),
    [
        ("softmax", [pair("a", "c", label) for label in ("-", -1, " ", "-1")], [NO_LABEL] * 4),
        (
            "softmax",
            [pair("  ", "b", "x"), pair(3, "b", "x"), pair(None, "b", "x")],
            ["an empty sentence", "a sentence that is not text", "a missing value"],
        ),
        (
            "cosine",
            [scored(score) for score in (5.01, -0.1, "high", "nan", [1])],
            [OUTSIDE] * 2 + [NO_NUMBER] * 3,
        ),
    ],
)
def test_an_unusable_row_is_rejected_with_line_and_reason(context, objective, rows, reasons):
    usable = pair("a", "b", "x") if objective == "softmax" else scored(5)
    assert len(read(context, objective, usable, *rows).labels) == 1
    listed = [json.loads(line) for line in (context.output / "rejects.jsonl").read_text().splitlines()]
    assert [(reject["line"], reject["reason"]) for reject in listed] == list(enumerate(reasons, 2))


def test_too_many_rejects_and_nothing_usable_are_errors(context):
    rows = [pair("a", f"b{number}", "x") for number in range(98)] + [pair("a", "b", "-")] * 2
    assert len(read(context, "softmax", *rows, limit=0.02).labels) == 98
    with pytest.raises(WorkError, match=r"2 of 100 records.*2 × no gold label.*line 99"):
        read(context, "softmax", *rows, limit=0.01)
    with pytest.raises(RequestError, match=r"expected pairs with a class, found none .*no gold label"):
        read(context, "softmax", pair("a", "b", "-"))


def test_a_wrong_number_of_columns_is_refused_with_the_right_ones(context):
    path = context.cache.folder / "train.jsonl"
    with pytest.raises(RequestError, match=r"reads 3 columns \(premise, hypothesis, label\), found 2"):
        read(context, "softmax", pair("a", "b", "x"), train=[{"path": str(path), "columns": ["premise", "label"]}])


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        *((label, "no gold label") for label in ("-", "nan", "None", "NULL", "<NA>", "", -1)),
        *(
            (label, "a label that is no class: a number with a fraction, or a long text")
            for label in (0.5, "2.7", "a" * 61)
        ),
    ],
)
def test_a_value_that_is_no_class_is_rejected(context, label, reason):
    rows = [pair("a", "b", label), pair("c", "d", "entailment"), pair("e", "f", 2.0), pair("g", "h", True)]
    assert read(context, "softmax", *rows).labels == ["entailment", "2", "1"]
    (reject,) = map(json.loads, (context.output / "rejects.jsonl").open())
    assert (reject["line"], reject["reason"]) == (1, reason)


def test_a_score_that_is_a_boolean_is_no_number(context):
    assert read(context, "cosine", scored(True), scored(1.5), score_range=[0, 5]).labels == [0.3]


def test_a_score_with_an_underscore_is_no_number(context):
    assert read(context, "cosine", scored("1_0"), scored("1.5"), score_range=[0, 20]).labels == [0.075]


def test_an_equal_example_counts_once_and_one_with_another_label_counts_too(context, capsys):
    rows = [pair("a", "b", "yes"), pair("a", "b", "no"), pair("b", "a", "yes")]
    examples = read(context, "softmax", *rows, *rows)
    assert (examples.indices.tolist(), examples.labels) == ([[0, 1], [0, 1], [1, 0]], ["yes", "no", "yes"])
    expected = "3 of 6 examples of .* are copies of an earlier one, with its label, and count once; so many are seldom"
    assert re.search(expected, capsys.readouterr().err)
    assert len(read(context, "cosine", scored(1), scored(2), scored(1.0)).labels) == 2


@pytest.mark.parametrize(
    ("columns", "error_text"),
    [
        ([2, 1, 0], r"a\.tsv: 50 of 50 \(100\.0%\) labels differ from all others.*max_swapped, now 0\.2"),
        ([3, 1, 2], r"a\.tsv: 50 of 50 \(100\.0%\) have a sentence without a letter"),
    ],
)
def test_labels_and_scores_in_columns_of_sentences_are_refused(tmp_path, context, columns, error_text):
    rows = (f"A dog {n} runs.\tA man {n} sleeps.\t{('no', 'yes')[n % 2]}\t{n % 5}\n" for n in range(50))
    (tmp_path / "a.tsv").write_text("".join(rows))

    def labels(columns, limit):
        table = Table(path=str(tmp_path / "a.tsv"), columns=columns, header=False)
        return read_examples([table], LABELLED_PAIRS, context, Rejects(None), max_swapped=limit).labels

    with pytest.raises(RequestError, match=error_text):
        labels(columns, 0.2)
    assert len(labels(columns, 1.0)) == len(labels([0, 1, 2], 0.2)) == 50
