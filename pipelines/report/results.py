"""The results of a run as its folder records them: `run.json`, `metrics.json`, and a folder for each stage."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertrelay.errors import RequestError
from bertrelay.files import read_json
from bertrelay.report import StageReport, read_report, without_quotes
from bertrelay.stage import Metrics
from pipelines.run.store import DIGITS, METRICS, RUN, Done, latest_name, read_done
from pipelines.run.summary import OUTPUT


@dataclass(frozen=True)
class FinishedStage:
    """The latest result of a stage, and of one seed where it is repeated.

    report: what the stage wrote for a report; without text of sensitive data.
    """

    name: str
    seed: int | None
    folder: Path
    done: Done
    report: StageReport

    @property
    def kind(self) -> str:
        """The kind of stage, as a recipe names it."""
        return str(self.done.parts["uses"])

    @property
    def label(self) -> str:
        """The name of the stage in tables."""
        return self.name if self.seed is None else f"{self.name} (seed {self.seed})"

    @property
    def upstream(self) -> set[str]:
        """The folder names of the results from which this one was made."""
        return {folder for part in self.done.parts.values() if (folder := output_folder(part))}


@dataclass(frozen=True)
class RunResults:
    """The finished stages of a run in the order of its recipe, and its metrics: over seeds, mean and deviation.

    withheld: names of the stages of which no text is quoted.
    """

    name: str
    folder: Path
    stages: Sequence[FinishedStage]
    metrics: Mapping[str, Metrics]
    withheld: Collection[str] = ()

    @property
    def kinds(self) -> dict[str, str]:
        return {stage.name: stage.kind for stage in self.stages}


def output_folder(part: object) -> str:
    """The folder name of the result that a part of a fingerprint is from; empty for any other part."""
    return part.removeprefix(OUTPUT)[:DIGITS] if isinstance(part, str) and part.startswith(OUTPUT) else ""


def read_results(folder: Path) -> RunResults:
    """Reads the results in a run's folder. Raises RequestError for any other folder."""
    facts, metrics = read_json(folder / RUN), read_json(folder / METRICS)
    if facts is None or metrics is None:
        raise RequestError(
            f"{folder}: expected the folder of a run, with {RUN} and {METRICS} in it, such as runs/quickstart; found "
            f"{'none' if not folder.is_dir() else 'another one'}. `bertrelay run` writes them"
        )
    stages = []
    for step in facts["stages"]:
        result = (folder / step["name"] / latest_name(step["seed"])).resolve()
        if step["name"] in metrics and (done := read_done(result)):
            report = read_report(result) or StageReport()
            if step["name"] in facts["withheld"]:
                report = without_quotes(report)
            stages.append(FinishedStage(step["name"], step["seed"], result, done, report))
    return RunResults(facts["recipe"], folder, stages, metrics, facts["withheld"])
