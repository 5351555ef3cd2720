"""What the folders of stages show in a report: curves, entities, answers, clinical outcomes, exclusions."""

import json
import re
from xml.etree import ElementTree

import pytest

from pipelines.report import findings
from pipelines.report.charts import Curve, training_curves
from pipelines.report.tables import Listing

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


def written(folder, **files):
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def of_type(parts, kind):
    return [part for part in parts if isinstance(part, kind)]


def marks(part):
    return re.findall(r'<mark class="(\S+).*?>(.*?)</mark>', str(part))


def test_entities_are_marked_in_their_sentences_and_confusions_listed(tmp_path):
    parts = list(findings.entities(written(tmp_path, **ENTITIES)))
    types, mentions = of_type(parts, Listing)
    assert types.rows == [["wrong boundary", "Disease", "Disease", "3"]]
    assert mentions.rows == [["spurious", "–", "a <b>", "2"]]
    *_, wrong, _, right = parts
    assert [text for _, text in marks(wrong)] == ["acute &lt;gout&gt;", "&lt;gout&gt;", "seen"]
    assert 'class="hue-1 wrong_span"' in wrong
    assert [text for _, text in marks(right)] == ["flu"]


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


def test_answers_have_scores_by_slice_and_are_marked_in_their_texts(tmp_path):
    _, curves, length, place, *examples = findings.answers(written(tmp_path, slices=SLICES, examples=ANSWERED))
    assert [curve.title for curve in curves] == [length.caption, place.caption]
    assert [list(map(str, row)) for row in length.rows] == [
        ["1 word", "1,200", "0.500", "0.600"],
        ["2–3 words", "8", "0.250", "0.500"],
    ]
    assert place.rows[0][-1].interval == "0.200 – 0.950"
    _, both, none, _, right, impossible = examples
    assert marks(both) == [("wrong", "mice"), ("gold", "rats")]
    assert "answered: mice, 75 %; right: rats" in both and "Who &lt;i&gt;?" in both
    assert marks(none) == [("gold", "gout in rats")]  # of two golds in one place the longer one
    assert marks(right) == [("right", "rats")]
    assert marks(impossible) == [] and "no answer given, &gt; 99 %" in impossible


def test_without_text_nothing_of_a_document_is_shown(tmp_path):
    written(tmp_path, slices=SLICES, similarity={"rows": ["a"], "labels": ["b"], "matrix": [[1.0]]}, **ENTITIES)
    assert "gout" not in "".join(map(str, findings.entities(tmp_path, with_text=False)))
    assert "gout" not in "".join(map(str, findings.answers(tmp_path, with_text=False)))
    assert list(findings.similarity(tmp_path, with_text=False)) == []


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


def group(figures):
    return {"characteristic": "sex", "group": "F", "admissions": 1200, "metrics": figures, "suppressed": 0}


FEW = {"characteristic": "sex", "group": None, "admissions": None, "metrics": None, "suppressed": 2}


def test_groups_of_patients_and_their_calibration_are_listed_and_small_ones_counted(tmp_path):
    groups, calibration = findings.outcomes(written(tmp_path, slices={"slices": [group(CALIBRATED), FEW]}))
    first, second = groups.rows
    assert list(map(str, first)) == ["sex", "F", "1,200", "0.800", "0.500", "0.300", "0.310"]
    assert first[3].interval == "0.700 – 0.900" and groups.columns[-1] == "mean calibrated probability"
    assert second == ["sex", "2 small groups, not shown"]
    (row,) = calibration.rows
    named = dict(zip(calibration.columns, row, strict=True))
    assert str(named["observed/expected before it"]) == "0.120" and str(named["calibration slope"]) == "–"
    assert (str(named["observed/expected"]), named["observed/expected"].interval) == ("0.970", "0.900 – 1.100")
    figures = {"auroc": 0.8, "auprc": 0.5, "prevalence": 0.3, "mean_probability": 0.31}  # of labels
    (groups,) = findings.outcomes(written(tmp_path, slices={"slices": [group(figures)]}))
    assert groups.columns[-1] == "mean probability" and str(groups.rows[0][-1]) == "0.310"


