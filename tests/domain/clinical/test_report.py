"""The reports of outcome models and of exclusions."""

import json

import numpy as np
import pytest

from bertrelay.report import Lines, Table, Text
from domain.clinical.report import flow_report, outcome_report


def written(folder, **files):
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def interval(name, value, low, high):
    return {name: value, f"{name}_low": low, f"{name}_high": high}


READING = [{"share": share, "auroc": 0.5 + share / 4, "died": 0.4, "others": 0.2} for share in (0.5, 1.0)]
POINTS = [[0.1, 0.2, 50], [0.6, 0.5, 50]]
CURVES = {
    "roc": {"model": [[0, 0], [0.2, 0.7], [1, 1]], "tfidf": [[0, 0], [0.4, 0.5], [1, 1]]},
    "precision_recall": {"model": [[0.1, 0.9], [1, 0.3]], "tfidf": [[0.2, 0.6], [1, 0.3]]},
    "calibration": {"model": POINTS, "model, calibrated": POINTS, "tfidf": POINTS, "tfidf, calibrated": POINTS},
    "while_reading": READING,
    "read_in_parts": 1234,
    "prevalence": 0.3,
    "outcome": "died",
}
GROUP = {**interval("auroc", 0.8, 0.7, 0.9), "auprc": 0.5, "prevalence": 0.3, "mean_calibrated": 0.31}
CALIBRATED = GROUP | interval("observed_expected", 0.97, 0.9, 1.1)
CALIBRATED |= {"observed_expected_uncalibrated": 0.12, "calibration_error": 0.02, "calibration_slope": None}


def group(metrics):
    return {"characteristic": "sex", "group": "F", "admissions": 1200, "metrics": metrics, "suppressed": 0}


FEW = {"characteristic": "sex", "group": None, "admissions": None, "metrics": None, "suppressed": 2}


METRICS = {**interval("auroc", 0.8, 0.7, 0.9), "auroc/tfidf": 0.7, "auroc/note_length": None, "auprc": 0.6}
METRICS |= {"prevalence": 0.25, "admissions/test": 400, "admissions/train": 1000, "best_auroc": 0.85}
METRICS |= {"observed_expected": 0.97, "observed_expected_uncalibrated": 0.5}


def blocks_of(folder, kind=object, metrics=METRICS):
    report = outcome_report(metrics, folder, "that the patient dies in hospital")
    return [block for section in report.sections for block in section.blocks if isinstance(block, kind)]


def texts_of(row):
    return [cell if isinstance(cell, str) else cell.value for cell in row]


def test_groups_of_patients_and_their_calibration_are_listed_and_small_ones_counted(tmp_path):
    groups, calibration = blocks_of(written(tmp_path, slices={"slices": [group(CALIBRATED), FEW]}), Table)
    first, second = groups.rows
    assert texts_of(first) == ["sex", "F", "1,200", 0.8, 0.5, 0.3, 0.31]
    assert (first[3].low, first[3].high) == (0.7, 0.9) and groups.columns[-1] == "mean calibrated probability"
    assert second == ["sex", "2 small groups, not shown"]
    (row,) = calibration.rows
    named = dict(zip(calibration.columns, row, strict=True))
    assert named["observed/expected before it"].value == 0.12 and named["calibration slope"].value is None
    assert (named["observed/expected"].value, named["observed/expected"].low) == (0.97, 0.9)
    of_labels = {"auroc": 0.8, "auprc": 0.5, "prevalence": 0.3, "mean_probability": 0.31}
    (groups,) = blocks_of(written(tmp_path, slices={"slices": [group(of_labels)]}), Table)
    assert groups.columns[-1] == "mean probability" and groups.rows[0][-1].value == 0.31


def test_confusions_of_classes_have_a_table(tmp_path):
    confusion = {"labels": ["under_3_days", "over_7_days"], "rows": [[1200, 15], None]}
    folder = written(tmp_path, confusion=confusion, slices={"slices": [group(GROUP)]})
    confusions, _ = blocks_of(folder, Table, {"auroc_macro": 0.7, "admissions/test": 400})
    assert confusions.columns == ["", "under 3 days", "over 7 days"]
    assert confusions.rows == [["under 3 days", "1,200", "15"], ["over 7 days", "–", "–"]]


