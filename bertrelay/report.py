"""The report of a stage: `report.json` in its folder, from which the report of a run is drawn.

A stage names what it trained, its headlines, each beside what the metric has to beat, and sections of tables, charts
and marked text. The report of a run knows no stage: it shows what these files hold.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bertrelay.errors import RequestError, plural
from bertrelay.evaluation.verdict import listed
from bertrelay.files import write_text
from bertrelay.fingerprint import fingerprint
from bertrelay.settings import ModelSource
from bertrelay.stage import Metrics, StageContext

FILE = "report.json"
DIGITS = 12
LISTED = 6
"""Names that a sentence lists; of more it has the count alone."""
Point = tuple[float, ...]
"""(x, y), or (x, y, low, high) with the interval of y."""


class Part(BaseModel):
    """A part of `report.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Measure(Part):
    """A value with its 95 % interval, or its standard deviation over seeds, under a label.

    metric: its name, where the value is that of one metric.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    deviation: float | None = None
    label: str = ""
    metric: str = ""

    @classmethod
    def of(cls, metrics: Metrics, name: str, label: str = "") -> Self:
        """The metric `name` with its `_low` and `_high`."""
        low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
        return cls(value=metrics.get(name), low=low, high=high, label=label, metric=name)

    @classmethod
    def measured(cls, metrics: Metrics, labels: Mapping[str, str]) -> list[Self]:
        """The metrics that were measured, of those in `labels`: name to label."""
        return [cls.of(metrics, name, label) for name, label in labels.items() if metrics.get(name) is not None]

    @classmethod
    def mean_of(cls, metrics: Metrics, names: Sequence[str], label: str = "") -> Self:
        """The mean of several metrics, and of the ends of their intervals; without a value where one has none.

        However the metrics depend on one another, this interval is at least as wide as that of the mean.
        """
        measured = [cls.of(metrics, name) for name in names]
        means = {}
        for field in ("value", "low", "high"):
            values = [getattr(measure, field) for measure in measured]
            means[field] = None if None in values or not values else fmean(values)
        return cls(label=label, **means)


class Text(Part):
    """A paragraph."""

    kind: Literal["text"] = "text"
    text: str


class Table(Part):
    """A table. texts: the number of its first columns that are text and no numbers. quotes: it has text of the data."""

    kind: Literal["table"] = "table"
    columns: list[str]
    rows: list[list[str | Measure]]
    caption: str = ""
    texts: int = 1
    quotes: bool = False


class Lines(Part):
    """A chart of lines by name.

    styles: number of the colour and dashes of each line. reference: y of a grey line at x = 0 and at x = 1.
    limits: of both axes. bars: (x, count) of a histogram below, of bars of equal width.
    """

    kind: Literal["lines"] = "lines"
    title: str
    lines: dict[str, list[Point]]
    across: str
    up: str
    styles: list[int] | None = None
    reference: tuple[float, float] | None = None
    limits: tuple[float, float] | None = None
    bars: list[tuple[float, float]] = []


class Dots(Part):
    """A dot plot: the measures of each row, with their intervals, on one line; the first one is the model's."""

    kind: Literal["dots"] = "dots"
    title: str
    rows: dict[str, list[Measure]]
    across: str = ""


class Matrix(Part):
    """A heat map, which quotes text."""

    kind: Literal["matrix"] = "matrix"
    title: str
    rows: list[str]
    columns: list[str]
    values: list[list[float | None]]
    quotes: bool = True


class Picture(Part):
    """An SVG file of the stage, with an alternative in words. quotes: it shows text of the data."""

    kind: Literal["picture"] = "picture"
    file: str
    alt: str
    quotes: bool = True


class Html(Part):
    """Marked text as HTML, all of it escaped, with the style sheet of its marks."""

    kind: Literal["html"] = "html"
    html: str
    style: str = ""
    quotes: bool = True


Block = Annotated[Text | Table | Lines | Dots | Matrix | Picture | Html, Field(discriminator="kind")]


class Section(Part):
    """Blocks under a title, which stages may share. about: a sentence below the title."""

    title: str
    blocks: list[Block]
    about: str = ""


class Headline(Part):
    """A metric for the first screen.

    metrics: the names of the metrics of which `measure` is the mean; one where it is that metric.
    beside: measures that it has to beat. data: the data of the test, in words after "on".
    identity: of metric and test data. Stages with the same one are set beside one another; with none when empty.
    model: the setting that names the evaluated model; empty for the model that the stage itself has trained.
    is_dev: measured on data that a training was evaluated on, and shown where there is no test.
    """

    title: str
    measure: Measure
    metrics: list[str]
    data: str
    beside: list[Measure] = []
    better: Literal["higher", "lower", ""] = "higher"
    identity: str = ""
    model: str = ""
    is_dev: bool = False
    chart: Annotated[Lines | Dots, Field(discriminator="kind")] | None = None


class StageReport(Part):
    """The content of `report.json`. summary: at most two sentences: the model, its data, its purpose."""

    summary: list[str] = []
    headlines: list[Headline] = []
    sections: list[Section] = []


def write_report(report: StageReport, context: StageContext, *, with_text: bool = False) -> None:
    """Writes `report.json`: of sensitive data without the blocks that quote it, unless `with_text`."""
    if context.sensitive and not with_text:
        report = without_quotes(report)
    write_text(context.output / FILE, report.model_dump_json())


def read_report(folder: Path) -> StageReport | None:
    """The report of the stage in `folder`; None where it has written none.

    Raises RequestError for a file that is no report.
    """
    file = folder / FILE
    if not file.is_file():
        return None
    try:
        return StageReport.model_validate_json(file.read_bytes())
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise RequestError(
            f"{file}: expected the report of a stage, found in {field or 'it'}: {first['msg']}. Write it with "
            "bertrelay.report.write_report, or run the stage anew with --force"
        ) from None


def without_quotes(report: StageReport) -> StageReport:
    """The report without blocks that quote text of the data, and without sections that have no other."""
    sections = []
    for section in report.sections:
        blocks = [block for block in section.blocks if not getattr(block, "quotes", False)]
        if blocks:
            sections.append(section.model_copy(update={"blocks": blocks}))
    return report.model_copy(update={"sections": sections})


def identity(metric: str, data: object) -> str:
    """A name for a metric on test data, the same for the same data. Not for ids of patients, which it would reveal."""
    return f"{metric} {fingerprint({'data': data})[:DIGITS]}"


def model_name(model: object, other: str = "a new network") -> str:
    """A model of the settings, in words: a hub id, the name of a folder, `the model of the stage X`; else `other`."""
    if not isinstance(model, ModelSource):
        return other
    folder = model.folder
    if folder is None:
        return str(model.hub_id)
    named = folder.parent if folder.name == "model" else folder
    is_result = len(named.name) == DIGITS and not set(named.name) - set("0123456789abcdef")
    return f"the model of the stage {named.parent.name}" if is_result else named.name


def counted(names: Sequence[str], one: str, many: str) -> str:
    """`2 languages (de and ko)`; of more than LISTED names the count alone."""
    text = f"{len(names):,} {plural(len(names), one, many)}"
    return f"{text} ({listed(names)})" if 0 < len(names) <= LISTED else text


def dots(metrics: Metrics, names: Mapping[str, Sequence[tuple[str, str]]], title: str, across: str = "") -> Dots | None:
    """The dot plot of metrics: row to (metric, label) of each dot; None where nothing was measured."""
    rows = {row: Measure.measured(metrics, dict(labelled)) for row, labelled in names.items()}
    rows = {row: measures for row, measures in rows.items() if measures}
    return Dots(title=title, rows=rows, across=across) if rows else None