def test_classes_have_a_table_of_what_was_taken_for_what(tmp_path):
    confusion = {"labels": ["under_3_days", "over_7_days"], "rows": [[1200, 15], None]}
    found, *_ = findings.outcomes(written(tmp_path, confusion=confusion, slices={"slices": [group(GROUP)]}))
    assert found.columns == ["", "under 3 days", "over 7 days"]
    assert found.rows == [["under 3 days", "1,200", "15"], ["over 7 days", "–", "–"]]


def test_counts_behind_alarm_thresholds_are_shown_or_that_there_is_none(tmp_path):
    reached = "Alarms: from a probability of 0.412 on. On the validation split 1,020 of 1,204"
    not_reached = "no threshold reaches a precision of 0.8 with 95 % confidence, on at least 20"
    shipped = (
        "Alarms by the threshold of the model: from a probability of 0.412 on. On the validation split of its training"
    )
    anew = "Alarms by the threshold chosen here: from a probability of 0.412 on. On the validation split 1,020"
    for threshold, right, minimum, column, shown in (
        (0.4125, 1020, 20, "", reached),
        (None, None, 20, "", not_reached),
        (0.4125, 1020, None, "", shipped),
        (0.4125, 1020, 20, "recalibrated", anew),
    ):
        counts = {"threshold": threshold, "alarms": 1204, "right": right}
        alarms = [{"column": column, "precision": 0.8, "minimum": minimum, **counts}]
        _, curves, text = findings.outcomes(written(tmp_path, curves=CURVES | {"alarms": alarms}))
        assert shown in text
        assert [curve.title.split()[0] for curve in curves] == ["ROC", "Precision", "Calibration", "AUROC", "P"]


def test_a_flow_table_has_its_counts_with_thousands_apart(tmp_path):
    rows = '"train, readmitted",12345,900\nrows read,7,\n'
    (tmp_path / "flow.csv").write_text(f"step,admissions,left_out_readmitted\n{rows}")
    (found,) = findings.flow(tmp_path)
    assert found.columns == ["step", "admissions", "left out readmitted"]
    assert found.rows == [["train, readmitted", "12,345", "900"], ["rows read", "7", ""]]


def test_the_cut_of_notes_and_what_it_cost_stand_above_their_flow(tmp_path):
    (tmp_path / "flow.csv").write_text("step,notes\nkept,7\n")
    about = {"cut": "text until the discharge", "cost": "4 of 7 stays are left without text, 2 of them readmitted"}
    (tmp_path / "notes.json").write_text(json.dumps(about))
    text, _ = findings.flow(tmp_path)
    assert "Text until the discharge; 4 of 7 stays are left without text, 2 of them readmitted." in text


def test_a_stage_shows_what_it_wrote_and_nothing_else(tmp_path):
    assert not any(list(subject(tmp_path)) for subject in findings.SUBJECTS)
    written(tmp_path, slices={"slices": [group(GROUP)]}, examples=ANSWERED)
    assert [subject.__name__ for subject in findings.SUBJECTS if list(subject(tmp_path))] == ["outcomes"]
    written(tmp_path, slices=SLICES)
    assert [subject.__name__ for subject in findings.SUBJECTS if list(subject(tmp_path))] == ["answers"]
    assert all(isinstance(curve, Curve) for curve in of_type(findings.answers(tmp_path), list)[0])


@pytest.fixture
def log(tmp_path):
    def write(*lines):
        path = tmp_path / "metrics.jsonl"
        path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
        return path

    return write


SVG = "{http://www.w3.org/2000/svg}"


