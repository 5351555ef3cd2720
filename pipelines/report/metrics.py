"""Declarations of metrics, `metrics.toml` of each package: a report groups, names and compares metrics by them.

A table of the file is a family. Its `metrics` are a list of `Metric`s; `{group}` in a pattern becomes a named group
that matches the keys of `labels.group`. `labels` outside of a family apply to all families of the file, and `include`
names a package whose metrics follow. `published` has caption, row and model, and `notes` are a list of `Note`s.
"""

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple

Better = Literal["higher", "lower"]
NO_LABELS: Mapping[str, Mapping[str, str]] = {}


class Note(NamedTuple):
    """A sentence about a family that is true only of some runs.

    when: a regular expression that must match a whole fact of the run: the name of a metric of a stage with metrics of
        the family, `uses KIND` of such a stage, or `published` where published metrics stand beside its own.
    """

    when: str
    text: str


@dataclass(frozen=True)
class Family:
    """Metrics that a report shows together.

    about: a description that is true of every run. notes: sentences that are true of some. order: sorts families.
    in_terminal: `bertrelay run` prints them, with `with_intervals` their intervals too; all rows, or `terminal_rows`.
    with_means: a row of means is added.
    published: caption → {(row, model): value}, shown for comparison.
    """

    title: str
    about: str = ""
    notes: Sequence[Note] = field(default=(), compare=False)
    order: int = 50
    in_terminal: bool = False
    terminal_rows: Sequence[str] = ()
    with_intervals: bool = False
    with_means: bool = False
    published: Mapping[str, Mapping[tuple[str, str], float]] = field(default_factory=dict, compare=False)

    def describe_run(self, facts: Collection[str]) -> str:
        """Description of the family that is true of a run with these facts."""
        notes = (note.text for note in self.notes if any(re.fullmatch(note.when, fact) for fact in facts))
        return " ".join(filter(None, [self.about, *notes]))


class Cell(NamedTuple):
    """Cell of a report in which a metric stands: its table by caption, row, and column in a group of columns."""

    family: Family
    caption: str
    row: str
    group: str
    column: str


class HubNames(NamedTuple):
    """Names of a metric in a model card on Hugging Face's hub: type of task, data set, type of metric."""

    task: str
    dataset: str
    metric: str


@dataclass(frozen=True)
class Metric:
    """Metrics whose name matches a pattern, and the cell they go to.

    pattern: a regular expression of the whole name with named groups. Caption, row, group and column may use them as
        `{group}`, and `{stage}` too: `sts/(?P<set>.+)/spearman_cosine` with the row `{set}`.
    labels: group → {text: its label in the report}. better: the better direction; if lower, the column has an arrow.
    hub: task, dataset and metric of `HubNames`, which may use the groups as they are in the name; without it a model
        card's metadata leaves the metric out.
    """

    pattern: str
    family: Family
    row: str
    column: str = ""
    group: str = "{stage}"
    caption: str = ""
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: NO_LABELS, compare=False)
    better: Better | None = "higher"
    hub: Mapping[str, str] = field(default_factory=dict, compare=False)

    def hub_names(self, name: str) -> HubNames | None:
        """The names of the metric `name` on the hub; None if the pattern does not match it or it is not for the hub."""
        match = re.fullmatch(self.pattern, name)
        if match is None or not self.hub:
            return None
        texts = {group: text.replace("/", " ") for group, text in match.groupdict(default="").items()}
        return HubNames(**{key: text.format(**texts).strip() for key, text in self.hub.items()})

    def cell(self, stage: str, name: str) -> Cell | None:
        """The cell of the metric `name` of a stage; None if the pattern does not match it."""
        match = re.fullmatch(self.pattern, name)
        if match is None:
            return None
        texts = {
            group: self.labels.get(group, {}).get(text, text.replace("/", " / "))
            for group, text in match.groupdict(default="").items()
        }
        templates = (self.caption, self.row, self.group, self.column)
        caption, row, group, column = (template.format(stage=stage, **texts) for template in templates)
        arrow = " ↓" if self.better == "lower" else ""
        return Cell(self.family, caption.removesuffix(" · "), row, group, column + arrow)


@cache
def read_declarations(source: str) -> tuple[Metric, ...]:
    """The metrics of a package, or of one of its families, `package:family`."""
    package, _, only = source.partition(":")
    content = tomllib.loads((files(package) / "metrics.toml").read_text("utf-8"))
    shared, include = content.pop("labels", {}), content.pop("include", None)
    families = [fields for name, fields in content.items() if only in ("", name)]
    metrics = [metric for fields in families for metric in _family_metrics(fields, shared)]
    return (*metrics, *(read_declarations(include) if include and not only else ()))


def _family_metrics(declaration: dict[str, Any], shared: Mapping[str, Mapping[str, str]]) -> list[Metric]:
    fields = {"labels": {}, "published": {}, **declaration}
    metrics, labels = fields.pop("metrics"), {**shared, **fields.pop("labels")}
    published = {
        caption: {(row, model): value for row, values in rows.items() for model, value in values.items()}
        for caption, rows in fields.pop("published").items()
    }
    notes = [Note(**note) for note in fields.pop("notes", ())]
    family = Family(**fields, published=published, notes=notes)

    def named_group(group: re.Match[str]) -> str:
        return f"(?P<{group[1]}>{'|'.join(map(re.escape, labels[group[1]]))})"

    for metric in metrics:
        metric["pattern"] = re.sub(r"{(\w+)}", named_group, metric["pattern"])
    return [Metric(family=family, labels=labels, **metric) for metric in metrics]
