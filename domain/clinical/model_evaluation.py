"""Evaluates a trained model: c, recalibration and alarm threshold from validation, metrics on test, files beside it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bertrelay.evaluation.calibration import calibrated, fit_recalibration
from bertrelay.files import write_json
from bertrelay.progress import log, progress
from bertrelay.stage import Metrics
from domain.clinical.baselines import Baseline, baselines
from domain.clinical.classifier import save_model
from domain.clinical.cohort import CHARACTERISTICS, SPLITS, write_parquet
from domain.clinical.evaluation import (
    Predicted,
    PredictedLabels,
    alarm_metrics,
    best_metrics,
    binary_metrics,
    confusion,
    curves,
    groups_of,
    label_metrics,
    label_slices,
    metric_differences,
    permutation_metrics,
    slices,
    while_reading,
)
from domain.clinical.metrics import Floats, alarm_threshold, auroc_of, mean_of_known, threshold_at_precision
from domain.clinical.outcomes import (
    CONFUSION,
    CURVES,
    FLOW,
    SCORES,
    SLICES,
    OutcomeModelSettings,
    probability_column,
)
from domain.clinical.prediction import aggregate_labels, choose_c
from domain.clinical.settings import LearningSettings

if TYPE_CHECKING:
    from domain.clinical.training import OutcomeTask, Split


def evaluate_model(
    task: "OutcomeTask", settings: LearningSettings, output: Path, risks: Floats | None = None
) -> Metrics:
    """Fits what validation decides, writes the model, its scores and all else, and returns the metrics of test.

    risks: the true ones, of all stays of `task.notes`, where they are known.
    """
    scored = score_held_out(task, settings)
    save_model(replace(task.outcome_model, settings=scored.how), output / "model")
    write_parquet(output / SCORES, pd.concat([scored.scores("validation"), scored.scores("test")]))
    task.notes.flow.write(output / FLOW)
    if scored.how.outcome.kind == "binary":
        found = _evaluate_binary(scored, settings, output, risks)
    else:
        found = _evaluate_labels(scored, output)
    return found | scored.counts()


@dataclass(frozen=True)
class HeldOutScores:
    """The validation and test admissions, their chunks read once.

    how: the model's settings with what validation decided.
    validation_probabilities, test_probabilities: P of the admissions of each, (admissions, labels).
    test_chunk_probabilities: those of the test admissions' chunks, (chunks, labels).
    """

    task: "OutcomeTask"
    how: OutcomeModelSettings
    validation: "Split"
    test: "Split"
    validation_probabilities: Floats
    test_probabilities: Floats
    test_chunk_probabilities: Floats

    def column(self, name: str, split: str = "test") -> NDArray[Any]:
        """A column of the notes' table, of the admissions of a split."""
        notes = self.task.notes
        return notes.table.loc[notes.is_in(split), name].to_numpy()

    def scores(self, name: str) -> pd.DataFrame:
        """The probabilities of a split beside the outcomes of its admissions."""
        how = self.how
        validation, test = (self.validation, self.validation_probabilities), (self.test, self.test_probabilities)
        split, found = test if name == "test" else validation
        columns: dict[str, Any] = {"hadm_id": self.column("hadm_id", name)}
        if how.outcome.kind == "binary":
            columns |= {"probability": found[:, 0], "calibrated": calibrated(found[:, 0], how.slope, how.intercept)}
        else:
            columns |= {probability_column(label): found[:, place] for place, label in enumerate(how.labels)}
        columns["n_chunks"] = np.bincount(split.admissions, minlength=split.count).astype(np.int32)
        columns["unknown_share"] = self.column("unknown_share", name)
        columns |= {label: split.labels[:, place] for place, label in enumerate(how.labels)}
        return pd.DataFrame(columns | {"split": name})

    def counts(self) -> Metrics:
        """How many admissions and chunks there are, and what validation decided."""
        notes, tokens, how = self.task.notes, self.task.tokens, self.how
        splits = {f"admissions/{name}": int(notes.is_in(name).sum()) for name in SPLITS}
        decided: Metrics = {"c": how.c}
        if how.outcome.kind == "binary":
            decided |= {"recalibration_slope": how.slope, "recalibration_intercept": how.intercept}
            decided |= {"threshold": how.threshold}
            decided |= {"threshold_alarms": how.alarms, "threshold_alarms_right": how.alarms_right}
        return {**splits, "chunks": len(tokens), "lost_chunks": tokens.lost_chunks, **decided}

    def baselines(self, permutations: int = 0, seed: int = 0) -> Iterator[Baseline]:
        """Each baseline, with the null test of so many permutations where the task is binary."""
        return baselines(self.task.notes, permutations, seed)


def score_held_out(task: "OutcomeTask", settings: LearningSettings) -> HeldOutScores:
    """Reads the chunks of both splits once, and fits c, recalibration and threshold on validation."""
    validation, test = task.of_split("validation"), task.of_split("test")
    with progress("reading chunks", len(validation.chunks) + len(test.chunks), "chunks") as bar:
        of_validation, of_test = (task.probabilities(each, bar) for each in (validation, test))
    how = _fitted(task.outcome_model.settings, settings, validation, of_validation)
    validation_probabilities = aggregate_labels(of_validation, validation.admissions, validation.count, how)
    test_probabilities = aggregate_labels(of_test, test.admissions, test.count, how)
    return HeldOutScores(task, how, validation, test, validation_probabilities, test_probabilities, of_test)


