"""`report.html`: a run on one page that needs no network and no scripts: scores, curves, pictures, settings."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bertrelay.files import write_text
from bertrelay.stage import Metrics
from pipelines.recipe.steps import Recipe, Step
from pipelines.report.findings import SUBJECTS
from pipelines.report.tables import score_tables, signs
from pipelines.report.verdicts import StageResult, verdicts
from pipelines.run.store import REPORT, Done, latest_name, read_done
from pipelines.run.summary import without_text


@dataclass(frozen=True)
class FinishedStage:
    """The latest result of a step, and its folder."""

    step: Step
    folder: Path
    done: Done


def write_report(
    recipe: Recipe, run_folder: Path, metrics: Mapping[str, Metrics], withheld: Collection[str] = ()
) -> None:
    """Writes `report.html` of a run: the latest results of the stages that `metrics` names.

    withheld: the stages of which the report quotes no text.
    """
    stages = []
    for step in recipe.steps:
        folder = (run_folder / step.name / latest_name(step.seed)).resolve()
        if step.name in metrics and (done := read_done(folder)):
            stages.append(FinishedStage(step, folder, done))
    write_text(run_folder / REPORT, _page(recipe, stages, metrics, withheld))


def _page(
    recipe: Recipe, stages: Sequence[FinishedStage], metrics: Mapping[str, Metrics], withheld: Collection[str]
) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from domain.biomedical.documents.html import style

    environment = Environment(
        loader=PackageLoader("pipelines.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": duration, "day": day}
    findings = {
        subject.__name__: [
            (stage, parts) for stage in stages if (parts := [*subject(stage.folder, stage.step.name not in withheld)])
        ]
        for subject in SUBJECTS
    }
    versions: dict[str, dict[str, None]] = {}  # of a library more than one where stages ran with different ones
    for stage in stages:
        for library, version in stage.done.libraries.items():
            versions.setdefault(library, {})[version] = None
    tables = score_tables(metrics, {step.name: step.stage.kind for step in recipe.steps})
    judged = [StageResult(stage.step.label, stage.step.stage.kind, stage.done.metrics) for stage in stages]
    return environment.get_template("report.html.jinja").render(
        recipe=recipe.name,
        verdicts=list(verdicts(judged)),
        stages=stages,
        seconds=sum(stage.done.seconds for stage in stages),
        finished=max(stage.done.finished for stage in stages),
        tables=tables,
        signs=signs(tables),
        without_text=without_text(withheld),
        findings=findings,
        mark_style=style(),
        libraries=versions,
    )


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
