"""Finished stages as a card quotes them: their facts, the models they name, and their metrics."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult

from bertrelay.errors import RequestError
from bertrelay.evaluation.verdict import Verdict
from bertrelay.files import read_json
from bertrelay.fingerprint import Digests
from pipelines.cards.content import literal
from pipelines.registry import REGISTRY
from pipelines.report.metrics import read_declarations
from pipelines.report.tables import DEV, OTHER, VALIDATION, Listing, MetricValue, metric_values, score_tables
from pipelines.report.verdicts import StageResult, verdicts
from pipelines.run.store import DIGITS, DONE, Done, read_done

HUB, OUTPUT, FOLDER = "hub:", "output:", "folder:"
STUDENT = "students.distill"
"""Kind of the stage whose `corpus.json` counts parallel sentences."""


@dataclass(frozen=True)
class Result:
    """A finished stage: its folder, its name in the run, and the facts that it recorded.

    corpus: the counts of the parallel data of a student's training; None of another stage.
    is_of_model: its metrics are of the model that is published.
    """

    folder: Path
    stage: str
    done: Done
    corpus: dict[str, Any] | None
    is_of_model: bool

    @property
    def kind(self) -> str:
        """The kind of stage, as a recipe names it."""
        return str(self.done.parts["uses"])

    @property
    def label(self) -> str:
        """The name of the result in tables."""
        return self.stage if self.is_of_model else f"{self.stage} (another model)"

    @property
    def is_training(self) -> bool:
        return self.corpus is not None or "train_steps" in self.done.metrics


def read_result(folder: Path, model: Path) -> Result:
    """Reads the result of a finished stage. Raises RequestError for a folder of anything else."""
    done = read_done(folder)
    if done is None:
        raise RequestError(
            f"results: expected the folder of a finished stage, with {DONE} in it, such as runs/RECIPE/STAGE/latest; "
            f"found none at {folder}"
        )
    corpus = read_json(folder / "corpus.json") if done.parts["uses"] == STUDENT else None
    return Result(folder, folder.resolve().parent.name, done, corpus, _is_of(done, folder, model))


def _is_of(done: Done, folder: Path, model: Path) -> bool:
    """Returns true if the stage made the model in the folder `model`, or evaluated it."""
    model, evaluated = model.resolve(), str(done.parts.get("model", ""))
    if model.is_relative_to(folder.resolve()):
        return True
    if evaluated.startswith(OUTPUT):
        return evaluated.removeprefix(OUTPUT)[:DIGITS] in model.parts
    if evaluated.startswith(FOLDER):
        return evaluated == f"{FOLDER}{Digests().of_folder(model)}"
    return evaluated.rpartition("@")[2] == model.name  # a revision of the hub names the folder


def hub_id(part: object) -> str | None:
    """The hub id in a part of a fingerprint, without its revision; None without one."""
    return part.removeprefix(HUB).partition("@")[0] if isinstance(part, str) and part.startswith(HUB) else None


def model_reference(part: object) -> str | None:
    """A model among the parts of a fingerprint: a hub id with its revision, or the digest of a folder; else None."""
    if not isinstance(part, str) or not part.startswith((HUB, FOLDER)):
        return None
    return f"a folder, sha256 {part.removeprefix(FOLDER)}" if part.startswith(FOLDER) else part.removeprefix(HUB)


def model_verdicts(results: Iterable[Result]) -> list[tuple[str, Verdict]]:
    """The stages that judge the published model, each with its verdict."""
    return list(
        verdicts(
            StageResult(result.stage, result.kind, result.done.metrics) for result in results if result.is_of_model
        )
    )


def hub_metrics(results: Iterable[Result]) -> Iterator[EvalResult]:
    """Yields the metrics of the published model that their families declare for the hub."""
    declarations = {stage.kind: read_declarations(stage.metrics) for stage in REGISTRY if stage.metrics}
    for result in results:
        values = metric_values(result.done.metrics) if result.is_of_model else {}
        for name, measured in values.items():
            bare = name.replace("/after/", "/")  # of a model that was made smaller; `before` is of another one
            declared = () if "before" in name.split("/") else declarations.get(result.kind, ())
            names = next(filter(None, (metric.hub_names(bare) for metric in declared)), None)
            if names is not None and measured.value is not None:
                interval = f" (95 % interval {measured.interval})" if measured.interval else ""
                yield EvalResult(
                    task_type=names.task,
                    dataset_type=f"{result.stage}-{names.dataset}".removesuffix("-").lower().replace(" ", "-"),
                    dataset_name=f"{result.stage}: {names.dataset}".removesuffix(": "),
                    metric_type=names.metric,
                    metric_value=round(measured.value, 4),
                    metric_name=f"{names.metric.replace('_', ' ')}{interval}",
                )


def score_listings(results: Sequence[Result], is_shown: Callable[[str], bool]) -> Iterator[tuple[str, Listing]]:
    """Yields the explanation, once for a family, and the table of test metrics with their intervals.

    is_shown: chooses rows of the tables by their names.
    """
    by_label = {result.label: result for result in results}
    kinds, explained = {label: result.kind for label, result in by_label.items()}, set()
    for table in score_tables({label: result.done.metrics for label, result in by_label.items()}, kinds):
        rows = [row for row in table.rows if is_shown(row)]
        if rows and table.family not in (DEV, VALIDATION, OTHER):
            columns = ["", *(literal(": ".join(filter(None, column))) for column in table.columns)]
            title = literal(" · ".join(filter(None, [table.family.title, table.caption])))
            about = "" if table.about in explained else table.about
            explained.add(about)
            cells = [[literal(row), *map(with_interval, table.cells(row))] for row in rows]
            yield about, Listing(title, columns, cells)


def with_interval(value: MetricValue) -> str:
    """`0.913 (0.902 – 0.925)`."""
    return f"{value} ({value.interval})" if value.interval else str(value)


NOT_OF_TESTS = ("dev/", "spread/", "gain/", "corpus/", "family/")
"""Beginnings of the names of metrics of the training and of its data."""


def measured_names(results: Iterable[Result]) -> set[str]:
    """The parts of the names of test metrics of the published model: `en-de` gives `en` and `de`."""
    return {
        part
        for result in results
        if result.is_of_model
        for name in result.done.metrics
        if not name.startswith(NOT_OF_TESTS)
        for part in re.split(r"[/ -]", name)
    }
