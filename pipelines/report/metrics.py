"""How metrics are declared: `metrics.toml` of each package, by which a report groups, names and compares them.

A table of the file is a family. Its `metrics` are a list of `Metric`s, in whose patterns `{group}` is a named group of
the texts that the labels have for it. `labels` outside of a family are those of all families of the file, and `include`
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

    when: a regular expression of a whole fact, which has to be there: the name of a metric of a stage with metrics of
        the family, `uses KIND` of such a stage, or `published` where published metrics stand beside its own.
    """

    when: str
    text: str


@dataclass(frozen=True)
class Family:
    """Metrics that a report shows together.

    about: what they measure, whatever the run. notes: what is true of some runs. place: the order of families.
    in_terminal: whether `bertrelay run` prints them, with_intervals with their intervals; of all rows, or
        `terminal_rows`. with_means: whether a row of means is added. is_summary: whether it shows metrics of other
        families once more.
    published: caption to {(row, model): value}, shown for comparison.
    """

    title: str
    about: str = ""
    notes: Sequence[Note] = field(default=(), compare=False)
    place: int = 50
    in_terminal: bool = False
    terminal_rows: Sequence[str] = ()
    with_intervals: bool = False
    with_means: bool = False
    is_summary: bool = False
    published: Mapping[str, Mapping[tuple[str, str], float]] = field(default_factory=dict, compare=False)

    def about_run(self, facts: Collection[str]) -> str:
        """What is true of a run with these facts."""
        notes = (note.text for note in self.notes if any(re.fullmatch(note.when, fact) for fact in facts))
        return " ".join(filter(None, [self.about, *notes]))


class Cell(NamedTuple):
    """Where a report shows a metric. A caption is that of a table; columns are in groups."""

    family: Family
    caption: str
    row: str
    group: str
    column: str


class OnHub(NamedTuple):
    """What a model card on Hugging Face's hub calls a metric: type of task, data set, type of metric."""

    task: str
    dataset: str
    metric: str


@dataclass(frozen=True)
class Metric:
    """Metrics whose name matches a pattern, and the cell they go to.

    pattern: a regular expression of the whole name, with named groups, which caption, row, group and column may use
        as `{group}`, and `{stage}` too. labels: group to {text: what is shown for it}. better: which of two is better;
        columns in which the lower is have an arrow. hub: task, dataset and metric of `OnHub`, which may use the groups
        as they are in the name; without it a model card's metadata leaves the metric out.
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

    def on_hub(self, name: str) -> OnHub | None:
        """What the metric `name` is on the hub; None where it is not one of these, or not for the hub."""
        match = re.fullmatch(self.pattern, name)
        if match is None or not self.hub:
            return None
        texts = {group: text.replace("/", " ") for group, text in match.groupdict(default="").items()}
        return OnHub(**{key: text.format(**texts).strip() for key, text in self.hub.items()})

    def cell(self, stage: str, name: str) -> Cell | None:
        """The cell of the metric `name` of a stage; None where it is not one of these."""
        match = re.fullmatch(self.pattern, name)
        if match is None:
            return None
        texts = {
            group: self.labels.get(group, {}).get(text, text.replace("/", " / "))
            for group, text in match.groupdict(default="").items()
        }
        filled = (each.format(stage=stage, **texts) for each in (self.caption, self.row, self.group, self.column))
        caption, row, group, column = filled
        arrow = " ↓" if self.better == "lower" else ""
        return Cell(self.family, caption.removesuffix(" · "), row, group, column + arrow)


@cache
def declared(source: str) -> tuple[Metric, ...]:
    """The metrics of a package, or of one of its families, `package:family`."""
    package, _, only = source.partition(":")
    content = tomllib.loads((files(package) / "metrics.toml").read_text("utf-8"))
    shared, include = content.pop("labels", {}), content.pop("include", None)
    own = [metric for name, fields in content.items() if only in ("", name) for metric in _of_family(fields, shared)]
    return (*own, *(declared(include) if include and not only else ()))


def _of_family(declaration: dict[str, Any], shared: Mapping[str, Mapping[str, str]]) -> list[Metric]:
    own = {"labels": {}, "published": {}, **declaration}
    metrics, labels = own.pop("metrics"), {**shared, **own.pop("labels")}
    published = {
        caption: {(row, model): value for row, values in rows.items() for model, value in values.items()}
        for caption, rows in own.pop("published").items()
    }
    notes = [Note(**note) for note in own.pop("notes", ())]
    family = Family(**own, published=published, notes=notes)

    def named_group(group: re.Match[str]) -> str:
        return f"(?P<{group[1]}>{'|'.join(map(re.escape, labels[group[1]]))})"

    for fields in metrics:
        fields["pattern"] = re.sub(r"{(\w+)}", named_group, fields["pattern"])
    return [Metric(family=family, labels=labels, **fields) for fields in metrics]
