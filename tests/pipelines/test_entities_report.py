"""What a scoring of entities shows in a report."""

import json
import re
from pathlib import Path

import pytest

from pipelines.report.examples import entity_pictures
from pipelines.report.tables import score_tables

CONFUSIONS = {
    "types": [{"kind": "wrong_span", "gold": "Disease", "predicted": "Disease", "count": 3}],
    "mentions": [{"kind": "spurious", "gold": None, "predicted": "a <b>", "count": 2}],
}
EXAMPLES = {
    "wrong": [
        {
            "tokens": ["no", "acute", "<gout>", "seen"],
            "gold": [[1, 3, "Disease"]],
            "predicted": [[2, 3, "Disease", 0.75], [3, 4, "Chemical", 0.5]],
        }
    ],
    "right": [{"tokens": ["flu"], "gold": [[0, 1, "Disease"]], "predicted": [[0, 1, "Disease", 0.9]]}],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "confusions.json").write_text(json.dumps(CONFUSIONS))
    (tmp_path / "examples.json").write_text(json.dumps(EXAMPLES))
    return tmp_path


def test_gold_and_predicted_entities_are_marked_where_they_stand(folder: Path) -> None:
    found = entity_pictures(folder)
    assert found is not None
    ((gold, predicted),) = found.wrong
    marks = [re.findall(r"<mark[^>]*>(.*?)</mark>", str(side)) for side in (gold, predicted)]
    assert marks == [["acute &lt;gout&gt;"], ["&lt;gout&gt;", "seen"]]
    assert 'class="hue-1 border"' in str(gold)
    assert re.findall(r"<mark[^>]*>(.*?)</mark>", str(found.right[0])) == ["flu"]
    assert found.types == [("wrong border", "Disease", "Disease", 3)]
    assert found.mentions == [("spurious", "–", "a <b>", 2)]


def test_other_stages_have_no_such_pictures(tmp_path: Path) -> None:
    assert entity_pictures(tmp_path) is None


def test_published_figures_stand_beside_ours() -> None:
    metrics = {"f1": 0.8, "f1_low": 0.7, "f1_high": 0.9, "f1/Disease": 0.8, "published_f1/Disease": 0.883}
    table, outcomes = score_tables({"test": {**metrics, "missed": 3, "ece": 0.02}})
    assert [(row, *map(str, outcomes.cells(row))) for row in outcomes.rows] == [
        ("missed: nothing predicted there", "3"),
        ("calibration error of the confidences", "0.020"),
    ]
    assert table.family.title == "Entities"
    assert list(table.rows) == ["all types", "Disease"]
    assert table.columns == [("test", "F1"), ("test", "F1, published")]
    assert [figure.value for figure in table.cells("Disease")] == [0.8, 0.883]
    assert table.cells("all types")[0].interval == "0.700 – 0.900"
