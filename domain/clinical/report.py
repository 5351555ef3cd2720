"""The reports of outcome models: discrimination, calibration, alarms and groups of patients; and of exclusions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertrelay.files import read_json
from bertrelay.report import Block, Headline, Lines, Measure, Section, StageReport, Table, Text
from bertrelay.stage import Metrics
from domain.clinical.metrics import Floats
from domain.clinical.settings import CONFUSION, CURVES, FLOW, NOTES_ABOUT, SLICES, in_words
from domain.clinical.stage_files import FEWEST, read_flow, shown_count

BARS = 20
TITLE, DEVICE = "Clinical outcomes", "Nothing here is a medical device."
EXCLUSIONS = "Exclusions"
ABOUT_EXCLUSIONS = (
    "Counts after each step; <10 is 1 to 9. Patients that the tables do not have, and events in other hospitals, are "
    "not counted."
)
MODELS = {"model": "model", "note_length": "note length alone", "tfidf": "TF-IDF"}
"""Names of models, in the order of their colours."""
CALIBRATED = ", calibrated"
BASELINES = {"tfidf": "TF-IDF, logistic regression", "note_length": "note length alone"}
MEANS = {"mean_calibrated": "mean calibrated probability", "mean_probability": "mean probability"}
"""The first of tasks that are calibrated, the second of labels."""
MEASURES = {"auroc": "AUROC", "auprc": "AUPRC", "prevalence": "prevalence", **MEANS}
CALIBRATION = {
    "observed_expected": "observed/expected",
    "calibration_slope": "calibration slope",
    "calibration_intercept": "calibration intercept",
    "calibration_error": "calibration error",
}
GROUPS = (
    "Groups of patients of the test split, by characteristics of which all are recorded. Left out is a group in which "
    "fewer than ten have the outcome, or fewer than ten do not have it."
)
CALIBRATION_OF_GROUPS = "Calibration of these groups, before the recalibration and after it. Ideal are 1, 1, 0 and 0."
CONFUSIONS = (
    "Confusions of classes on the test split: a row is the outcome, a column the prediction. Rows with a small count, "
    "or that would reveal one, are left out."
)


def outcome_report(
    metrics: Metrics,
    output: Path,
    outcome: str,
    *,
    base: str = "",
    probabilities: Floats | None = None,
) -> StageReport:
    """The report of an outcome model, from its test metrics and the files that the evaluation wrote to `output`.

    outcome: in words. base: of a model that the stage has trained, in words; empty for one that it evaluates.
    probabilities: calibrated ones of the test admissions, for the histogram; of a binary task.
    """
    curves, slices = read_json(output / CURVES), (read_json(output / SLICES) or {}).get("slices", [])
    size, prevalence = metrics.get("admissions/test") or 0, metrics.get("prevalence")
    data = f"{shown_count(size)} test admissions"
    if prevalence is not None:
        data += f", {shown_count(round(size * prevalence))} with the outcome"
    summary = []
    if base:
        summary = [
            f"A classifier, started from {base}, reads the notes of a hospital stay and gives the probability "
            f"{outcome}.",
            f"It was trained on {metrics.get('admissions/train') or 0:,.0f} admissions and tested on {size:,.0f} of "
            "other patients.",
        ]
    model = "" if base else "model"
    headlines = list(_binary_headlines(metrics, curves, probabilities) if curves else _label_headlines(metrics))
    headlines = [
        headline.model_copy(update={"data": data, "model": model})
        for headline in headlines
        if headline.measure.value is not None
    ]
    blocks = [*(_curve_blocks(curves) if curves else ()), *_confusions(output), *_group_tables(slices)]
    sections = [Section(title=TITLE, about=DEVICE, blocks=blocks)] if blocks else []
    sections += flow_report(output).sections
    return StageReport(summary=summary, headlines=headlines, sections=sections)


def _binary_headlines(metrics: Metrics, curves: Mapping[str, Any], probabilities: Floats | None) -> Iterator[Headline]:
    """AUROC beside chance and baselines, observed/expected beside the ideal, AUPRC beside the prevalence."""
    beside = _baselines(metrics, "auroc")
    if metrics.get("best_auroc") is not None:
        beside.append(Measure.of(metrics, "best_auroc", "the true risk, at best"))
    roc = _of_models("ROC", curves["roc"], "false positive rate", "recall", limits=(-0.02, 1.02), reference=(0, 1))
    yield _headline("AUROC", metrics, "auroc", [Measure(value=0.5, label="chance"), *beside], roc)
    name = "observed_expected"
    yield _headline(
        "Observed/expected, 1 is ideal",
        metrics,
        name,
        [Measure.of(metrics, f"{name}_uncalibrated", "before the recalibration")],
        _calibration_chart(curves, probabilities),
        better="",
    )
    prevalence = metrics["prevalence"] or 0.0
    precision = _of_models(
        *("Precision and recall", curves["precision_recall"], "recall", "precision"),
        limits=(-0.02, 1.02),
        reference=(prevalence, prevalence),
    )
    beside = [Measure.of(metrics, "prevalence", "chance, the prevalence"), *_baselines(metrics, "auprc")]
    yield _headline("AUPRC", metrics, "auprc", beside, precision)


def _label_headlines(metrics: Metrics) -> Iterator[Headline]:
    beside = [Measure(value=0.5, label="chance"), *_baselines(metrics, "auroc_macro")]
    yield _headline("AUROC, mean over labels", metrics, "auroc_macro", beside)


def _headline(
    title: str, metrics: Metrics, name: str, beside: list[Measure], chart: Lines | None = None, better: str = "higher"
) -> Headline:
    beside = [measure for measure in beside if measure.value is not None]
    measure = Measure.of(metrics, name)
    fields = {"title": title, "measure": measure, "metrics": [name], "beside": beside, "chart": chart, "better": better}
    return Headline.model_validate({**fields, "data": ""})


def _baselines(metrics: Metrics, name: str) -> list[Measure]:
    return [Measure.of(metrics, f"{name}/{model}", label) for model, label in BASELINES.items()]


def _calibration_chart(curves: Mapping[str, Any], probabilities: Floats | None) -> Lines:
    """The calibration of the model and, recalibrated, of its best baseline, above a histogram of probabilities."""
    names = [name for name in ("model", f"model{CALIBRATED}", f"tfidf{CALIBRATED}") if name in curves["calibration"]]
    # Mean probability and fraction, and the interval of the fraction where there is one.
    points = {
        name: [[*point[:2], *([] if None in point[3:] else point[3:])] for point in curves["calibration"][name]]
        for name in names
    }
    outcome = in_words(curves.get("outcome", "readmitted"))
    chart = _of_models("Calibration", points, "probability", f"fraction {outcome}", reference=(0, 1))
    if probabilities is None:
        return chart
    counts, borders = np.histogram(probabilities, BARS, (0, 1))
    shown = np.where(counts < FEWEST, 0, counts)
    bars = list(zip(((borders[1:] + borders[:-1]) / 2).tolist(), shown.astype(float).tolist(), strict=True))
    return chart.model_copy(update={"bars": bars})


def _of_models(
    title: str,
    lines: Mapping[str, Any],
    across: str,
    up: str,
    *,
    limits: tuple[float, float] | None = None,
    reference: tuple[float, float] | None = None,
) -> Lines:
    """A chart with a line for each model, in the colour that it has everywhere."""
    order, named, styles = [*MODELS, f"model{CALIBRATED}"], {}, []
    for number, (name, points) in enumerate(lines.items()):
        model = name if name in order else name.removesuffix(CALIBRATED)
        styles.append(order.index(model) if model in order else number)
        bare = name.removesuffix(CALIBRATED)
        named[name.replace(bare, MODELS.get(bare, bare), 1)] = points
    return Lines(title=title, lines=named, across=across, up=up, styles=styles, limits=limits, reference=reference)


def _curve_blocks(curves: Mapping[str, Any]) -> Iterator[Block]:
    """Metrics as more of a note is read, and the alarms."""
    reading, outcome = curves["while_reading"], curves.get("outcome", "readmitted")
    if reading:
        count, across = curves.get("read_in_parts"), "fraction of the chunks read"
        title = f"as more of the note is read{f' ({count:,} admissions of several chunks)' if count else ''}"
        lines = {
            name: [(row["share"], row[name]) for row in reading if row[name] is not None]
            for name in ("auroc", outcome, "others")
        }
        yield Lines(title=f"AUROC {title}", lines={"": lines["auroc"]}, across=across, up="AUROC")
        named = {in_words(outcome): lines[outcome], f"not {in_words(outcome)}": lines["others"]}
        yield Lines(title=f"Mean probability {title}", lines=named, across=across, up="mean probability")
    yield from (Text(text=_alarms(threshold)) for threshold in curves.get("alarms", ()))


def _alarms(alarms: Mapping[str, Any]) -> str:
    """An alarm threshold and the counts behind it, in sentences.

    Without `minimum` the model was trained before, and its folder does not name the fewest alarms.
    """
    required = f"a precision of {alarms['precision']:g} with 95 % confidence"
    subject, data = "Alarms", "the validation split"
    if alarms["minimum"] is None:
        subject, data = "Alarms by the threshold of the model", "the validation split of its training"
    else:
        required += f", on at least {alarms['minimum']:,} alarms"
        subject += " by the threshold chosen here" if alarms["column"] else ""
    if alarms["threshold"] is None:
        return f"{subject}: no threshold reaches {required}, on {data}."
    right, raised = (shown_count(alarms[name] or 0) for name in ("right", "alarms"))
    return (
        f"{subject}: from a probability of {alarms['threshold']:.3f} on. On {data} {right} of {raised} alarms were "
        f"right. Required was {required}."
    )


def _confusions(output: Path) -> Iterator[Table]:
    confusion = read_json(output / CONFUSION)
    if confusion:
        labels = [in_words(label) for label in confusion["labels"]]
        rows: list[list[str | Measure]] = [
            [label, *([f"{count:,}" for count in row] if row else ["–"] * len(labels))]
            for label, row in zip(labels, confusion["rows"], strict=True)
        ]
        yield Table(columns=["", *labels], rows=rows, caption=CONFUSIONS)


def _group_tables(slices: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    measured = [group["metrics"] for group in slices if group["metrics"]]
    mean = next((name for name in MEANS if any(name in metrics for metrics in measured)), "mean_probability")
    if slices:
        yield _groups(GROUPS, slices, {name: MEASURES[name] for name in ("auroc", "auprc", "prevalence", mean)})
    if any("calibration_error" in metrics for metrics in measured):
        names: dict[str, str] = {}
        for name, title in CALIBRATION.items():
            names |= {f"{name}_uncalibrated": f"{title} before it", name: title}
        names = {name: title for name, title in names.items() if any(name in metrics for metrics in measured)}
        yield _groups(CALIBRATION_OF_GROUPS, [group for group in slices if group["metrics"]], names)


def _groups(caption: str, slices: Iterable[Mapping[str, Any]], names: Mapping[str, str]) -> Table:
    rows: list[list[str | Measure]] = []
    for group in slices:
        if group["suppressed"]:
            rows.append([group["characteristic"], f"{group['suppressed']} small groups, not shown"])
        else:
            measures = [Measure.of(group["metrics"], name) for name in names]
            rows.append([group["characteristic"], group["group"], f"{group['admissions']:,}", *measures])
    return Table(columns=["", "Group", "Admissions", *names.values()], rows=rows, caption=caption, texts=2)


def flow_report(output: Path) -> StageReport:
    """The report of a stage that has written a flow table (CONSORT) to `output`, and what a cut of the notes costs."""
    file, about = output / FLOW, read_json(output / NOTES_ABOUT)
    blocks: list[Block] = []
    if about is not None and "cut" in about:
        blocks.append(Text(text=f"{about['cut'].capitalize()}; {about['cost']}."))
    if file.is_file():
        columns, rows = read_flow(file)
        blocks.append(Table(columns=columns, rows=[list(row) for row in rows]))
    sections = [Section(title=EXCLUSIONS, about=ABOUT_EXCLUSIONS, blocks=blocks)] if blocks else []
    return StageReport(sections=sections)
