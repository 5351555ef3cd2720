"""The report, the console and the card of a run begin with whether its models are fit for use."""

import pytest

from bertrelay.settings import Settings
from pipelines.cli.recipes import outcome_lines
from pipelines.recipe.steps import Recipe, Step
from pipelines.recipe.text import RecipeText
from pipelines.registry import REGISTRY
from pipelines.report.tables import score_tables
from pipelines.report.verdicts import StageResult, verdicts
from pipelines.run.plan import Action, Plan, PlannedStep
from pipelines.run.runner import Outcome
from pipelines.run.store import Done

FAILED = {"auroc": 0.425, "auroc_low": 0.38, "auroc_high": 0.47, "prevalence": 0.3, "admissions/test": 1000}
FAILED |= {"calibration_slope": -44.0, "auroc/tfidf": 0.8, "validation/auroc": 0.6}
RUN = {"pretraining": ("domain.pretrain", {"mlm_loss": 2.0, "before/mlm_loss": 8.0})}
RUN |= {"readmission": ("domain.readmission", FAILED)}


@pytest.fixture
def outcome(tmp_path):
    stages = {stage.kind: stage for stage in REGISTRY}
    steps = tuple(Step(name, None, stages[kind], Settings(), ()) for name, (kind, _) in RUN.items())
    recipe = Recipe("clinic", RecipeText("", "", "", tmp_path, None), (), steps)
    planned = tuple(PlannedStep(step, Action.RUN, (), {}, tmp_path / step.name) for step in steps)
    metrics = {name: found for name, (_, found) in RUN.items()}
    by_key = {(name, None): Done({}, found, {}, {}, "", "", 1.0, precision="bf16") for name, found in metrics.items()}
    return Outcome(Plan(recipe, tmp_path, planned, {}), dict.fromkeys(by_key, 1.0), by_key, metrics)


def test_the_console_begins_with_the_verdict_and_ends_with_the_test_metric_and_not_with_masked_words(outcome):
    lines = [line for line in outcome_lines(outcome) if line]
    assert lines[0] == (
        "fail    readmission: Worse than chance. AUROC 0.425 (0.380 – 0.470) on 1,000 test admissions, "
        "300 with the outcome"
    )
    masked, auroc, report = (
        next(place for place, line in enumerate(lines) if line.strip().startswith(start))
        for start in ("mlm_loss", "AUROC", "report")
    )
    assert masked < auroc < report == len(lines) - 1
    assert "0.425 (0.380 – 0.470)" in lines[auroc] and "0.800" in lines[auroc]
    assert not [line for line in lines if "calibration slope" in line]  # the report has the rest


def test_stages_of_other_kinds_and_without_metrics_have_no_verdict():
    assert (
        list(
            verdicts([StageResult("a", "samples.write", {"sentences": 3}), StageResult("b", "domain.readmission", {})])
        )
        == []
    )


def test_every_kind_that_is_judged_loads_without_metrics():
    kinds = [stage.kind for stage in REGISTRY if stage.verdict]
    assert len(kinds) == 9
    assert list(verdicts(StageResult(kind, kind, {}) for kind in kinds)) == []


def test_a_ratio_of_recalls_never_stands_without_the_recall_and_tables_say_how_many_sentences():
    metrics = {"translation_accuracy/en-de": 0.02, "translation_accuracy/de-en": 0.02, "sentences/de": 1000}
    metrics |= {"queries/en": 1000, "queries/de": 998, "recall_at_10/en": 0.04}
    metrics |= {"recall_at_10/de": 0.03, "recall_at_10_ratio/de": 0.731, "sts/STSb-de/pairs": 1379}
    tables = score_tables({"test": metrics}, {"test": "students.evaluate"})
    columns = {table.family.title: [name for _, name in table.columns] for table in tables}
    assert {"recall@10", "ratio to English"} <= set(columns["Nearness to the teacher"])
    expected = {"Translation accuracy", "Nearness to the teacher", "Semantic textual similarity by language"}
    assert {title for title, names in columns.items() if "n" in names} == set(columns) == expected
