"""A page that sets runs side by side: the metrics of their first screens, then all tables with a group for each run."""

from collections.abc import Sequence
from pathlib import Path

from bertrelay.errors import RequestError
from bertrelay.files import check_output, write_text
from bertrelay.report import Dots, Measure, Table
from pipelines.report.answer import KeyResult, key_results, sentences, trained_models
from pipelines.report.charts import Drawing, draw
from pipelines.report.page import render, styles
from pipelines.report.results import RunResults, read_results
from pipelines.report.tables import ScoreTable, score_tables, signs


def write_comparison(run_folders: Sequence[Path], output: Path, *, overwrite: bool = False) -> None:
    """Writes a page that compares two runs or more.

    overwrite: replace an existing file, which is an error otherwise.
    Raises RequestError for a folder that is no run's, for fewer than two runs, and for an output that exists.
    """
    if len(run_folders) < 2:
        raise RequestError(f"--compare: expected the folders of at least two runs, found {len(run_folders)}")
    check_output(output, (".html",), option="--output", overwrite=overwrite)
    write_text(output, comparison_page([read_results(folder) for folder in run_folders]))


def comparison_page(runs: Sequence[RunResults]) -> str:
    """The page of several runs, named by their folders."""
    labels = _labels([run.folder for run in runs])
    results = {label: key_results(run) for label, run in zip(labels, runs, strict=True)}
    models = [trained_models(run, results[label]) for label, run in zip(labels, runs, strict=True)]
    tables = _side_by_side(dict(zip(labels, runs, strict=True)))
    values = {
        "recipe": " and ".join(labels) if len(labels) == 2 else f"{len(labels)} runs",
        "summaries": list(zip(labels, map(sentences, models), strict=True)),
        "results": _key_table(results),
        "pictures": list(_pictures(results)),
        "tables": tables,
        "signs": signs(tables),
        "styles": styles([]),
    }
    return render("comparison.html.jinja", values)


def _labels(folders: Sequence[Path]) -> list[str]:
    """The names of folders, with as many folders above them as make them distinct."""
    paths = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, paths)) + 1):
        labels = ["/".join(parts[-depth:]) for parts in paths]
        if len(set(labels)) == len(labels):
            return labels
    raise RequestError(f"--compare: expected different runs, found {folders[0]} more than once")


def _by_metric(results: dict[str, list[KeyResult]]) -> dict[tuple[str, str], dict[str, KeyResult]]:
    """The results by stage and title, and then by run."""
    by_metric: dict[tuple[str, str], dict[str, KeyResult]] = {}
    for label, of_run in results.items():
        for result in of_run:
            by_metric.setdefault((result.stage.name, result.headline.title), {})[label] = result
    return by_metric


def _key_table(results: dict[str, list[KeyResult]]) -> Table:
    rows: list[list[str | Measure]] = []
    for (stage, title), by_run in _by_metric(results).items():
        measures = [by_run[label].measure if label in by_run else Measure(value=None) for label in results]
        rows.append([f"{title}, {stage}", *measures])
    return Table(columns=["Metric", *results], rows=rows)


def _pictures(results: dict[str, list[KeyResult]]) -> list[Drawing]:
    """The dot plots of metrics that several runs have, with a colour for each run."""
    drawings = []
    for by_run in _by_metric(results).values():
        charts = {label: result.chart for label, result in by_run.items() if isinstance(result.chart, Dots)}
        if len(charts) > 1:
            first = next(iter(charts.values()))
            rows: dict[str, list[Measure]] = {}
            for label, chart in charts.items():
                for row, measures in chart.rows.items():
                    rows.setdefault(row, []).append(measures[0].model_copy(update={"label": label}))
            drawings.append(draw(first.model_copy(update={"rows": rows}), Path()))
    return drawings


def _side_by_side(runs: dict[str, RunResults]) -> list[ScoreTable]:
    """The tables of all runs; columns of one table of several runs stand in groups that begin with the run's name."""
    merged: dict[tuple[str, str], ScoreTable] = {}
    for label, run in runs.items():
        for table in score_tables(run.metrics, run.kinds):
            joined = merged.setdefault(
                (table.family.title, table.caption), ScoreTable(table.family, table.caption, table.facts)
            )
            for row, values in table.rows.items():
                for (group, column), value in values.items():
                    name = group if group == "published" else " · ".join(filter(None, [label, group]))
                    joined.put(row, (name, column), value)
    return sorted(merged.values(), key=lambda table: table.family.order)
