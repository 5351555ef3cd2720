"""The report of an evaluated answerer."""

import re

from bertrelay.report import Html, Table
from domain.biomedical.qa.report import evaluation_report


def interval(name, value, low, high):
    return {name: value, f"{name}_low": low, f"{name}_high": high}


SCORES = interval("exact_match", 0.25, 0.1, 0.9) | interval("f1", 0.5, 0.2, 0.95)
SLICES = {
    "answer_words": [
        {"name": "1 word", "questions": 1200, **SCORES, "exact_match": 0.5, "f1": 0.6},
        {"name": "2–3 words", "questions": 8, **SCORES},
    ],
    "position": [{"name": "0–20 %", "questions": 1208, **SCORES}],
}
TEXT = "No <b>gout</b> was seen in mice, but gout in rats."


def answered(answer, *spans, golds=("rats",), probability=0.75):
    listed = [{"start": start, "end": end, "kind": kind} for start, end, kind in spans]
    passages = [{"text": TEXT, "start": 0, "marks": listed}]
    return {"question": "Who <i>?", "answer": answer, "golds": golds, "probability": probability, "passages": passages}


ANSWERED = {
    "wrong": [
        answered("mice", (27, 31, "answer"), (45, 49, "gold")),
        answered("", (45, 49, "gold"), (37, 49, "gold")),
    ],
    "right": [
        answered("rats", (45, 49, "answer"), (45, 49, "gold")),
        answered("", golds=("",), probability=0.999),
    ],
}


METRICS = {
    **SCORES,
    "first_sentence/f1": 0.125,
    "ece": None,
    "ece_uncalibrated": None,
    "scored": 1208,
    "answered": 1000,
}


def marks(text):
    return re.findall(r'<mark class="(\S+).*?>(.*?)</mark>', text)


def test_answers_have_metrics_by_slice_and_are_marked_in_their_texts():
    [section] = evaluation_report(METRICS, SLICES, ANSWERED).sections
    length, position = (block for block in section.blocks if isinstance(block, Table))
    assert [row[:2] for row in length.rows] == [["1 word", "1,200"], ["2–3 words", "8"]]
    assert [measure.value for measure in length.rows[0][2:]] == [0.5, 0.6]
    assert (position.rows[0][-1].low, position.rows[0][-1].high) == (0.2, 0.95)
    wrong, right = (
        block.html.split('<div class="answered">')[1:] for block in section.blocks if isinstance(block, Html)
    )
    assert marks(wrong[0]) == [("wrong", "mice"), ("gold", "rats")]
    assert "answered: mice, 75 %; right: rats" in wrong[0] and "Who &lt;i&gt;?" in wrong[0]
    assert marks(wrong[1]) == [("gold", "gout in rats")]  # of two gold answers that overlap the longer one
    assert marks(right[0]) == [("right", "rats")]
    assert marks(right[1]) == [] and "no answer given, &gt; 99 %" in right[1]


def test_the_headline_stands_beside_the_first_sentence_and_has_a_dot_for_each_length():
    [f1] = evaluation_report(METRICS, SLICES, ANSWERED).headlines
    assert [(measure.label, measure.value) for measure in f1.beside] == [("the text's first sentence", 0.125)]
    assert [measures[0].value for measures in f1.chart.rows.values()] == [0.6, 0.5]
