"""`report.html`: a run on one page that needs no network and no scripts: scores, curves, pictures, settings."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bertrelay.errors import RequestError
from bertrelay.files import read_json, write_text
from bertrelay.stage import Metrics
from pipelines.report.findings import SUBJECTS
from pipelines.report.tables import score_tables
from pipelines.run_store import DONE, METRICS, latest_name
from pipelines.runner import without_text

REPORT = "report.html"
TEMPLATE = "report.html.jinja"


@dataclass(frozen=True)
class FinishedStage:
    """A stage, for one seed where it is repeated, as its folder has it."""

    name: str
    seed: str
    folder: Path
    done: Mapping[str, Any]

    @property
    def label(self) -> str:
        return f"{self.name}, seed {self.seed}" if self.seed else self.name

    @property
    def kind(self) -> str:
        return str(self.done["parts"].get("uses", "–"))

    @property
    def finished(self) -> datetime:
        return datetime.fromisoformat(self.done["finished"]).astimezone(UTC)


def write_report(run_folder: Path, withheld: Collection[str] = ()) -> Path:
    """Writes `report.html` of a run from the folders of its stages, and returns its path.

    withheld: the stages of which the report quotes no text.
    Raises RequestError when no stage of the run is finished.
    """
    stages = list(_finished_stages(run_folder))
    if not stages:
        raise RequestError(f"expected a run with finished stages, found none in {run_folder}; run the recipe first")
    path = run_folder / REPORT
    write_text(path, _page(run_folder, stages, withheld))
    return path


def _finished_stages(run_folder: Path) -> Iterator[FinishedStage]:
    """The latest result of each stage that `metrics.json` names, in its order; of a repeated stage every seed's."""
    for name, metrics in _summary(run_folder).items():
        seeds = _seeds(run_folder / name) if any(key.endswith("_deviation") for key in metrics) else []
        for seed in seeds or [""]:
            folder = (run_folder / name / latest_name(int(seed) if seed else None)).resolve()
            if done := read_json(folder / DONE):
                yield FinishedStage(name, seed, folder, done)


def _summary(run_folder: Path) -> dict[str, Metrics]:
    return read_json(run_folder / METRICS) or {}


def _seeds(stage_folder: Path) -> list[str]:
    prefix = latest_name(0).removesuffix("0")
    return sorted((path.name.removeprefix(prefix) for path in stage_folder.glob(f"{prefix}*")), key=int)


def _page(run_folder: Path, stages: list[FinishedStage], withheld: Collection[str]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from domain.biomedical.documents.page import style

    environment = Environment(
        loader=PackageLoader("pipelines.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": duration, "day": day}
    found = {
        parts_of.__name__: [
            (stage, parts) for stage in stages if (parts := [*parts_of(stage.folder, stage.name not in withheld)])
        ]
        for parts_of in SUBJECTS
    }
    return environment.get_template(TEMPLATE).render(
        recipe=run_folder.resolve().name,
        stages=stages,
        seconds=sum(stage.done["seconds"] for stage in stages),
        finished=max(stage.finished for stage in stages),
        tables=score_tables(_summary(run_folder), {stage.name: stage.kind for stage in stages}),
        without_text=without_text(withheld),
        found=found,
        mark_style=style(),
        libraries=_libraries(stages),
    )


def _libraries(stages: list[FinishedStage]) -> dict[str, list[str]]:
    """Name to versions: more than one where stages ran with different ones."""
    found: dict[str, dict[str, None]] = {}
    for stage in stages:
        for name, version in stage.done.get("libraries", {}).items():
            found.setdefault(name, {})[version] = None
    return {name: list(versions) for name, versions in found.items()}


def duration(seconds: float) -> str:
    """`0.4 s`, `42 s`, `3 min 5 s`, `2 h 10 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def day(moment: datetime) -> str:
    """`21 November 2025, 07:41 UTC`."""
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"
