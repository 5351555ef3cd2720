"""`report.html`: a run on one page that needs no network and no scripts: its answer, then the details, folded."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bertrelay.files import write_text
from bertrelay.report import Block, Dots, Html, Lines, Matrix, Picture, Section, Table, Text
from pipelines.report.answer import KeyResult, key_results, sentences, shown_value, trained_models
from pipelines.report.charts import Drawing, draw, training_curves
from pipelines.report.metrics import Cell, Family
from pipelines.report.results import FinishedStage, RunResults, read_results
from pipelines.report.tables import MEAN, Listing, MetricValue, ScoreTable, cell_of, score_tables, signs
from pipelines.report.verdicts import StageResult, verdicts
from pipelines.run.store import REPORT

LOG, LOSS = "metrics.jsonl", "Loss"
"""The log of any training, and the title of its first curve."""
TRAINING = "Training"


@dataclass(frozen=True)
class Detail:
    """A folded part of the page. parts: tables of metrics, and the blocks of stages by label."""

    title: str
    about: str
    tables: Sequence[ScoreTable]
    stages: Sequence[tuple[str, Sequence[str | Listing | Drawing | Sequence[Drawing]]]]


def write_report(run_folder: Path) -> None:
    """Writes `report.html` of the run whose results are in `run_folder`. Raises RequestError for any other folder."""
    write_text(run_folder / REPORT, run_page(read_results(run_folder)))


def run_page(run: RunResults) -> str:
    """The page of a run."""
    results = key_results(run)
    models = trained_models(run, results)
    shown = dict.fromkeys(result.stage.name for result in results)
    judged = [StageResult(name, run.kinds[name], run.metrics[name]) for name in shown]
    curves = {stage.label: training_curves(stage.folder / LOG) for stage in run.stages}
    losses = [
        Drawing(f"Loss of {model.label}", draw(curve, model.folder).svg)
        for model in models
        for curve in curves[model.label]
        if curve.title == LOSS
    ]
    pictures = [draw(result.chart, result.stage.folder) for result in results if result.chart]
    first = {model.label for model in models}
    tables = _without_rows(score_tables(run.metrics, run.kinds), run, results)
    details = list(_details(run, tables, curves, first))
    versions: dict[str, dict[str, None]] = {}  # of a library more than one where stages ran with different ones
    for stage in run.stages:
        for library, version in stage.done.libraries.items():
            versions.setdefault(library, {})[version] = None
    values = {
        "recipe": run.name,
        "sentences": sentences(models),
        "verdicts": [(label, verdict) for label, verdict in verdicts(judged) if verdict.comparison],
        "results": results,
        "pictures": [*pictures, *losses[:1]],
        "stages": run.stages,
        "seconds": sum(stage.done.seconds for stage in run.stages),
        "finished": max(stage.done.finished for stage in run.stages),
        "details": details,
        "signs": signs(tables),
        "withheld": ", ".join(sorted(run.withheld)),
        "styles": styles(run.stages),
        "libraries": versions,
    }
    return render("report.html.jinja", values)


def render(template: str, values: Mapping[str, Any]) -> str:
    """A page of one of the templates beside this module."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pipelines.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": duration, "day": day, "value": shown_value}
    return environment.get_template(template).render(values)


def _without_rows(tables: Sequence[ScoreTable], run: RunResults, results: Sequence[KeyResult]) -> list[ScoreTable]:
    """The tables without rows all of whose metrics stand on the first screen, and without those that have no other.

    Of the row of means only the means that stand on the first screen are left out.
    """
    first = [cell_of(stage, name, run.kinds[stage]) for result in results for stage, name in result.metrics]
    for table in tables:
        means = table.rows.get(MEAN, {})
        for column, mean in list(means.items()):
            if any(mean.is_close(value) for result in results for value in _means(result, table.family)):
                del means[column]
        for row, values in list(table.rows.items()):
            if all(Cell(table.family, table.caption, row, *column) in first for column in values):
                del table.rows[row]
    return [table for table in tables if table.rows]


def _means(result: KeyResult, family: Family) -> list[MetricValue]:
    """The means of metrics of a family that a result shows, its own and those beside it."""
    names = result.headline.metrics
    if len(names) < 2 or cell_of(result.stage.name, names[0], result.stage.kind).family != family:
        return []
    return [shown_value(measure) for measure in (result.measure, *result.beside)]


def _details(
    run: RunResults, tables: Sequence[ScoreTable], curves: dict[str, list[Lines]], first: set[str]
) -> Iterator[Detail]:
    """The families of metrics, the sections of stages, and the curves of trainings.

    first: labels of the stages whose loss is on the first screen.
    """
    families: dict[str, list[ScoreTable]] = {}
    for table in tables:
        families.setdefault(table.family.title, []).append(table)
    sections: dict[str, list[tuple[FinishedStage, Section]]] = {}
    for stage in run.stages:
        for section in stage.report.sections:
            sections.setdefault(section.title, []).append((stage, section))
    for title in dict.fromkeys([*families, *sections]):
        of_family, of_stages = families.get(title, []), sections.get(title, [])
        abouts = dict.fromkeys([*(table.about for table in of_family), *(section.about for _, section in of_stages)])
        blocks = [(stage.label, _parts(section.blocks, stage.folder)) for stage, section in of_stages]
        yield Detail(title, " ".join(filter(None, abouts)), of_family, blocks)
    drawn = [
        (stage.label, [[draw(curve, stage.folder) for curve in curves[stage.label] if _is_detail(curve, stage, first)]])
        for stage in run.stages
    ]
    if trainings := [(label, parts) for label, parts in drawn if parts[0]]:
        yield Detail(TRAINING, "", [], trainings)


def _is_detail(curve: Lines, stage: FinishedStage, first: set[str]) -> bool:
    return curve.title != LOSS or stage.label not in first


def _parts(blocks: Sequence[Block], folder: Path) -> list[Any]:
    """The blocks as the template shows them: HTML, tables, and drawings, charts in a row side by side."""
    parts: list[Any] = []
    for block in blocks:
        match block:
            case Text():
                parts.append(block.text)
            case Table():
                parts.append(block)
            case Html():
                parts.append(block)
            case Lines() | Dots():
                if not parts or not isinstance(parts[-1], list):
                    parts.append([])
                parts[-1].append(draw(block, folder))
            case Matrix() | Picture():
                parts.append(draw(block, folder))
    return parts


def styles(stages: Sequence[FinishedStage]) -> list[str]:
    """The style sheets of marked text, one of each."""
    blocks = (block for stage in stages for section in stage.report.sections for block in section.blocks)
    return list(dict.fromkeys(block.style for block in blocks if isinstance(block, Html) and block.style))


def duration(seconds: float) -> str:
    """`0.4 s`, `42 s`, `3 min 5 s`, `2 h 10 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def day(time: str) -> str:
    """`21 November 2025, 07:41 UTC`, of a time as `done.json` has it."""
    moment = datetime.fromisoformat(time).astimezone(UTC)
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"
