"""What stages that predict clinical outcomes wrote, as the report shows it: curves, patient groups, exclusions."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertrelay.files import read_json
from bertrelay.metrics import declared
from domain.clinical.outcomes import CONFUSION, CURVES, FLOW, SLICES, in_words
from pipelines.report.charts import COLOURS, DASHES, INK, Curve, picture, plain
from pipelines.report.tables import Figure, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ORDER = ("model", "note_length", "tfidf", "model, calibrated")
"""Whose line has which colour, in every picture the same; a baseline's is only drawn once."""
CALIBRATED = ", calibrated"
CALIBRATIONS = ("model", *(f"{name}{CALIBRATED}" for name in ORDER[:3]))
POINTS_WITH_MARKS = 12
GROUP_FIGURES = {"auroc": "AUROC", "auprc": "AUPRC", "prevalence": "prevalence"}
MEANS = {"mean_calibrated": "mean calibrated probability", "mean_probability": "mean probability"}
"""The first of tasks that are calibrated, the second of labels."""
CALIBRATION_FIGURES = {
    f"{name}{when}": f"{title}, {'before' if when else 'after'}"
    for name, title in (
        ("observed_expected", "observed/expected"),
        ("calibration_slope", "slope"),
        ("calibration_intercept", "intercept"),
        ("calibration_error", "calibration error"),
    )
    for when in ("_uncalibrated", "")
}

Lines = Mapping[str, Sequence[Sequence[float]]]
Group = tuple[str, str, str, list[Figure]]
"""A characteristic, a group of it, its admissions, and its figures."""


@dataclass(frozen=True)
class ReadmissionPictures:
    """Curves with their titles, and tables.

    groups: (characteristic, group, admissions, figures), and for small groups of a characteristic how many there are.
    calibration: the same of the calibration before and after the recalibration; nothing where there is none.
    figures, calibration_figures: what these figures are called.
    alarms: what the alarm threshold rests on; empty where nothing is known of it.
    confusion: of a task with classes, a class with how often it was taken for each; a dash where the row is withheld.
    """

    curves: list[Curve]
    groups: list[Group]
    calibration: list[Group]
    figures: list[str]
    calibration_figures: list[str]
    confusion: list[list[str]]
    alarms: str


def readmission_pictures(folder: Path) -> ReadmissionPictures | None:
    """What is to be shown of the stage in `folder`, if it judged what becomes of patients."""
    drawn, listed = read_json(folder / CURVES), read_json(folder / SLICES)
    if "slices" not in (listed or {}) and (drawn is None or "precision_recall" not in drawn):
        return None
    slices = (listed or {}).get("slices", [])
    known = [each["figures"] for each in slices if each["figures"]]
    mean = next((name for name in MEANS if any(name in each for each in known)), "mean_probability")
    of_groups = GROUP_FIGURES | {mean: MEANS[mean]}
    is_calibrated = any("calibration_error" in each for each in known)
    return ReadmissionPictures(
        _curves(drawn) if drawn else [],
        [_group(each, of_groups) for each in slices],
        [_group(each, CALIBRATION_FIGURES) for each in slices if each["figures"]] if is_calibrated else [],
        list(of_groups.values()),
        list(CALIBRATION_FIGURES.values()),
        _confusion(read_json(folder / CONFUSION)),
        _alarms(drawn["alarms"]) if drawn and "alarms" in drawn else "",
    )


def _alarms(found: Mapping[str, Any]) -> str:
    """The alarm threshold and the counts behind it."""
    asked = f"a precision of {found['precision']:g} with 95 % confidence, on at least {found['minimum']:,} alarms"
    if found["threshold"] is None:
        return f"Alarms: no threshold reaches {asked}, on the validation split."
    return (
        f"Alarms: from P = {shown(found['threshold'])} on. On the validation split {found['right']:,} of "
        f"{found['alarms']:,} alarms were right. Asked for was {asked}."
    )


def _confusion(found: Mapping[str, Any] | None) -> list[list[str]]:
    """The table with its header; nothing where there is none."""
    if found is None:
        return []
    labels = [in_words(label) for label in found["labels"]]
    rows = [[f"{count:,}" for count in row] if row else ["–"] * len(labels) for row in found["rows"]]
    return [["", *labels], *([label, *row] for label, row in zip(labels, rows, strict=True))]


