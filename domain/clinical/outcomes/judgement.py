"""What the test admissions say of a model, written beside it."""

from dataclasses import replace
from pathlib import Path

import pandas as pd

from bertrelay.files import write_json
from bertrelay.progress import log
from bertrelay.stage import Metrics
from domain.clinical.cohorts.characteristics import CHARACTERISTICS
from domain.clinical.outcomes.classifier import save_model
from domain.clinical.outcomes.evaluation import (
    Judged,
    alarm_figures,
    best_figures,
    curves,
    differences,
    figures,
    permutation_figures,
    while_reading,
)
from domain.clinical.outcomes.held_out import HeldOut, read_held_out
from domain.clinical.outcomes.judgement_files import CONFUSION, CURVES, FLOW, SCORES, SLICES
from domain.clinical.outcomes.label_evaluation import JudgedLabels, confusion, label_figures
from domain.clinical.outcomes.measures import Floats, threshold_at_precision
from domain.clinical.outcomes.outcome_settings import LearningSettings
from domain.clinical.outcomes.outcome_task import OutcomeTask
from domain.clinical.outcomes.recalibration import calibrated, fit_recalibration
from domain.clinical.outcomes.slices import groups_of, label_slices, slices
from domain.clinical.parquet import write_parquet

OURS = "model"


def judge(task: OutcomeTask, settings: LearningSettings, output: Path, risks: Floats | None = None) -> Metrics:
    """Settles what is to be settled, writes the model, its scores and all else, and gives the figures.

    risks: the true ones, of all stays of `task.notes`, where they are known.
    """
    held_out = read_held_out(task, settings)
    save_model(replace(task.outcome_model, settings=held_out.how), output / "model")
    write_parquet(output / SCORES, pd.concat([held_out.scores("validation"), held_out.scores("test")]))
    task.notes.flow.write(output / FLOW)
    if held_out.how.outcome.kind == "binary":
        found = _judged_yes_or_no(held_out, settings, output, risks)
    else:
        found = _judged_labels(held_out, output)
    return found | held_out.counts()


def of_baseline(name: str, found: Metrics) -> Metrics:
    """The figures under the name of a baseline: `auroc_low` becomes `auroc/tfidf_low`."""
    named: Metrics = {}
    for figure, value in found.items():
        base, _, ending = figure.rpartition("_")
        is_border = ending in ("low", "high")
        named[f"{base}/{name}_{ending}" if is_border else f"{figure}/{name}"] = value
    return {figure: value for figure, value in named.items() if not figure.startswith(("prevalence", "labels"))}


# Of a task that is true or not


def _judged_yes_or_no(held_out: HeldOut, settings: LearningSettings, output: Path, risks: Floats | None) -> Metrics:
    how, test = held_out.how, held_out.test
    outcomes, subjects = test.labels[:, 0], held_out.subjects
    probability = held_out.test_probabilities[:, 0]
    ours = Judged(subjects, outcomes, probability, calibrated(probability, how.slope, how.intercept))
    others, metrics = _judged_baselines(held_out, ours, settings)
    reading = while_reading(held_out.test_chunk_probabilities[:, 0], test.admissions, outcomes, how)
    asked = {"precision": settings.alarm_precision, "minimum": settings.minimum_alarms}
    alarms = {"threshold": how.threshold, "alarms": how.alarms, "right": how.alarms_right}
    about = {"outcome": how.labels[0], "prevalence": float(outcomes.mean()), "alarms": asked | alarms}
    write_json(output / CURVES, about | curves({OURS: ours, **others}) | reading, compact=True)
    _write_slices(held_out, ours, Path(settings.cohort), output)
    best = {} if risks is None else best_figures(ours, risks[held_out.task.notes.is_in("test")])
    validation = held_out.validation_probabilities[:, 0], held_out.validation.labels[:, 0]
    return figures(ours, threshold_at_precision(*validation)) | alarm_figures(ours, how.threshold) | metrics | best


def _judged_baselines(held_out: HeldOut, ours: Judged, settings: LearningSettings) -> tuple[dict[str, Judged], Metrics]:
    """What the baselines tell of the test admissions, and their figures, as `auroc/tfidf`.

    Threshold and recalibration are settled on validation, as the model's are.
    """
    judged, metrics = dict[str, Judged](), Metrics()
    for baseline in held_out.baselines(settings.permutations, settings.seed):
        settling = baseline.validation[:, 0], held_out.validation.labels[:, 0]
        probability = baseline.test[:, 0]
        recalibrated = calibrated(probability, *fit_recalibration(*settling, baseline.name))
        other = Judged(held_out.subjects, held_out.test.labels[:, 0], probability, recalibrated)
        found = figures(other, threshold_at_precision(*settling)) | differences(ours, other)
        if len(baseline.permuted):
            found |= permutation_figures(found["auroc"] or 0.0, baseline.permuted)
        judged[baseline.name] = other
        metrics |= of_baseline(baseline.name, found)
    return judged, metrics


def _write_slices(held_out: HeldOut, ours: Judged, cohort: Path, output: Path) -> None:
    file = cohort / CHARACTERISTICS
    if not file.is_file():
        log(f"there is no {CHARACTERISTICS} in the cohort: no figures by groups of patients")
        return
    known_of = pd.read_parquet(file).drop_duplicates("hadm_id").set_index("hadm_id")
    groups = groups_of(known_of.reindex(held_out.column("hadm_id")), held_out.column("characters").tolist())
    found = slices(groups, ours.probability, ours.calibrated, ours.outcomes, ours.subjects)
    write_json(output / SLICES, {"slices": found})


# Of several labels


def _judged_labels(held_out: HeldOut, output: Path) -> Metrics:
    how = held_out.how
    ours = JudgedLabels(held_out.subjects, held_out.test.labels, held_out.test_probabilities, how.outcome.kind)
    metrics = label_figures(ours)
    if metrics["labels_left_out"]:
        log(
            f"{how.task}: {metrics['labels_left_out']:.0f} of {len(how.labels)} labels are true of no test admission "
            "or of all of them; they have no AUROC and are left out of the macro mean"
        )
    for baseline in held_out.baselines():
        metrics |= of_baseline(baseline.name, label_figures(replace(ours, probabilities=baseline.test)))
    told = label_slices(how.task, how.labels, ours.probabilities, ours.labels, ours.subjects)
    write_json(output / SLICES, {"slices": told})
    if how.outcome.kind == "multi-class":
        write_json(output / CONFUSION, {"labels": how.labels, "rows": confusion(ours)})
    return metrics
