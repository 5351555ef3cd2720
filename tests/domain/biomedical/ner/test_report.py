"""The report of an evaluated tagger."""

import re

from bertrelay.report import Html, Table
from domain.biomedical.ner.report import evaluation_report

ENTITIES = {
    "confusions": {
        "types": [{"kind": "wrong_span", "gold": "Disease", "predicted": "Disease", "count": 3}],
        "mentions": [{"kind": "spurious", "gold": None, "predicted": "a <b>", "count": 2}],
    },
    "examples": {
        "wrong": [
            {
                "tokens": ["no", "acute", "<gout>", "seen"],
                "gold": [[1, 3, "Disease"]],
                "predicted": [[2, 3, "Disease", 0.75], [3, 4, "Chemical", 0.5]],
            }
        ],
        "right": [{"tokens": ["flu"], "gold": [[0, 1, "Disease"]], "predicted": [[0, 1, "Disease", 0.9]]}],
    },
}


METRICS = {
    "f1": 0.5,
    "f1_low": 0.25,
    "f1_high": 0.75,
    "f1/Disease": 0.5,
    "f1/Disease_low": 0.25,
    "f1/Disease_high": 0.75,
}
METRICS |= {"gold_entities": 4, "predicted_entities": 5, "sentences": 3, "ece": 0.125, "ece_uncalibrated": 0.25}


def marks(block):
    return re.findall(r'<mark class="(\S+).*?>(.*?)</mark>', block.html)


def test_entities_are_marked_in_their_sentences_and_confusions_listed():
    [section] = evaluation_report(METRICS, **ENTITIES).sections
    types, mentions = (block for block in section.blocks if isinstance(block, Table))
    assert types.rows == [["wrong boundary", "Disease", "Disease", "3"]] and not types.quotes
    assert mentions.rows == [["spurious", "–", "a <b>", "2"]] and mentions.quotes
    wrong, right = (block for block in section.blocks if isinstance(block, Html))
    texts = [text for _, text in marks(wrong)]
    assert texts[-3:] == ["acute &lt;gout&gt;", "&lt;gout&gt;", "seen"]
    assert 'class="hue-1 wrong_span"' in wrong.html
    assert [text for _, text in marks(right)] == ["flu"]


def test_the_headline_stands_beside_the_published_metric_and_has_a_dot_for_each_type():
    f1, calibration = evaluation_report({**METRICS, "published_f1": 0.4}, **ENTITIES).headlines
    assert (f1.measure.value, f1.measure.low, f1.measure.high) == (0.5, 0.25, 0.75)
    assert [(measure.label, measure.value) for measure in f1.beside] == [("published", 0.4)]
    assert list(f1.chart.rows) == ["Disease"]
    assert (calibration.measure.value, calibration.beside[0].value, calibration.better) == (0.125, 0.25, "lower")