def _fitted(
    how: OutcomeModelSettings, settings: LearningSettings, split: "Split", of_chunks: Floats
) -> OutcomeModelSettings:
    """c, and of a binary task recalibration and threshold, all from validation."""

    def found(c: float) -> Floats:
        return aggregate_labels(of_chunks, split.admissions, split.count, how.model_copy(update={"c": c}))

    if settings.c == "chosen":
        how = how.model_copy(update={"c": choose_c(lambda c: mean_of_known(auroc_of, found(c), split.labels))})
    if how.outcome.kind != "binary":
        return how
    probability, outcomes = found(how.c)[:, 0], split.labels[:, 0]
    alarms = alarm_threshold(probability, outcomes, settings.alarm_precision, settings.minimum_alarms)
    decided: dict[str, Any] = {"alarm_precision": settings.alarm_precision}
    if alarms is not None:
        decided |= {"threshold": alarms.threshold, "alarms": alarms.alarms, "alarms_right": alarms.right}
    return how.model_copy(update=decided | fit_recalibration(probability, outcomes)._asdict())


def of_baseline(name: str, found: Metrics) -> Metrics:
    """The metrics under the name of a baseline: `auroc_low` becomes `auroc/tfidf_low`."""
    named: Metrics = {}
    for metric, value in found.items():
        base, _, ending = metric.rpartition("_")
        is_bound = ending in ("low", "high")
        named[f"{base}/{name}_{ending}" if is_bound else f"{metric}/{name}"] = value
    return {metric: value for metric, value in named.items() if not metric.startswith(("prevalence", "labels"))}


# A binary task


def _evaluate_binary(scored: HeldOutScores, settings: LearningSettings, output: Path, risks: Floats | None) -> Metrics:
    how, test = scored.how, scored.test
    outcomes, probability = test.labels[:, 0], scored.test_probabilities[:, 0]
    recalibrated = calibrated(probability, how.slope, how.intercept)
    model = Predicted(scored.column("subject_id"), outcomes, probability, recalibrated)
    others, metrics = _evaluate_baselines(scored, model, settings)
    reading = while_reading(scored.test_chunk_probabilities[:, 0], test.admissions, outcomes, how)
    wanted = {"precision": settings.alarm_precision, "minimum": settings.minimum_alarms}
    alarms = {"threshold": how.threshold, "alarms": how.alarms, "right": how.alarms_right}
    about = {"outcome": how.labels[0], "prevalence": float(outcomes.mean()), "alarms": wanted | alarms}
    write_json(output / CURVES, about | curves({"model": model, **others}) | reading, compact=True)
    _write_slices(scored, model, Path(settings.cohort), output)
    best = {} if risks is None else best_metrics(model, risks[scored.task.notes.is_in("test")])
    threshold = threshold_at_precision(scored.validation_probabilities[:, 0], scored.validation.labels[:, 0])
    return binary_metrics(model, threshold) | alarm_metrics(model, how.threshold) | metrics | best


def _evaluate_baselines(
    scored: HeldOutScores, model: Predicted, settings: LearningSettings
) -> tuple[dict[str, Predicted], Metrics]:
    """The baselines on the test admissions, and their metrics, as `auroc/tfidf`.

    Threshold and recalibration come from validation, as the model's do.
    """
    predicted, metrics = dict[str, Predicted](), Metrics()
    for baseline in scored.baselines(settings.permutations, settings.seed):
        validation = baseline.validation[:, 0], scored.validation.labels[:, 0]
        probability = baseline.test[:, 0]
        recalibrated = calibrated(probability, *fit_recalibration(*validation, baseline.name))
        other = replace(model, probability=probability, calibrated=recalibrated)
        found = binary_metrics(other, threshold_at_precision(*validation)) | metric_differences(model, other)
        if len(baseline.permuted):
            found |= permutation_metrics(found["auroc"] or 0.0, baseline.permuted)
        predicted[baseline.name] = other
        metrics |= of_baseline(baseline.name, found)
    return predicted, metrics


def _write_slices(scored: HeldOutScores, model: Predicted, cohort: Path, output: Path) -> None:
    file = cohort / CHARACTERISTICS
    if not file.is_file():
        log(f"there is no {CHARACTERISTICS} in the cohort: no metrics by groups of patients")
        return
    known_of = pd.read_parquet(file).drop_duplicates("hadm_id").set_index("hadm_id")
    groups = groups_of(known_of.reindex(scored.column("hadm_id")), scored.column("characters").tolist())
    write_json(output / SLICES, {"slices": slices(groups, model)})


# A task of several labels


def _evaluate_labels(scored: HeldOutScores, output: Path) -> Metrics:
    how = scored.how
    model = PredictedLabels(
        scored.column("subject_id"), scored.test.labels, scored.test_probabilities, how.outcome.kind
    )
    metrics = label_metrics(model)
    if metrics["labels_left_out"]:
        log(
            f"{how.task}: {metrics['labels_left_out']:.0f} of {len(how.labels)} labels are true of no test admission "
            "or of all of them; they have no AUROC and are left out of the macro mean"
        )
    for baseline in scored.baselines():
        metrics |= of_baseline(baseline.name, label_metrics(replace(model, probabilities=baseline.test)))
    write_json(output / SLICES, {"slices": label_slices(how.task, how.labels, model)})
    if how.outcome.kind == "multi-class":
        write_json(output / CONFUSION, {"labels": how.labels, "rows": confusion(model)})
    return metrics
