"""What `run` and `plan` print: plain lines in columns, that one can read and search."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from bertrelay.stage import Metrics
from pipelines.plan import Action, Plan, PlannedStep, left_behind, short_path
from pipelines.published import with_published
from pipelines.runner import Outcome
from pipelines.scores import ABLATION, CLASSIFICATION, FACETS, SECTIONS, SIMILARITY, Figure, score_tables
from pipelines.summary import summary

METRICS_SHOWN = 4
FAMILIES_SHOWN = (
    "Translation accuracy",
    SIMILARITY,
    CLASSIFICATION,
    FACETS,
    SECTIONS,
    ABLATION,
    "Masked words and next sentences",
)
NOT_MAIN = ("_low", "_high", "_deviation")
BEFORE = "before/"


def plan_lines(plan: Plan) -> Iterator[str]:
    """Each step with its action, its reasons one below the other; then what other settings have left behind."""
    labels = _width(planned.step.label for planned in plan.steps)
    for planned in plan.steps:
        first, *rest = planned.reasons or ("",)
        yield f"{planned.action.value:6}  {planned.step.label:{labels}}  {first}".rstrip()
        yield from (f"{'':6}  {'':{labels}}  {reason}" for reason in rest)
    found = left_behind(plan)
    if found:
        yield "begun with other settings and not finished (those would go on with it; delete what you give up):"
        yield from (f"{size / 1e6:>8,.1f} MB  {short_path(folder)}" for folder, size in found.items())


def outcome_lines(outcome: Outcome, report: Path) -> Iterator[str]:
    """The table of a run, and where its models and its report are."""
    steps = outcome.plan.steps
    labels = _width(planned.step.label for planned in steps)
    for planned in steps:
        key = planned.step.key
        seconds = "" if planned.action == Action.SKIP else f"{outcome.seconds[key]:.1f} s"
        figures = main_metrics(outcome.metrics.get(key, {}))
        yield f"{planned.action.value:6}  {planned.step.label:{labels}}  {seconds:>9}  {figures}".rstrip()
    yield from score_lines(summary(outcome.plan.recipe, outcome.plan.run_folder))
    models = [model for planned in steps if (model := _model(planned)).is_dir()]
    yield from (f"model   {short_path(model)}" for model in models)
    if report.exists():
        yield f"report  {short_path(report)}"


def score_lines(stages: Mapping[str, Metrics], intervals: bool = False) -> Iterator[str]:
    """The tables of what the models are judged by; similarity by its main measure, the report has the others.

    intervals: whether 95 % intervals are shown; those of ablations always are.
    """
    known = [table for table in with_published(score_tables(stages)) if table.family in FAMILIES_SHOWN]
    tables = [table for table in known if table.family != SIMILARITY or not table.caption]
    for table in tables:
        yield from ("", " · ".join(filter(None, [table.family, table.caption])))
        head = [["", *column] for column in zip(*table.columns, strict=True)]
        wide = intervals or table.family == ABLATION
        yield from _in_columns(
            [*head, *([row, *(_cell(each, wide) for each in table.cells(row))] for row in table.rows)]
        )
    if tables:
        yield ""


def _cell(figure: Figure, interval: bool) -> str:
    return f"{figure} ({figure.interval})" if interval and figure.interval else str(figure)


def _in_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [_width(column) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True)]
        yield "  ".join([f"  {first:{widths[0]}}", *cells]).rstrip()


def main_metrics(metrics: Metrics) -> str:
    """The first few figures; intervals are left out, and what was measured before the training."""
    main = [name for name in metrics if not name.endswith(NOT_MAIN) and not name.startswith(BEFORE)]
    measured = [(name, value) for name in main if (value := metrics[name]) is not None]
    shown = [f"{name} {_figure(value)}" for name, value in measured[:METRICS_SHOWN]]
    more = len(measured) - len(shown)
    return "  ".join([*shown, f"and {more} more" if more > 0 else ""]).rstrip()


def _figure(value: float) -> str:
    """Counts as they are, all else to four digits."""
    return f"{value:,.0f}" if value == round(value, 0) or value >= 10_000 else f"{value:.4g}"


def _model(planned: PlannedStep) -> Path:
    from pipelines.folders import latest_name

    return planned.stage_folder / latest_name(planned.step.seed) / "model"


def _width(labels: Iterable[str]) -> int:
    return max((len(label) for label in labels), default=0)
