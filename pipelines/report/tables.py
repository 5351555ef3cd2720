"""Metrics as tables, in the cells that the stages' packages declare: for the report and for the terminal."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bertrelay.stage import Metrics
from pipelines.registry import REGISTRY
from pipelines.report.metrics import Cell, Family, read_declarations

DEV = Family("Dev data", "On the data that a training is evaluated on.", order=90)
VALIDATION = Family("Validation data", "On the admissions that choose the weights of a clinical model.", order=90)
OTHER = Family("Other metrics", order=91)
TRAINING = {"dev": DEV, "validation": VALIDATION}
"""Families of the metrics of a training, by the first part of their names."""
METRICS_SHOWN = 4
COUNT = "n"
MEAN = "mean"
"""The row of means; a column without one is blank there."""
ENDINGS = ("_low", "_high", "_deviation")


@dataclass(frozen=True)
class MetricValue:
    """A metric with its 95 % interval, or its standard deviation over seeds."""

    value: float | None
    low: float | None = None
    high: float | None = None
    deviation: float | None = None

    def __str__(self) -> str:
        if self.deviation is not None:
            return " ± ".join(alike([self.value, self.deviation], 4))
        if self.low is not None and self.high is not None:
            return alike([self.value, self.low, self.high])[0]
        # A whole number beyond 1 and without an interval is a count, as no score is.
        is_count = self.value is not None and self.low is None and abs(self.value) > 1 and self.value % 1 == 0
        return shown(int(self.value or 0) if is_count else self.value)

    @property
    def interval(self) -> str:
        """`0.91 – 0.93`, or nothing; the deviation over seeds says more than one seed's interval."""
        if self.low is None or self.high is None or self.deviation is not None:
            return ""
        return " – ".join(alike([self.value, self.low, self.high])[1:])

    def is_close(self, other: "MetricValue") -> bool:
        """True where both were measured, and their values are the same but for rounding."""
        return self.value is not None and other.value is not None and math.isclose(self.value, other.value)

    @classmethod
    def of(cls, metrics: Mapping[str, Any], name: str) -> "MetricValue":
        """The metric `name` with its `_low`, `_high` and `_deviation`."""
        return cls(metrics.get(name), *(metrics.get(name + ending) for ending in ENDINGS))


@dataclass(frozen=True)
class Listing:
    """A table under a caption. texts: how many of its first columns are text and no numbers."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence["str | MetricValue"]]
    texts: int = 1


MISSING = MetricValue(None)
Column = tuple[str, str]
"""The group of a column and the column itself; either may be empty."""


@dataclass
class ScoreTable:
    """MetricValues by row and column. What was not measured is in none of them.

    facts: of all tables of the family, as `Note` has them.
    """

    family: Family
    caption: str
    facts: set[str] = field(default_factory=set)
    columns: list[Column] = field(default_factory=list)
    rows: dict[str, dict[Column, MetricValue]] = field(default_factory=dict)

    def put(self, row: str, column: Column, value: MetricValue) -> None:
        """Sets a value, behind the columns of its own group."""
        if column not in self.columns:
            order = list(dict.fromkeys(group for group, _ in [*self.columns, column]))
            self.columns = sorted([*self.columns, column], key=lambda each: order.index(each[0]))
        self.rows.setdefault(row, {})[column] = value

    @property
    def about(self) -> str:
        """Description of the family that is true of this run."""
        return self.family.describe_run(self.facts)

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The groups of columns, and how many columns each has."""
        names = [group for group, _ in self.columns]
        return [(name, names.count(name)) for name in dict.fromkeys(names)]

    def cells(self, row: str) -> list[MetricValue]:
        """The row's values, one for each column."""
        return [self.rows[row].get(column, MISSING) for column in self.columns]

    def add_means(self) -> None:
        """Adds a row of the means of columns in which no row is without a value; counts have no mean."""
        rows = list(self.rows.values())
        for column in (column for column in self.columns if column[1] != COUNT):
            values = [row[column].value for row in rows if column in row]
            numbers = [value for value in values if value is not None]
            if len(numbers) == len(rows):
                self.put(MEAN, column, MetricValue(sum(numbers) / len(numbers)))


def score_tables(stages: Mapping[str, Metrics], kinds: Mapping[str, str] = {}) -> list[ScoreTable]:
    """The metrics of `stages` (name to metrics) as tables, families in their order, published metrics beside ours.

    kinds: stage to kind, which declares the metrics.
    """
    tables: dict[tuple[str, str], ScoreTable] = {}
    facts: dict[str, set[str]] = {}
    for stage, metrics in stages.items():
        for name, value in metric_values(metrics).items():
            family, caption, row, group, column = cell_of(stage, name, kinds.get(stage))
            of_family = facts.setdefault(family.title, set())
            of_family.update(metrics, [f"uses {kinds.get(stage)}"])
            table = tables.setdefault((family.title, caption), ScoreTable(family, caption, of_family))
            table.put(row, (group, column), value)
    for table in tables.values():
        for (row, column), published in table.family.published.get(table.caption, {}).items():
            if row in table.rows:
                table.put(row, ("published", column), MetricValue(published))
                table.facts.add("published")
        if table.family.with_means and len(table.rows) > 1:
            table.add_means()
    return sorted(tables.values(), key=lambda table: table.family.order)


