"""What a judgement of readmissions shows in a report."""

import json
from pathlib import Path

import pytest

from pipelines.report.charts import COLOURS
from pipelines.report.outcomes import ORDER, flow_table, readmission_pictures
from pipelines.report.tables import score_tables

READING = [{"share": share, "auroc": 0.5 + share / 4, "readmitted": 0.4, "others": 0.2} for share in (0.5, 1.0)]
CURVES = {
    "roc": {"model": [[0, 0], [0.2, 0.7], [1, 1]], "tfidf": [[0, 0], [0.4, 0.5], [1, 1]]},
    "precision_recall": {"model": [[0.1, 0.9], [1, 0.3]], "tfidf": [[0.2, 0.6], [1, 0.3]]},
    "calibration": {"model": [[0.1, 0.2, 50], [0.6, 0.5, 50]], "model, calibrated": [[0.2, 0.2, 50], [0.5, 0.5, 50]]},
    "while_reading": READING,
    "read_in_parts": 1234,
    "prevalence": 0.3,
}
GROUP = {"auroc": 0.8, "auroc_low": 0.7, "auroc_high": 0.9, "auprc": 0.5, "prevalence": 0.3, "mean_calibrated": 0.31}
GROUP |= {"observed_expected_uncalibrated": 0.12, "observed_expected": 0.97, "observed_expected_low": 0.9}
GROUP |= {"observed_expected_high": 1.1, "calibration_error": 0.02, "calibration_slope": None}
SLICES = {
    "slices": [
        {"characteristic": "sex", "group": "F", "admissions": 1200, "figures": GROUP, "suppressed": 0},
        {"characteristic": "sex", "group": None, "admissions": None, "figures": None, "suppressed": 2},
    ]
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "curves.json").write_text(json.dumps(CURVES))
    (tmp_path / "slices.json").write_text(json.dumps(SLICES))
    (tmp_path / "flow.csv").write_text('step,admissions,subjects\n"train, readmitted",12345,900\nrows read,7,\n')
    return tmp_path


def test_curves_have_names_axes_and_no_script(folder: Path) -> None:
    found = readmission_pictures(folder)
    assert found is not None
    titles = [curve.title for curve in found.curves]
    read = [f"{what} as more of the note is read (1,234 admissions of several chunks)" for what in ("AUROC", "P")]
    assert titles == ["ROC", "Precision and recall", "Calibration", *read]
    for curve, labels in zip(
        found.curves,
        [("false positive rate", "recall"), ("recall", "precision"), ("probability", "share readmitted")],
        strict=False,
    ):
        assert all(label in curve.svg for label in labels)
        assert "<script" not in curve.svg and "model" in curve.svg
    assert "TF-IDF" in found.curves[0].svg
    assert "not readmitted" in found.curves[4].svg


def test_where_all_is_read_at_once_there_is_no_picture_of_reading(folder: Path) -> None:
    (folder / "curves.json").write_text(json.dumps(CURVES | {"while_reading": None, "read_in_parts": 0}))
    found = readmission_pictures(folder)
    assert found is not None and [curve.title for curve in found.curves] == [
        "ROC",
        "Precision and recall",
        "Calibration",
    ]


def test_steps_without_a_figure_are_left_out_of_the_pictures_of_reading(folder: Path) -> None:
    reading = [each | {"auroc": None, "others": None} for each in READING]
    (folder / "curves.json").write_text(json.dumps(CURVES | {"while_reading": reading}))
    found = readmission_pictures(folder)
    assert found is not None and len(found.curves) == 5


def test_of_a_baseline_the_calibrated_curve_is_drawn_alone_in_its_own_colour(folder: Path) -> None:
    points = [[0.1, 0.2, 50], [0.6, 0.5, 50]]
    drawn = dict.fromkeys(("model", "model, calibrated", "tfidf", "tfidf, calibrated"), points)
    (folder / "curves.json").write_text(json.dumps(CURVES | {"calibration": drawn}))
    found = readmission_pictures(folder)
    assert found is not None
    assert all(each in found.curves[2].svg for each in (">model<", "model, calibrated<", "TF-IDF, calibrated<"))
    assert ">TF-IDF<" not in found.curves[2].svg and COLOURS[ORDER.index("tfidf")] in found.curves[2].svg


def test_points_of_the_calibration_have_bars_where_they_have_intervals(folder: Path) -> None:
    ends = {"none": [], "unknown": [None, None], "known": [0.1, 0.35]}
    bars = {}
    for name, interval in ends.items():
        drawn = {"model": [[0.1, 0.2, 50, *interval], [0.6, 0.5, 50, *interval]]}
        (folder / "curves.json").write_text(json.dumps(CURVES | {"calibration": drawn}))
        found = readmission_pictures(folder)
        assert found is not None
        bars[name] = found.curves[2].svg.count("stroke-width: 1.2")
    assert bars == {"none": 0, "unknown": 0, "known": 2}


