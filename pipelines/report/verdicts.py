"""The verdicts on the models of a run, which come before everything else that is shown of them."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bertrelay.evaluation.verdict import Verdict
from bertrelay.stage import Metrics, load
from pipelines.registry import REGISTRY


class StageResult(NamedTuple):
    """A result of a stage: how it is called, its kind and its metrics."""

    label: str
    kind: str
    metrics: Metrics


def verdicts(results: Iterable[StageResult]) -> Iterator[tuple[str, Verdict]]:
    """The label and the verdict of each result whose kind of stage has one."""
    functions = {stage.kind: stage.verdict for stage in REGISTRY if stage.verdict}
    for label, kind, metrics in results:
        verdict: Verdict | None = load(functions[kind])(metrics) if kind in functions else None
        if verdict is not None:
            yield label, verdict