def cell_of(stage: str, name: str, kind: str | None = None) -> Cell:
    """The cell of a metric, as the stage of that kind declares it, or any stage where that one declares none."""
    declared = dict.fromkeys(stage.metrics for stage in REGISTRY if stage.metrics)
    by_kind = [stage.metrics for stage in REGISTRY if stage.metrics and stage.kind == kind]
    metrics = (metric for source in by_kind or declared for metric in read_declarations(source))
    cell = next((cell for metric in metrics if (cell := metric.cell(stage, name))), None)
    if cell is not None:
        return cell
    data, _, metric = name.partition("/")
    return (
        Cell(TRAINING[data], "", metric, stage, "") if metric and data in TRAINING else Cell(OTHER, "", name, stage, "")
    )


def signs(tables: Sequence[ScoreTable]) -> str:
    """Explains the signs that the tables have."""
    values = [value for table in tables for row in table.rows if row != MEAN for value in table.cells(row)]
    meanings = {
        "small numbers are 95 % bootstrap intervals": any(value.interval for value in values),
        "± is the standard deviation over seeds": any(value.deviation is not None for value in values),
        "– was not measured": any(value.value is None for value in values),
    }
    text = "; ".join(meaning for meaning, is_there in meanings.items() if is_there)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def metric_values(metrics: Metrics) -> dict[str, MetricValue]:
    """Each metric with its `_low`, `_high` and `_deviation`."""
    return {name: MetricValue.of(metrics, name) for name in metrics if not _is_addition(name, metrics)}


def _is_addition(name: str, metrics: Metrics) -> bool:
    """True if `name` belongs to another metric: `f1_low` to `f1`, and so does `f1_low_deviation`."""
    base = next((name.removesuffix(ending) for ending in ENDINGS if name.endswith(ending)), "")
    return base in metrics or (base != "" and _is_addition(base, metrics))


def alike(values: Sequence[float | None], decimals: int = 3) -> list[str]:
    """Numbers that belong together, such as a value and its interval: tiny ones have no more decimals than the rest."""
    if any(value is not None and abs(value) >= 10**-decimals for value in values):
        values = [value if value is None else round(value, decimals) + 0.0 for value in values]  # no −0.000
    return [shown(value, decimals) for value in values]


def shown(value: float | None, decimals: int = 3) -> str:
    """A number for people, with `decimals` or so many digits where it is tiny; a dash for what was not measured."""
    if value is None:
        return "–"
    if isinstance(value, int) or abs(value) >= 1000:
        text = f"{value:,.0f}"
    elif 0 < abs(value) < 10**-decimals:
        text = f"{value:.{decimals}g}"
    else:
        text = f"{value:.{1 if abs(value) >= 100 else decimals}f}"
    return text.replace("-", "−")


def score_lines(stages: Mapping[str, Metrics], kinds: Mapping[str, str] = {}, intervals: bool = False) -> Iterator[str]:
    """The tables of the families that belong in a terminal; the report has the others.

    intervals: whether 95 % intervals are shown, also of families that leave them out.
    """
    tables = [table for table in score_tables(stages, kinds) if table.family.in_terminal]
    for table in tables:
        rows = [row for row in table.rows if row in (table.family.terminal_rows or table.rows)]
        if not rows:
            continue
        yield from ("", " · ".join(filter(None, [table.family.title, table.caption])))
        head = [["", *column] for column in zip(*table.columns, strict=True)]
        wide = intervals or table.family.with_intervals
        cells = (
            [f"{value} ({value.interval})" if wide and value.interval else str(value) for value in table.cells(row)]
            for row in rows
        )
        yield from _in_columns([*head, *([row, *line] for row, line in zip(rows, cells, strict=True))])
    if tables:
        yield ""


def _in_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True)]
        yield "  ".join([f"  {first:{widths[0]}}", *cells]).rstrip()


def main_metrics(metrics: Metrics) -> str:
    """The first few metrics; intervals are left out, and what was measured before the training."""
    values = {name: metric.value for name, metric in metric_values(metrics).items() if not name.startswith("before/")}
    measured = [(name, value) for name, value in values.items() if value is not None]
    words = []
    for name, value in measured[:METRICS_SHOWN]:  # counts as they are, all else to four digits
        words.append(f"{name} {value:,.0f}" if value == round(value) or value >= 10_000 else f"{name} {value:.4g}")
    more = len(measured) - len(words)
    return "  ".join([*words, f"and {more} more" if more > 0 else ""]).rstrip()