def texts(svg):
    return ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def points_of_the_first_line(svg):
    strokes = [
        path.get("d") for path in ElementTree.fromstring(svg).iter(f"{SVG}path") if "#3b7dc4" in path.get("style", "")
    ]
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] ([-\d.]+) ([-\d.]+)", strokes[0])]


def test_the_loss_comes_first_then_the_rate_then_dev_scores_and_nothing_else(log):
    path = log(
        {"step": 1, "epoch": 0, "sts/de/spearman_cosine": 0.4, "sts/de/spearman_cosine_low": 0.3, "dev/accuracy": 0.5},
        {"step": 2, "lr": 0.1, "loss/mlm": 2.0, "loss/nsp": None, "grad_norm": 1, "tokens_per_second": 9},
        {"step": 3, "lr": 0.1, "loss/mlm": 1.0, "loss/nsp": 0.5, "padding_share": 0.5, "seconds": 3.0},
        '{"step": 4, "lo',  # cut short by a kill
    )
    curves = training_curves(path)
    assert [curve.title for curve in curves] == ["Loss", "Learning rate", "Dev: sts", "Dev scores"]
    assert {"mlm", "nsp"} <= set(texts(curves[0].svg))
    assert training_curves(log()) == training_curves(path.with_name("none.jsonl")) == []


def test_dev_scores_have_a_chart_a_measure_without_counts_and_a_mean_stands_for_its_languages(log):
    names = ["score", "sentences/de", "mse/de", "mse/ko", "nearness/cosine/de", "nearness/cosine/mean"]
    names += ["nearness/cosine/untrained/de", "nearness/cosine/untrained/mean", "nearness/error/de"]
    curves = training_curves(log(*({"step": step} | {f"dev/{name}": step / 9 for name in names} for step in (1, 2))))
    assert [curve.title for curve in curves] == ["Dev scores", "Dev: mse", "Dev: nearness"]
    drawn = {curve.title: {text for text in texts(curve.svg) if re.search("[a-z]", text)} for curve in curves}
    assert drawn["Dev: mse"] == {"step", "mse", "de", "ko"}
    means = {"cosine/mean", "cosine/untrained/mean"}
    assert drawn["Dev: nearness"] == {"step", "nearness", "error/de", *means}


def test_a_line_goes_through_its_points_and_of_a_long_log_through_few_that_end_at_the_last_step(log):
    [curve] = training_curves(log(*({"step": step, "loss": loss} for step, loss in [(0, 1.0), (10, 3.0), (30, 2.0)])))
    (x0, y0), (x1, y1), (x2, y2) = points_of_the_first_line(curve.svg)
    assert (x2 - x0) / (x1 - x0) == pytest.approx(3, rel=1e-3)
    assert (y2 - y0) / (y1 - y0) == pytest.approx(1 / 2, rel=1e-3)
    [long] = training_curves(log(*({"step": step, "loss": 1 / (1 + step)} for step in range(20_001))))
    assert len(long.svg) < 40_000
    [short] = training_curves(log({"step": 0, "loss": 1.0}, {"step": 20_000, "loss": 0.0}))
    ends = [points_of_the_first_line(each.svg)[-1][0] for each in (long, short)]
    assert ends[0] == pytest.approx(ends[1], abs=1)


def test_a_learning_curve_is_a_table_of_at_most_twenty_rows_and_the_last_among_them(tmp_path):
    rows = [{"step": step, "sentences": 100 * step, "cosine/en": step / 50} for step in range(1, 46)]
    [table] = findings.learning_curve(written(tmp_path, learning_curve={"rows": rows}))
    assert list(table.columns) == ["Step", "Sentences", "cosine/en"] and table.texts == 0
    assert [row[0] for row in table.rows] == [str(step) for step in range(3, 46, 3)]
    assert (table.rows[-1][1], table.rows[-1][2].value) == ("4,500", 0.9)
    assert not [*findings.learning_curve(tmp_path / "other")]
