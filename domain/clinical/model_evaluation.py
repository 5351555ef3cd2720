"""The validation and test admissions as a model reads them, and what the validation admissions settle."""

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
    Judged,
    JudgedLabels,
    alarm_figures,
    best_figures,
    confusion,
    curves,
    differences,
    figures,
    groups_of,
    label_figures,
    label_slices,
    permutation_figures,
    slices,
    while_reading,
)
from domain.clinical.metrics import Floats, alarm_threshold, auroc_of, mean_of_known, threshold_at_precision
from domain.clinical.outcomes import CONFUSION, CURVES, FLOW, SCORES, SLICES, OutcomeModelSettings, probability_column
from domain.clinical.prediction import aggregate_labels, choose_c
from domain.clinical.settings import LearningSettings

if TYPE_CHECKING:
    from domain.clinical.training import OutcomeTask, Split


@dataclass(frozen=True)
class HeldOut:
    """The validation and test admissions as the model reads them, their chunks read once.

    how: what the validation admissions settled.
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

    def column(self, name: str) -> "pd.Series[Any]":
        """Of the test admissions."""
        notes = self.task.notes
        return notes.table.loc[notes.is_in("test"), name]

    @property
    def subjects(self) -> NDArray[Any]:
        """Whose each test admission is."""
        return self.column("subject_id").to_numpy()

    def scores(self, name: str) -> pd.DataFrame:
        """The probabilities of a split beside what came of its admissions."""
        notes, how = self.task.notes, self.how
        validation, test = (self.validation, self.validation_probabilities), (self.test, self.test_probabilities)
        split, found = test if name == "test" else validation
        columns: dict[str, Any] = {"hadm_id": notes.table.loc[notes.is_in(name), "hadm_id"].to_numpy()}
        if how.outcome.kind == "binary":
            columns |= {"probability": found[:, 0], "calibrated": calibrated(found[:, 0], how.slope, how.intercept)}
        else:
            columns |= {probability_column(label): found[:, place] for place, label in enumerate(how.labels)}
        columns["n_chunks"] = np.bincount(split.admissions, minlength=split.count).astype(np.int32)
        columns["unknown_share"] = notes.table.loc[notes.is_in(name), "unknown_share"].to_numpy()
        columns |= {label: split.labels[:, place] for place, label in enumerate(how.labels)}
        return pd.DataFrame(columns | {"split": name})

    def counts(self) -> Metrics:
        """How many admissions and chunks there are, and what was settled."""
        notes, tokens, how = self.task.notes, self.task.tokens, self.how
        splits = {f"admissions/{name}": int(notes.is_in(name).sum()) for name in SPLITS}
        settled: Metrics = {"c": how.c}
        if how.outcome.kind == "binary":
            settled |= {"recalibration_slope": how.slope, "recalibration_intercept": how.intercept}
            settled |= {"threshold": how.threshold}
            settled |= {"threshold_alarms": how.alarms, "threshold_alarms_right": how.alarms_right}
        return {**splits, "chunks": len(tokens), "lost_chunks": tokens.lost_chunks, **settled}

    def baselines(self, permutations: int = 0, seed: int = 0) -> Iterator[Baseline]:
        """Each baseline, with the null test of so many permutations where the labels are of one kind."""
        return baselines(self.task.notes, permutations, seed)


def read_held_out(task: "OutcomeTask", settings: LearningSettings) -> HeldOut:
    """Reads the chunks of both splits once, and settles c, recalibration and threshold on validation."""
    validation, test = task.of_split("validation"), task.of_split("test")
    with progress("reading chunks", len(validation.chunks) + len(test.chunks), "chunks") as bar:
        of_validation, of_test = (task.probabilities(each, bar) for each in (validation, test))
    how = _settled(task.outcome_model.settings, settings, validation, of_validation)
    validation_probabilities = aggregate_labels(of_validation, validation.admissions, validation.count, how)
    test_probabilities = aggregate_labels(of_test, test.admissions, test.count, how)
    return HeldOut(task, how, validation, test, validation_probabilities, test_probabilities, of_test)


def _settled(
    how: OutcomeModelSettings, settings: LearningSettings, split: "Split", of_chunks: Floats
) -> OutcomeModelSettings:
    """c, and of a task that is true or not recalibration and threshold, all from validation."""

    def found(c: float) -> Floats:
        return aggregate_labels(of_chunks, split.admissions, split.count, how.model_copy(update={"c": c}))

    if settings.c == "chosen":
        how = how.model_copy(update={"c": choose_c(lambda c: mean_of_known(auroc_of, found(c), split.labels))})
    if how.outcome.kind != "binary":
        return how
    probability, outcomes = found(how.c)[:, 0], split.labels[:, 0]
    found_alarms = alarm_threshold(probability, outcomes, settings.alarm_precision, settings.minimum_alarms)
    settled: dict[str, Any] = {"alarm_precision": settings.alarm_precision}
    if found_alarms is not None:
        settled |= {"threshold": found_alarms.threshold}
        settled |= {"alarms": found_alarms.alarms, "alarms_right": found_alarms.right}
    return how.model_copy(update=settled | fit_recalibration(probability, outcomes)._asdict())


OURS = "model"


def judge(task: "OutcomeTask", settings: LearningSettings, output: Path, risks: Floats | None = None) -> Metrics:
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
