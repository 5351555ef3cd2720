"""The first screen of a report: what was trained, and two or three metrics beside what they have to beat."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bertrelay.report import Dots, Headline, Lines, Measure
from pipelines.report.results import FinishedStage, RunResults, output_folder
from pipelines.report.tables import MetricValue, cell_of

MOST = 3
"""Metrics, and pictures of them."""
SENTENCES = 2
PUBLISHED = 2
"""Published models beside a metric: those with the highest values."""


@dataclass(frozen=True)
class KeyResult:
    """A metric on the first screen. beside: labelled values to compare it with. metrics: all by stage and name."""

    stage: FinishedStage
    headline: Headline
    measure: Measure
    beside: Sequence[Measure]
    chart: Lines | Dots | None
    metrics: frozenset[tuple[str, str]] = frozenset()

    @property
    def value(self) -> MetricValue:
        return shown_value(self.measure)


def shown_value(measure: Measure) -> MetricValue:
    """A measure in the form of tables."""
    return MetricValue(measure.value, measure.low, measure.high, measure.deviation)


def key_results(run: RunResults) -> list[KeyResult]:
    """The first headlines of models that the run has made, on test data where there is any.

    Headlines of one metric on the same test data are one result: that of the last model, beside the other models. A
    metric that none has is preferred to one that another stage has already.
    """
    groups = list(_by_data(run))
    tests = [group for group in groups if not group[-1][1].is_dev] or groups
    candidates = [group for group in tests if any(_is_own(*entry) for entry in group)] or tests
    chosen: list[list[tuple[FinishedStage, Headline]]] = []
    while candidates and len(chosen) < MOST:
        titles = [_own(group)[1].title for group in chosen]

        def rank(group: list[tuple[FinishedStage, Headline]], titles: list[str] = titles) -> tuple[int, int]:
            stage, headline = _own(group)
            return titles.count(headline.title), stage.report.headlines.index(headline)

        best = min(candidates, key=rank)
        candidates.remove(best)
        chosen.append(best)
    return [_result(run, group) for group in chosen]


def _by_data(run: RunResults) -> Iterator[list[tuple[FinishedStage, Headline]]]:
    """The headlines of the run, those of one metric on the same test data together; of seeds the first alone."""
    groups: dict[str, list[tuple[FinishedStage, Headline]]] = {}
    names: set[str] = set()
    for stage in run.stages:
        if stage.name not in names:
            names.add(stage.name)
            for headline in stage.report.headlines:
                groups.setdefault(headline.identity or f"{stage.name} {headline.title}", []).append((stage, headline))
    yield from groups.values()


def _is_own(stage: FinishedStage, headline: Headline) -> bool:
    """True for a headline of a model that this run has made."""
    return not headline.model or output_folder(stage.done.parts.get(headline.model)) != ""


def _own(group: Sequence[tuple[FinishedStage, Headline]]) -> tuple[FinishedStage, Headline]:
    return next((entry for entry in reversed(group) if _is_own(*entry)), group[-1])


def _result(run: RunResults, group: Sequence[tuple[FinishedStage, Headline]]) -> KeyResult:
    stage, headline = _own(group)
    others = [(other, of_other) for other, of_other in group if other is not stage]
    beside = [
        *headline.beside,
        *(of_other.measure.model_copy(update={"label": other.name}) for other, of_other in others),
        *_published(stage, headline),
    ]
    measure, chart = _over_seeds(run, stage, headline), _with_others(headline.chart, others)
    measures = [(stage.name, measure) for measure in (headline.measure, *headline.beside)]
    measures += [(other.name, of_other.measure) for other, of_other in others]
    metrics = frozenset((name, measure.metric) for name, measure in measures if measure.metric)
    return KeyResult(stage, headline, measure, beside, chart, metrics)


def _over_seeds(run: RunResults, stage: FinishedStage, headline: Headline) -> Measure:
    """The measure, or of a repeated stage its mean and standard deviation over seeds."""
    values = [
        of_seed.measure.value
        for other in run.stages
        for of_seed in other.report.headlines
        if other.name == stage.name and of_seed.title == headline.title
    ]
    measured = [value for value in values if value is not None]
    if len(values) < 2 or len(measured) < len(values):
        return headline.measure
    return Measure(value=statistics.fmean(measured), deviation=statistics.stdev(measured))


def _published(stage: FinishedStage, headline: Headline) -> list[Measure]:
    """The means of published models over the metrics of the headline, of those with a value for each."""
    by_model: dict[str, list[float]] = {}
    for name in headline.metrics:
        cell = cell_of(stage.name, name, stage.kind)
        for (row, model), value in cell.family.published.get(cell.caption, {}).items():
            if row == cell.row:
                by_model.setdefault(model, []).append(value)
    means = {
        model: statistics.fmean(scores) for model, scores in by_model.items() if len(scores) == len(headline.metrics)
    }
    best = sorted(means, key=lambda model: -means[model])[:PUBLISHED]
    return [Measure(value=means[model], label=f"{model}, published") for model in best]


def _with_others(chart: Lines | Dots | None, others: Iterable[tuple[FinishedStage, Headline]]) -> Lines | Dots | None:
    """The dot plot with the models of other stages in it."""
    if not isinstance(chart, Dots):
        return chart
    rows = {row: list(measures) for row, measures in chart.rows.items()}
    for stage, headline in others:
        theirs = headline.chart.rows if isinstance(headline.chart, Dots) else {}
        for row in rows.keys() & theirs.keys():
            rows[row].append(theirs[row][0].model_copy(update={"label": stage.name}))
    return chart.model_copy(update={"rows": rows})


def trained_models(run: RunResults, results: Sequence[KeyResult]) -> list[FinishedStage]:
    """The stages that trained the models of `results`; without results the last that trained one."""
    trained = [stage for stage in run.stages if stage.report.summary]
    by_folder = {stage.folder.name: stage for stage in run.stages}
    models = dict.fromkeys(model for result in results for model in _trained_by(result, by_folder))
    return [stage for stage in trained if stage.folder.name in models] or trained[-1:]


def _trained_by(result: KeyResult, by_folder: dict[str, FinishedStage]) -> list[str]:
    """The folder name of the nearest result with a summary, upstream of the evaluated model; else nothing."""
    part = result.stage.done.parts.get(result.headline.model)
    waiting = [output_folder(part)] if result.headline.model else [result.stage.folder.name]
    while waiting:
        stage = by_folder.get(waiting.pop(0))
        if stage and stage.report.summary:
            return [stage.folder.name]
        waiting += sorted(stage.upstream) if stage else []
    return []


def sentences(models: Sequence[FinishedStage]) -> list[str]:
    """At most SENTENCES sentences about the models: all of one model, the first of each of several."""
    if len(models) == 1:
        return models[0].report.summary[:SENTENCES]
    return [model.report.summary[0] for model in models][:SENTENCES]
