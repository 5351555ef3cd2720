"""The report of a pretraining."""

from collections.abc import Sequence

from bertrelay.evaluation.verdict import listed
from bertrelay.report import Headline, Measure, StageReport
from bertrelay.stage import Metrics

TASKS = {"mlm": "masked words", "nsp": "whether two sentences follow one another"}


def training_report(metrics: Metrics, base: str, documents: int, objectives: Sequence[str]) -> StageReport:
    """The report of a pretraining, from its metrics on held-out documents. base: in words."""
    learned = listed([TASKS[objective] for objective in objectives])
    summary = (
        f"A BERT, started from {base}, learned from {documents:,} documents to predict {learned}, as the base of "
        "models that read such text."
    )
    titles = {"mlm_accuracy": "Accuracy of masked words", "nsp_accuracy": "Accuracy of next sentences"}
    headlines = [
        Headline(
            title=title,
            measure=Measure.of(metrics, name),
            metrics=[name],
            data="held-out documents",
            beside=[Measure.of(metrics, f"before/{name}", "before the training")],
            is_dev=True,
        )
        for name, title in titles.items()
        if metrics.get(name) is not None
    ]
    return StageReport(summary=[summary], headlines=headlines)