def flow_table(folder: Path) -> list[list[str]] | None:
    """The rows of the stage's flow table (CONSORT), header first, counts with their thousands apart."""
    file = folder / FLOW
    if not file.is_file():
        return None
    with file.open(encoding="utf-8", newline="") as lines:
        return [[f"{int(cell):,}" if cell.isdecimal() else cell for cell in row] for row in csv.reader(lines)]


def _curves(found: Mapping[str, Any]) -> list[Curve]:
    prevalence, outcome = found["prevalence"], found.get("outcome", "readmitted")
    named = in_words(outcome)
    level, slope = (prevalence, prevalence), (0.0, 1.0)
    title = {name: found["calibration"][name] for name in CALIBRATIONS if name in found["calibration"]}
    calibration = {name: [*map(_with_interval, points)] for name, points in title.items()}
    return [
        Curve("ROC", _drawn(found["roc"], "false positive rate", "recall", slope)),
        Curve("Precision and recall", _drawn(found["precision_recall"], "recall", "precision", level)),
        Curve("Calibration", _drawn(calibration, "probability", f"share {named}", slope, square=False)),
        *_reading(found, {outcome: named, "others": f"not {named}"}),
    ]


def _with_interval(point: Sequence[Any]) -> list[Any]:
    """Mean probability and share, and the interval of the share where there is one."""
    mean, share, _, *interval = point
    return [mean, share] if None in interval else [mean, share, *interval]


def _reading(found: Mapping[str, Any], groups: Mapping[str, str]) -> Iterator[Curve]:
    """What becomes of the score as more is read, where there are admissions with several chunks."""
    if not found["while_reading"]:
        return

    def line(name: str) -> list[tuple[float, float]]:
        return [(each["share"], each[name]) for each in found["while_reading"] if each[name] is not None]

    of_whom = f" ({count:,} admissions of several chunks)" if (count := found.get("read_in_parts")) else ""
    read = "share of the chunks read"
    yield Curve(f"AUROC as more of the note is read{of_whom}", _drawn({"": line("auroc")}, read, "AUROC"))
    means = {title: line(name) for name, title in groups.items()}
    yield Curve(f"P as more of the note is read{of_whom}", _drawn(means, read, "mean P"))


def _drawn(
    lines: Lines, across: str, up: str, reference: tuple[float, float] | None = None, square: bool = True
) -> str:
    """Lines with names, and bars where points have low and high.

    reference: what chance, or perfect calibration, gives at 0 and at 1.
    """
    limits = (-0.02, 1.02) if reference and square else None
    return picture(lambda axes: _plot(axes, lines, (across, up), reference, limits))


def _plot(
    axes: "Axes",
    lines: Lines,
    labels: tuple[str, str],
    reference: tuple[float, float] | None,
    limits: tuple[float, float] | None,
) -> None:
    most = max((value for points in lines.values() for point in points for value in point[:2]), default=1.0)
    if reference:
        end = 1.0 if limits else most  # of a slope through all that is drawn
        first, last = reference
        axes.plot([0, end], [first, first + (last - first) * end], color=INK, alpha=0.35, linewidth=0.8)
    names = {**declared("domain:outcomes")[0].labels["model"], "model": "model", "tfidf": "TF-IDF"}
    for place, (name, points) in enumerate(lines.items()):
        reader = name if name in ORDER else name.removesuffix(CALIBRATED)
        number = ORDER.index(reader) if reader in ORDER else place
        colour, dashes = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        marker = "o" if len(points) <= POINTS_WITH_MARKS else ""
        xs, ys = [point[0] for point in points], [point[1] for point in points]
        title = name.replace(reader, names.get(reader, reader), 1) or None
        axes.plot(xs, ys, color=colour, linestyle=dashes, marker=marker, markersize=3, linewidth=1.4, label=title)
        for x, _, low, high in (point for point in points if len(point) == 4):
            axes.vlines(x, low, high, color=colour, linewidth=1.2)
    plain(axes)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    if limits:
        axes.set_xlim(*limits)
        axes.set_ylim(*limits)
    if any(lines):
        axes.legend(frameon=False, fontsize=7)


def _group(each: Mapping[str, Any], names: Iterable[str]) -> Group:
    if each["suppressed"]:
        return each["characteristic"], f"{each['suppressed']} small groups, not shown", "", []
    figures = each["figures"]
    found = [Figure(figures.get(name), figures.get(f"{name}_low"), figures.get(f"{name}_high")) for name in names]
    return each["characteristic"], each["group"], f"{each['admissions']:,}", found
