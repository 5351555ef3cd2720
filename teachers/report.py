"""The reports of training and of evaluating sentence encoders."""

from collections.abc import Iterable, Mapping

from bertrelay.errors import plural
from bertrelay.report import Headline, Measure, StageReport, dots, identity
from bertrelay.stage import Metrics

MEASURES = {"spearman_cosine": "Spearman's correlation of cosine and gold", "accuracy": "Accuracy of the classes"}
"""Metrics on the data that a training is evaluated on, in words."""


def training_report(metrics: Metrics, *, base: str, items: int, objective: str) -> StageReport:
    """The report of a training. base: in words. items: number of training examples."""
    summary = (
        f"A sentence encoder, started from {base}, learned from {items:,} examples by the objective {objective}, so "
        "that the cosine of two vectors is the similarity of their sentences."
    )
    headlines = [
        Headline(
            title=title,
            measure=Measure.of(metrics, f"dev/{name}"),
            metrics=[f"dev/{name}"],
            data="the data that chooses the weights",
            is_dev=True,
        )
        for name, title in MEASURES.items()
        if f"dev/{name}" in metrics
    ]
    return StageReport(summary=[summary], headlines=headlines)


def sts_headline(
    metrics: Metrics, sets: Mapping[str, Iterable[object]], model: str = "model", measure: str = "spearman_cosine"
) -> Headline | None:
    """The mean correlation over STS sets; None where none was measured.

    sets: the pairs by name, from which stages on the same sets are recognised. model: the setting that names the model.
    """
    names = {name: f"sts/{name}/{measure}" for name in sets if metrics.get(f"sts/{name}/{measure}") is not None}
    if not names:
        return None
    return Headline(
        title="Semantic similarity (Spearman)",
        measure=Measure.mean_of(metrics, list(names.values())),
        metrics=list(names.values()),
        data=f"{len(names):,} {plural(len(names), 'set', 'sets')} of scored pairs",
        identity=identity(measure, {name: list(sets[name]) for name in names}),
        model=model,
        chart=dots(metrics, {name: [(metric, "")] for name, metric in names.items()}, "Correlation, by set"),
    )
