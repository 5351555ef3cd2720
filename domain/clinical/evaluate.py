"""Evaluates a trained model: c, recalibration and alarm threshold from validation, metrics on test, files beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bertrelay.evaluation.statistics import with_intervals
from bertrelay.files import write_json
from bertrelay.progress import log, spinner
from bertrelay.stage import Metrics
from domain.clinical.aggregation import aggregate, aggregate_labels, choose_c
from domain.clinical.baselines import Baseline, baselines
from domain.clinical.calibration import Bins, calibrated, fit_recalibration
from domain.clinical.chunks import ChunkTokens
from domain.clinical.cohort import CHARACTERISTICS, SPLITS, write_parquet
from domain.clinical.groups import FEWEST, GROUPED_BY, confusion, groups_of, label_slices, slices
from domain.clinical.metrics import (
    Flags,
    Floats,
    Predicted,
    PredictedLabels,
    Ranking,
    alarm_metrics,
    alarm_threshold,
    auroc_of,
    best_metrics,
    binary_metrics,
    label_metrics,
    mean_of_known,
    metric_differences,
    permutation_metrics,
    threshold_at_precision,
)
from domain.clinical.model import OutcomeModel, save_model
from domain.clinical.outcomes import LabelledNotes, read_columns
from domain.clinical.settings import CONFUSION, CURVES, FLOW, SCORES, SLICES, LearningSettings, OutcomeModelSettings

POINTS = 200
STEPS_OF_READING = 10


@dataclass(frozen=True)
class ScoredSplit:
    """The admissions of a split, with the probabilities of their chunks, (chunks, labels).

    table: of the notes, a row for each admission. labels: whether each is true, (admissions, labels).
    admissions: whose each chunk is, by its row, (chunks,).
    """

    name: str
    table: pd.DataFrame
    labels: Flags
    admissions: NDArray[np.int64]
    of_chunks: Floats

    def probabilities(self, how: OutcomeModelSettings) -> Floats:
        """Of each label, (admissions, labels)."""
        return aggregate_labels(self.of_chunks, self.admissions, len(self.labels), how)

    def scores(self, how: OutcomeModelSettings) -> pd.DataFrame:
        """The probabilities beside the outcomes."""
        of_labels = self.probabilities(how)
        columns: dict[str, Any] = {"hadm_id": self.table["hadm_id"].to_numpy()}
        if how.outcome.kind == "binary":
            recalibrated = calibrated(of_labels[:, 0], how.slope, how.intercept)
            columns |= {"probability": of_labels[:, 0], "calibrated": recalibrated}
        else:
            columns |= {f"probability/{label}": p for label, p in zip(how.labels, of_labels.T, strict=True)}
        columns["n_chunks"] = np.bincount(self.admissions, minlength=len(self.labels)).astype(np.int32)
        columns |= {name: self.table[name].to_numpy() for name in ("unknown_share", "subwords_per_word")}
        return pd.DataFrame(columns | dict(zip(how.labels, self.labels.T, strict=True)) | {"split": self.name})


def evaluate_model(
    model: OutcomeModel,
    notes: LabelledNotes,
    tokens: ChunkTokens,
    validation: ScoredSplit,
    test: ScoredSplit,
    settings: LearningSettings,
    output: Path,
    risks: Floats | None = None,
) -> Metrics:
    """Fits what validation decides, writes the model, its scores and all else, and returns the metrics of test.

    tokens: of the chunks of `notes`. risks: the true ones, of all stays of `notes`, where they are known.
    """
    with spinner("calibrating"):
        how = _fitted(model.settings, settings, validation)
    save_model(replace(model, settings=how), output / "model")
    write_parquet(output / SCORES, pd.concat([validation.scores(how), test.scores(how)]))
    notes.flow.write(output / FLOW)
    is_binary = how.outcome.kind == "binary"
    others = list(baselines(notes, settings.permutations if is_binary else 0, settings.seed))
    if is_binary:
        metrics = _evaluate_binary(validation, test, how, others, settings, output)
        if risks is not None:
            subjects = test.table["subject_id"].to_numpy()
            metrics |= best_metrics(subjects, test.labels[:, 0], risks[notes.is_in("test")])
    else:
        metrics = _evaluate_labels(test, how, others, output)
    counts = {f"admissions/{name}": int(notes.is_in(name).sum()) for name in SPLITS}
    metrics |= {**counts, "chunks": len(tokens), "lost_chunks": tokens.lost_chunks, "c": how.c}
    if not is_binary:
        return metrics
    metrics |= {"recalibration_slope": how.slope, "recalibration_intercept": how.intercept, "threshold": how.threshold}
    return metrics | {"threshold_alarms": how.alarms, "threshold_alarms_right": how.alarms_right}


def _fitted(how: OutcomeModelSettings, settings: LearningSettings, validation: ScoredSplit) -> OutcomeModelSettings:
    """c, and of a binary task recalibration and threshold, all from validation."""

    def auroc_with(c: float) -> float | None:
        return mean_of_known(auroc_of, validation.probabilities(how.model_copy(update={"c": c})), validation.labels)

    if settings.c == "chosen":
        how = how.model_copy(update={"c": choose_c(auroc_with)})
    if how.outcome.kind != "binary":
        return how
    given = validation.probabilities(how)[:, 0], validation.labels[:, 0]
    decided = alarm_threshold(*given, settings.alarm_precision, settings.minimum_alarms)
    decided |= {"prevalence": float(validation.labels[:, 0].mean())}
    decided |= {"alarm_precision": settings.alarm_precision, **fit_recalibration(*given)._asdict()}
    return how.model_copy(update=decided)


def of_baseline(name: str, metrics: Metrics) -> Metrics:
    """The metrics under the name of a baseline: `auroc_low` becomes `auroc/tfidf_low`."""
    named: Metrics = {}
    for metric, value in metrics.items():
        base, _, ending = metric.rpartition("_")
        if not metric.startswith(("prevalence", "labels")):
            named[f"{base}/{name}_{ending}" if ending in ("low", "high") else f"{metric}/{name}"] = value
    return named


@spinner("metrics and their intervals")
def _evaluate_binary(
    validation: ScoredSplit,
    test: ScoredSplit,
    how: OutcomeModelSettings,
    others: Sequence[Baseline],
    settings: LearningSettings,
    output: Path,
) -> Metrics:
    outcomes, probability = test.labels[:, 0], test.probabilities(how)[:, 0]
    model = Predicted(
        test.table["subject_id"].to_numpy(), outcomes, probability, calibrated(probability, how.slope, how.intercept)
    )
    held_out = validation.labels[:, 0]
    found = binary_metrics(model, threshold_at_precision(validation.probabilities(how)[:, 0], held_out))
    found |= alarm_metrics(model, how.threshold)
    predicted = {"model": model}
    for baseline in others:
        predicted[baseline.name], metrics = evaluate_baseline(baseline, held_out, model)
        found |= of_baseline(baseline.name, metrics)
    wanted = {"precision": settings.alarm_precision, "minimum": settings.minimum_alarms}
    alarms = {"threshold": how.threshold, "alarms": how.alarms, "right": how.alarms_right}
    about = {"outcome": how.labels[0], "prevalence": float(outcomes.mean()), "alarms": wanted | alarms}
    reading = while_reading(test.of_chunks[:, 0], test.admissions, outcomes, how)
    write_json(output / CURVES, about | curves(predicted) | reading, compact=True)
    file = Path(settings.cohort) / CHARACTERISTICS
    if file.is_file():
        known = read_columns(file, ["hadm_id", "age", *GROUPED_BY]).set_index("hadm_id")
        known = known.reindex(test.table["hadm_id"])
        groups = groups_of(known, test.table["characters"].tolist())
        write_json(output / SLICES, {"slices": slices(groups, model)})
    else:
        log(f"there is no {CHARACTERISTICS} in the cohort: no metrics by groups of patients")
    return found


def evaluate_baseline(baseline: Baseline, held_out: Flags, model: Predicted) -> tuple[Predicted, Metrics]:
    """A baseline on the test admissions of `model`, and its metrics.

    held_out: the outcomes of validation, from which threshold and recalibration come, as the model's do.
    """
    validation, test = baseline.validation[:, 0], baseline.test[:, 0]
    recalibrated = calibrated(test, *fit_recalibration(validation, held_out, baseline.name))
    other = replace(model, probability=test, calibrated=recalibrated)
    metrics = binary_metrics(other, threshold_at_precision(validation, held_out))
    metrics |= metric_differences(model, other)
    if len(baseline.permuted):
        metrics |= permutation_metrics(metrics["auroc"] or 0.0, baseline.permuted)
    return other, metrics


@spinner("metrics and their intervals")
def _evaluate_labels(test: ScoredSplit, how: OutcomeModelSettings, others: Sequence[Baseline], output: Path) -> Metrics:
    subjects = test.table["subject_id"].to_numpy()
    model = PredictedLabels(subjects, test.labels, test.probabilities(how), how.outcome.kind)
    metrics = label_metrics(model)
    if metrics["labels_left_out"]:
        log(
            f"{how.task}: {metrics['labels_left_out']:.0f} of {len(how.labels)} labels are true of no test admission "
            "or of all of them; they have no AUROC and are left out of the macro mean"
        )
    for baseline in others:
        metrics |= of_baseline(baseline.name, label_metrics(replace(model, probabilities=baseline.test)))
    write_json(output / SLICES, {"slices": label_slices(how.task, how.labels, model)})
    if how.outcome.kind == "multi-class":
        write_json(output / CONFUSION, {"labels": how.labels, "rows": confusion(model)})
    return metrics


def curves(models: Mapping[str, Predicted]) -> dict[str, Any]:
    """ROC, precision-recall and calibration curves of each model, by name.

    A calibration curve has (mean probability, share of positives, admissions, low and high of that share) of each bin
    that is not empty: a 95 % interval, None where there is none. The borders of the bins stay; who is in them is
    resampled.
    """
    drawn: dict[str, Any] = {"roc": {}, "precision_recall": {}, "calibration": {}}

    def thinned(across: Floats, up: Floats) -> list[tuple[float, float]]:
        chosen = np.unique(np.linspace(0, len(across) - 1, POINTS).round().astype(np.int64))  # the last among them
        return list(zip(across[chosen].tolist(), up[chosen].tolist(), strict=True))

    for name, model in models.items():
        hits, misses = Ranking(model.probability, model.outcomes).counts(np.ones(len(model.outcomes)))
        recall, false_alarms = hits / hits[-1], misses / misses[-1]
        drawn["roc"][name] = [(0.0, 0.0), *thinned(false_alarms, recall)]
        drawn["precision_recall"][name] = thinned(recall, hits / (hits + misses))
        for ending, probability in (("", model.probability), (", calibrated", model.calibrated)):
            if probability is not None:
                bins = Bins(probability, model.outcomes)
                found = with_intervals(bins.shares, model.subjects)
                bounds = [(found.get(f"{number}_low"), found.get(f"{number}_high")) for number in bins.numbers]
                points = [(*point, *interval) for point, interval in zip(bins.points, bounds, strict=True)]
                drawn["calibration"][name + ending] = points
    return drawn


def while_reading(
    probabilities: Floats, admissions: NDArray[np.int64], outcomes: Flags, settings: OutcomeModelSettings
) -> dict[str, Any]:
    """The score as more of the note is read, of admissions with several chunks.

    `while_reading`: at each step the AUROC, and the mean P of those with the label, by its name, and of others.
    `read_in_parts`: how many have several chunks. Both None where those with the label, or the others, are too few to
    be published.
    probabilities, admissions: of chunks, those of an admission in order; of `share` of them as many are read as make
    up at least that.
    """
    counts = np.bincount(admissions, minlength=len(outcomes))
    is_long = counts > 1  # (admissions,)
    if min((is_long & outcomes).sum(), (is_long & ~outcomes).sum()) < FEWEST:
        return {"while_reading": None, "read_in_parts": None}
    order = np.argsort(admissions, kind="stable")
    places = np.empty(len(admissions), np.int64)
    places[order] = np.concatenate([np.arange(count) for count in counts])
    groups = {settings.labels[0]: is_long & outcomes, "others": is_long & ~outcomes}
    steps: list[dict[str, float | None]] = []
    for step in range(1, STEPS_OF_READING + 1):
        is_read = places * STEPS_OF_READING < step * counts[admissions]
        read = probabilities[is_read], admissions[is_read]
        so_far = aggregate(*read, len(outcomes), settings.aggregation, settings.c)
        means = {name: float(so_far[group].mean()) for name, group in groups.items()}
        auroc_so_far = auroc_of(so_far[is_long], outcomes[is_long])
        steps.append({"share": step / STEPS_OF_READING, "auroc": auroc_so_far, **means})
    return {"while_reading": steps, "read_in_parts": int(is_long.sum())}