@pytest.mark.parametrize(
    ("threshold", "minimum", "column", "text"),
    [
        (0.4125, 20, "", "Alarms: from a probability of 0.412 on. On the validation split 1,020 of 1,204"),
        (None, 20, "", "no threshold reaches a precision of 0.8 with 95 % confidence, on at least 20"),
        (0.4125, None, "", "Alarms by the threshold of the model: from a probability of 0.412 on."),
        (0.4125, 20, "recalibrated", "Alarms by the threshold chosen here: from a probability of 0.412 on."),
    ],
)
def test_counts_behind_alarm_thresholds_are_shown_or_that_there_is_none(tmp_path, threshold, minimum, column, text):
    counts = {"threshold": threshold, "alarms": 1204, "right": None if threshold is None else 1020}
    alarms = [{"column": column, "precision": 0.8, "minimum": minimum, **counts}]
    folder = written(tmp_path, curves=CURVES | {"alarms": alarms})
    assert [chart.title.split()[0] for chart in blocks_of(folder, Lines)] == ["AUROC", "Mean"]
    [paragraph] = blocks_of(folder, Text)
    assert text in paragraph.text


def test_headlines_stand_beside_chance_baselines_and_the_best_possible_with_a_chart_for_each(tmp_path):
    folder, probabilities = written(tmp_path, curves=CURVES), np.array([0.02] * 30 + [0.5] * 9 + [0.98] * 10)
    report = outcome_report(METRICS, folder, "of death", base="a BERT", probabilities=probabilities)
    auroc, ratio, auprc = report.headlines
    beside = [(measure.label, measure.value) for measure in auroc.beside]
    assert beside == [("chance", 0.5), ("TF-IDF, logistic regression", 0.7), ("the true risk, at best", 0.85)]
    assert auroc.data == "400 test admissions, 100 with the outcome"
    assert (ratio.measure.value, ratio.beside[0].value, auprc.beside[0].value) == (0.97, 0.5, 0.25)
    assert [headline.chart.title for headline in report.headlines] == ["ROC", "Calibration", "Precision and recall"]
    counts = [count for _, count in ratio.chart.bars]
    assert (counts[0], counts[10], counts[19], sum(counts)) == (30, 0, 10, 40)  # fewer than ten are left out
    assert "1,000 admissions and tested on 400 of other patients" in report.summary[1]
    [section] = report.sections
    assert not {block.title for block in section.blocks if isinstance(block, Lines)} & {"ROC", "Calibration"}


def test_a_flow_table_has_its_counts_with_thousands_apart_and_none_below_ten(tmp_path):
    rows = '"train, readmitted",12345,900\nrows read,7,\nleft,10,0\n'
    (tmp_path / "flow.csv").write_text(f"step,admissions,left_out_readmitted\n{rows}")
    [section] = flow_report(tmp_path).sections
    [table] = section.blocks
    assert table.columns == ["step", "admissions", "left out readmitted"]
    assert table.rows == [["train, readmitted", "12,345", "900"], ["rows read", "<10", ""], ["left", "10", "0"]]


def test_the_cut_of_notes_and_what_it_cost_stand_above_their_flow(tmp_path):
    (tmp_path / "flow.csv").write_text("step,notes\nkept,7\n")
    about = {"cut": "text until the discharge", "cost": "4 of 7 stays are left without text, 2 of them readmitted"}
    (tmp_path / "notes.json").write_text(json.dumps(about))
    [section] = flow_report(tmp_path).sections
    expected = "Text until the discharge; 4 of 7 stays are left without text, 2 of them readmitted."
    assert section.blocks[0].text == expected


def test_a_folder_without_files_has_no_section(tmp_path):
    assert flow_report(tmp_path).sections == []
    assert blocks_of(tmp_path) == []
