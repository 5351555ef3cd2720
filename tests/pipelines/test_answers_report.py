"""What a scoring of answers shows in a report."""

import json
import re

import pytest

from pipelines.report.examples import answer_pictures
from pipelines.report.outcomes import readmission_pictures
from pipelines.report.tables import score_tables

INTERVALS = {"exact_match_low": 0.1, "exact_match_high": 0.9, "f1_low": 0.2, "f1_high": 0.95}
SLICES = {
    "answer_words": [
        {"name": "1 word", "questions": 1200, "exact_match": 0.5, "f1": 0.6, **INTERVALS},
        {"name": "2–3 words", "questions": 8, "exact_match": 0.25, "f1": 0.5, **INTERVALS},
    ],
    "position": [{"name": "0–20 %", "questions": 1208, "exact_match": 0.5, "f1": 0.6, **INTERVALS}],
}
TEXT = "No <b>gout</b> was seen in mice, but gout in rats."


def marks(*listed):
    return [{"start": start, "end": end, "kind": kind} for start, end, kind in listed]


def example(answer, passages, golds=("rats",), probability=0.75):
    told = {"id": "q", "question": "Who <i> had it?", "answer": answer, "golds": list(golds)}
    return {**told, "probability": probability, "passages": passages}


EXAMPLES = {
    "wrong": [
        example("mice", [{"text": TEXT, "start": 0, "marks": marks((27, 31, "answer"), (45, 49, "gold"))}]),
        example("", [{"text": TEXT, "start": 0, "marks": marks((45, 49, "gold"), (37, 49, "gold"))}]),
    ],
    "right": [
        example("rats", [{"text": TEXT, "start": 0, "marks": marks((45, 49, "answer"), (45, 49, "gold"))}]),
        example("", [{"text": TEXT, "start": 0, "marks": []}], golds=("",), probability=0.999),
    ],
}


@pytest.fixture
def found(tmp_path):
    (tmp_path / "slices.json").write_text(json.dumps(SLICES))
    (tmp_path / "examples.json").write_text(json.dumps(EXAMPLES))
    return answer_pictures(tmp_path)


def marked(example):
    return re.findall(r'<mark class="(\w+).*?>(.*?)</mark>', str(example.passages[0]))


def test_scores_by_length_and_place_have_their_intervals(found):
    (length, slices), (place, others) = found.tables
    assert [length, place] == [curve.title for curve in found.curves]
    assert [(name, questions, *map(str, figures)) for name, questions, figures in slices] == [
        ("1 word", "1,200", "0.500", "0.600"),
        ("2–3 words", "8", "0.250", "0.500"),
    ]
    assert others[0][2][1].interval == "0.200 – 0.950"
    assert all(curve.svg.startswith("<svg") for curve in found.curves)


@pytest.mark.parametrize(("count", "slanted"), [(6, False), (7, True)])
def test_names_of_many_slices_are_slanted_so_that_none_stands_on_another(tmp_path, count, slanted):
    longest = [{**SLICES["answer_words"][1], "name": f"{2**n}–{2 ** (n + 1) - 1} words"} for n in range(1, count + 1)]
    (tmp_path / "slices.json").write_text(json.dumps({**SLICES, "answer_words": longest}))
    (tmp_path / "examples.json").write_text(json.dumps(EXAMPLES))

    drawn = answer_pictures(tmp_path).curves[0].svg

    last = re.search(rf"<text[^>]*>{2**count}–{2 ** (count + 1) - 1}</text>", drawn)
    assert ("rotate(-30" in last[0]) == slanted


def test_wrong_answers_and_right_ones_are_marked_where_they_stand(found):
    both, none = found.wrong
    assert marked(both) == [("wrong", "mice"), ("gold", "rats")]
    assert (both.answer, both.golds, both.probability) == ("mice", "rats", "75 %")
    assert marked(none) == [("gold", "gout in rats")]  # of two golds in one place the longer one
    right, impossible = found.right
    assert marked(right) == [("right", "rats")]
    assert (marked(impossible), impossible.golds, impossible.probability) == ([], "", "> 99 %")


def test_other_stages_have_no_such_pictures(tmp_path):
    assert answer_pictures(tmp_path) is None
    (tmp_path / "slices.json").write_text('{"slices": []}')  # of a readmission
    (tmp_path / "examples.json").write_text('{"wrong": [], "right": []}')
    assert answer_pictures(tmp_path) is None


def test_what_was_scored_here_is_no_readmission(found, tmp_path):
    assert found is not None
    assert readmission_pictures(tmp_path) is None


def test_figures_of_answers_stand_together_and_published_ones_beside_them():
    metrics = {"exact_match": 0.5, "f1": 0.6, "f1_low": 0.5, "f1_high": 0.7, "published_mrr": 0.48, "mrr": 0.4}
    more = {"has_answer/f1": 0.7, "first_sentence/f1": 0.1, "ece": 0.02, "questions": 12.0}
    table, counts = score_tables(
        {"test": {**metrics, **more}, "ner": {"f1": 0.8}}, {"test": "domain.qa-evaluate", "ner": "domain.ner"}
    )[-2:]
    assert [table.family.title, counts.family.title] == ["Answers", "Answers"]
    assert list(table.rows) == ["all questions", "with an answer in the text", "the text's first sentence as answer"]
    named = {column[1]: str(figure) for column, figure in zip(table.columns, table.cells("all questions"), strict=True)}
    assert named == {"exact match": "0.500", "F1": "0.600", "MRR, published": "0.480", "MRR": "0.400"}
    assert list(counts.rows) == ["calibration error of the probabilities", "questions"]
