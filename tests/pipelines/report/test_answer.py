"""The first screen of a report."""

import re
import statistics

import pytest

from bertrelay.report import Dots, Headline, Measure, StageReport
from pipelines.report.answer import key_results, sentences, trained_models

METRICS = {"f1": 0.75, "f1_low": 0.7, "f1_high": 0.8}


def headline(title="F1", metrics=METRICS, name="f1", **fields):
    fields = {"data": "90 questions", "identity": "f1 of the same", **fields}
    return Headline(title=title, measure=Measure.of(metrics, name), metrics=[name], **fields)


def trained(*sentences):
    return StageReport(summary=list(sentences))


def made_by(result):
    return {"model": f"output:{result.name}{'0' * 52}/model"}


@pytest.fixture
def run(empty_run):
    """Two trainings, an evaluation of each model, and one of a model of a folder."""
    first = empty_run.add("first", {}, report=trained("The first learned.", "From 9 rows."))
    second = empty_run.add("second", {}, parts={"base": made_by(first)["model"]}, report=trained("The second learned."))
    for name, parts, value in (
        ("test-first", made_by(first), 0.5),
        ("test-second", made_by(second), 0.75),
        ("test-base", {"model": "folder:00"}, 0.25),
    ):
        metrics = {**METRICS, "f1": value}
        chart = Dots(title="F1", rows={"ko": [Measure(value=value)]})
        report = StageReport(headlines=[headline(metrics=metrics, model="model", chart=chart)])
        empty_run.add(name, metrics, kind="domain.qa-evaluate", parts=parts, report=report)
    return empty_run


def test_the_last_model_stands_beside_others_on_the_same_data(run):
    [result] = key_results(run.results())
    assert result.stage.name == "test-second" and result.measure.value == 0.75
    assert [(measure.label, measure.value) for measure in result.beside] == [("test-first", 0.5), ("test-base", 0.25)]
    dots = [(measure.label, measure.value) for measure in result.chart.rows["ko"]]
    assert dots == [("", 0.75), ("test-first", 0.5), ("test-base", 0.25)]


def test_the_sentences_are_of_the_models_whose_metrics_are_shown(run):
    results = run.results()
    models = trained_models(results, key_results(results))
    assert [model.name for model in models] == ["second"]
    assert sentences(models) == ["The second learned."]
    assert sentences(trained_models(results, [])) == ["The second learned."]
    assert sentences(results.stages[:1]) == ["The first learned.", "From 9 rows."]
    assert sentences(results.stages[:2]) == ["The first learned.", "The second learned."]


def test_a_metric_that_none_has_is_preferred_and_three_are_shown_at_most(run):
    others = [headline(title, identity=title) for title in ("Accuracy", "Recall", "MRR")]
    run.add("own", METRICS, report=StageReport(summary=["A third."], headlines=[headline(identity=""), *others]))
    titles = [result.headline.title for result in key_results(run.results())]
    assert titles == ["F1", "Accuracy", "Recall"]


def test_dev_data_count_where_there_is_no_test_only(empty_run):
    empty_run.add("training", METRICS, report=StageReport(headlines=[headline(is_dev=True)]))
    [result] = key_results(empty_run.results())
    assert result.headline.is_dev
    empty_run.add("test", METRICS, report=StageReport(headlines=[headline("Exact match", identity="another")]))
    assert [result.headline.title for result in key_results(empty_run.results())] == ["Exact match"]


def test_of_seeds_mean_and_deviation_are_shown(empty_run):
    values = {1: 0.5, 2: 0.6, 3: 0.85}
    for seed, value in values.items():
        report = StageReport(headlines=[headline(metrics={"f1": value})])
        empty_run.add("test", METRICS, seed, report=report)
    [result] = key_results(empty_run.results())
    assert result.measure.value == pytest.approx(statistics.fmean(values.values()))
    assert result.measure.deviation == pytest.approx(statistics.stdev(values.values()))
    assert result.beside == []


def test_published_models_stand_beside_a_mean_of_the_same_rows(empty_run):
    """Against the table of published accuracies of LaBSE on Tatoeba: German 0.994, Korean 0.929."""
    names = ["translation_accuracy/de-en", "translation_accuracy/ko-en"]
    metrics = dict.fromkeys(names, 0.9)
    mean = Headline(title="Accuracy", measure=Measure.mean_of(metrics, names), metrics=names, data="sentences")
    empty_run.add("tatoeba", metrics, kind="students.evaluate", report=StageReport(headlines=[mean]))
    [result] = key_results(empty_run.results())
    values = {measure.label: measure.value for measure in result.beside}
    assert len(values) == 2 and values["paraphrase-multilingual-mpnet-base-v2, published"] == (0.983 + 0.947) / 2
    assert values["LaBSE, published"] == pytest.approx((0.994 + 0.929) / 2)


def test_the_first_screen_shows_the_metrics_of_the_files(run, page):
    """All numbers before the contents are recomputed from the metrics in the `done.json` of each stage."""
    text = run.write()
    stages = {stage.name: stage.done.metrics for stage in run.results().stages}
    answer = page(text[text.index('<div class="results">') : text.index('<div class="pictures">')]).text
    expected = []
    for name in ("test-second", "test-first", "test-base"):
        metrics = stages[name]
        expected += [f"{metrics['f1']:.3f}", f"{metrics['f1_low']:.3f}", f"{metrics['f1_high']:.3f}"]
    assert re.findall(r"\d\.\d+", answer) == expected
