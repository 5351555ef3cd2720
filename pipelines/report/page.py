"""`report.html`: a run on one page that needs no network and no scripts: scores, curves, pictures, settings."""

import csv
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bertrelay.errors import RequestError
from bertrelay.files import read_json, write_text
from bertrelay.stage import Metrics
from pipelines.report.charts import Curve, training_curves
from pipelines.report.examples import answer_pictures, entity_pictures
from pipelines.report.outcomes import flow_table, readmission_pictures
from pipelines.report.tables import score_tables, with_published
from pipelines.run_store import DONE, METRICS, latest_name
from pipelines.runner import without_text

REPORT = "report.html"
TEMPLATE = "report.html.jinja"
LOG = "metrics.jsonl"
SIMILARITY = "similarity.json"


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

    @property
    def curves(self) -> list[Curve]:
        """Pictures of the training, where the stage is one."""
        return training_curves(self.folder / LOG)


def write_report(run_folder: Path, withheld: Collection[str] = ()) -> Path:
    """Writes `report.html` of a run, from what its stages' folders hold, and returns where it stands.

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

    environment = Environment(
        loader=PackageLoader("pipelines.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": duration, "day": day}
    quoted = [stage for stage in stages if stage.name not in withheld]
    entities = [(stage, found) for stage in stages if (found := entity_pictures(stage.folder, stage in quoted))]
    answers = [(stage, scored) for stage in stages if (scored := answer_pictures(stage.folder, stage in quoted))]
    return environment.get_template(TEMPLATE).render(
        recipe=run_folder.resolve().name,
        stages=stages,
        seconds=sum(stage.done["seconds"] for stage in stages),
        finished=max(stage.finished for stage in stages),
        tables=with_published(score_tables(_summary(run_folder), {stage.name: stage.kind for stage in stages})),
        curves=[(stage, drawn) for stage in stages if (drawn := stage.curves)],
        without_text=without_text(withheld),
        heatmaps=[(stage, picture) for stage in quoted if (picture := _heatmap(stage.folder))],
        readmissions=[(stage, shown) for stage in stages if (shown := readmission_pictures(stage.folder))],
        terms=[(stage, drawn_terms) for stage in quoted if (drawn_terms := terms_picture(stage.folder))],
        flows=[(stage, rows) for stage in stages if (rows := flow_table(stage.folder))],
        entities=entities,
        answers=answers,
        mark_style=_mark_style() if entities or answers else "",
        libraries=_libraries(stages),
    )


def _mark_style() -> str:
    from domain.biomedical.page import style

    return style()


def _heatmap(folder: Path) -> str | None:
    """The picture of the similarity matrix that the stage wrote, if it did."""
    from bertrelay.plots import as_svg, heatmap

    found = read_json(folder / SIMILARITY)
    if found is None:
        return None
    title = found.get("title", "Cosine similarity")
    return as_svg(heatmap(found["matrix"], found["rows"], found["labels"], title))


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


PICTURE, NEIGHBOURS = "tsne.svg", "neighbours.csv"
SHOWN = 12


@dataclass(frozen=True)
class TermsPicture:
    """An SVG element, and terms from the whole list with their neighbours as `name (0.93)`."""

    svg: str
    neighbours: list[tuple[str, list[str]]]


def terms_picture(folder: Path) -> TermsPicture | None:
    """What is to be shown of the stage in `folder`, if it drew terms."""
    picture, table = folder / PICTURE, folder / NEIGHBOURS
    if not (picture.is_file() and table.is_file()):
        return None
    found: dict[str, list[str]] = {}
    with table.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            found.setdefault(row["term"], []).append(f"{row['neighbour']} ({float(row['cosine']):.2f})")
    stride = -(-len(found) // SHOWN)
    return TermsPicture(picture.read_text(encoding="utf-8"), list(found.items())[::stride])