def test_groups_are_shown_and_small_ones_counted(folder: Path) -> None:
    found = readmission_pictures(folder)
    assert found is not None
    (first, second) = found.groups
    assert first[:3] == ("sex", "F", "1,200")
    assert [str(figure) for figure in first[3]] == ["0.800", "0.500", "0.300", "0.310"]
    assert first[3][0].interval == "0.700 – 0.900"
    assert second == ("sex", "2 small groups, not shown", "", [])
    assert found.figures[-1] == "mean calibrated probability"


def test_calibration_of_groups_stands_before_and_after_the_recalibration(folder: Path) -> None:
    found = readmission_pictures(folder)
    assert found is not None
    ((characteristic, group, _, figures),) = found.calibration
    assert (characteristic, group) == ("sex", "F")
    told = dict(zip(found.calibration_figures, figures, strict=True))
    assert str(told["observed/expected, before"]) == "0.120" and str(told["slope, after"]) == "–"
    assert (str(told["observed/expected, after"]), told["observed/expected, after"].interval) == (
        "0.970",
        "0.900 – 1.100",
    )


def test_the_counts_behind_the_alarm_threshold_are_shown_or_that_there_is_none(folder: Path) -> None:
    alarms = {"precision": 0.8, "minimum": 20, "threshold": 0.4125, "alarms": 1204, "right": 1020}
    asked = "a precision of 0.8 with 95 % confidence, on at least 20 alarms"
    for given, told in (
        (
            alarms,
            f"from P = 0.412 on. On the validation split 1,020 of 1,204 alarms were right. Asked for was {asked}.",
        ),
        (alarms | {"threshold": None, "alarms": None}, f"no threshold reaches {asked}, on the validation split."),
    ):
        (folder / "curves.json").write_text(json.dumps(CURVES | {"alarms": given}))
        found = readmission_pictures(folder)
        assert found is not None and found.alarms == f"Alarms: {told}"


def test_labels_have_a_mean_probability_and_no_table_of_calibration(folder: Path) -> None:
    figures = {"auroc": 0.8, "auprc": 0.5, "prevalence": 0.3, "mean_probability": 0.31}
    one = SLICES["slices"][0] | {"figures": figures}
    (folder / "slices.json").write_text(json.dumps({"slices": [one]}))
    found = readmission_pictures(folder)
    assert found is not None and found.calibration == []
    assert found.figures[-1] == "mean probability" and str(found.groups[0][3][-1]) == "0.310"


def test_classes_have_a_table_of_what_was_taken_for_what_and_no_curves(tmp_path: Path) -> None:
    told = {"labels": ["under_3_days", "over_7_days"], "rows": [[1200, 15], None]}
    (tmp_path / "confusion.json").write_text(json.dumps(told))
    (tmp_path / "slices.json").write_text(json.dumps(SLICES))
    found = readmission_pictures(tmp_path)
    assert found is not None and found.curves == []
    assert found.confusion == [
        ["", "under 3 days", "over 7 days"],
        ["under 3 days", "1,200", "15"],
        ["over 7 days", "–", "–"],
    ]


def test_curves_speak_of_their_outcome(folder: Path) -> None:
    reading = [{"died_in_hospital": each["readmitted"], **each} for each in READING]
    drawn = CURVES | {"outcome": "died_in_hospital", "while_reading": reading}
    (folder / "curves.json").write_text(json.dumps(drawn))
    found = readmission_pictures(folder)
    assert found is not None
    assert "share died in hospital" in found.curves[2].svg and "not died in hospital" in found.curves[4].svg


def test_a_flow_table_is_read_as_it_stands(folder: Path) -> None:
    assert flow_table(folder) == [
        ["step", "admissions", "subjects"],
        ["train, readmitted", "12,345", "900"],
        ["rows read", "7", ""],
    ]


def test_other_stages_have_neither(tmp_path: Path) -> None:
    assert readmission_pictures(tmp_path) is None
    assert flow_table(tmp_path) is None


def test_baselines_stand_beside_the_model_in_one_table() -> None:
    metrics = {"auroc": 0.8, "auroc_low": 0.7, "auroc_high": 0.9, "rp80": None, "auroc/tfidf": 0.7, "best_auroc": 0.85}
    metrics |= {"auroc/note_length": 0.55, "auroc/tfidf_low": 0.6, "auroc/tfidf_high": 0.75}
    (table,) = score_tables({"readmission": metrics})
    assert table.family.title == "What becomes of patients"
    assert [column for _, column in table.columns] == ["model", "TF-IDF, logistic regression", "note length alone"]
    assert list(map(str, table.cells("AUROC"))) == ["0.800", "0.700", "0.550"]
    assert [each.interval for each in table.cells("AUROC")] == ["0.700 – 0.900", "0.600 – 0.750", ""]
    assert str(table.cells("RP80")[0]) == "–"
    assert str(table.cells("AUROC of the true risk")[0]) == "0.850"
