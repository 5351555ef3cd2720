"""The stage `domain.outcome-evaluate`, and all that it shares with the end of a training.

Validation admissions recalibrate a model and choose its alarm threshold; test admissions give the metrics.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit

from bertrelay.device import ComputePrecision, default_device
from bertrelay.errors import RequestError
from bertrelay.files import write_json
from bertrelay.fingerprint import Digests, fingerprint
from bertrelay.model.tokenizer import plain_rules
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, main_first, map_over_processes
from bertrelay.progress import Bar, log, progress, spinner
from bertrelay.report import write_report
from bertrelay.stage import Metrics, StageContext, run_alone
from domain.clinical.aggregation import aggregate_labels
from domain.clinical.baselines import Baseline
from domain.clinical.calibration import Recalibration, calibrated, fit_recalibration
from domain.clinical.chunks import (
    FORMAT,
    Chunker,
    ChunkTokens,
    stored_chunk_tokens,
    subwords_per_word,
    unknown_shares,
    warn_of_unknown,
)
from domain.clinical.groups import GROUPED_BY, confusion, groups_of, label_slices, slices
from domain.clinical.metrics import (
    Flags,
    Floats,
    Predicted,
    PredictedLabels,
    alarm_metrics,
    alarm_threshold,
    binary_metrics,
    curves,
    label_metrics,
    metric_differences,
    permutation_metrics,
    threshold_at_precision,
    while_reading,
)
from domain.clinical.model import OutcomeModel, chunk_log_odds, load_model, save_model
from domain.clinical.outcomes import RECORDED, LabelledNotes, Resplit, read_labelled_notes
from domain.clinical.report import outcome_report
from domain.clinical.settings import (
    CONFUSION,
    CURVES,
    FLOW,
    SCORES,
    SLICES,
    ModelDescription,
    OutcomeEvaluateSettings,
)
from domain.clinical.stage_files import CHARACTERISTICS, SPLITS, read_columns, write_parquet

RECALIBRATED = "recalibrated"


def evaluate_outcome(settings: OutcomeEvaluateSettings, folder: Path) -> Metrics:
    """Evaluates a trained model on other labelled notes, writes into `folder`, and returns the metrics.

    Raises RequestError as `run` does.
    """
    return run_alone(run, settings, folder, sensitive=True)


def run(settings: OutcomeEvaluateSettings, context: StageContext) -> Metrics:
    """Writes `scores.parquet`, `slices.json`, `flow.csv`, `curves.json` or `confusion.json`, and on request `model/`.

    The main process does it alone. Raises RequestError for notes or cohorts that cannot be used, for notes of another
    kind than the model's, and for a model of several labels that is to be saved, as nothing of it changes.
    """
    precision = context.precision(settings.precision)
    if not context.process_group.is_main:
        return {}
    model = load_model(settings.model, cache=context.cache)
    shipped, is_binary = model.description, model.description.is_binary
    if settings.save and not is_binary:
        raise RequestError(
            f"save: expected a model of a binary task, which can be recalibrated, found one that predicts "
            f"{shipped.task} in {settings.model}. Leave the setting out; its folder stays as it is."
        )
    is_split = is_binary and (settings.split == "cohort" or settings.validation_share > 0)
    resplit = None
    if settings.split == "by-subject":
        resplit = Resplit(settings.validation_share if is_binary else 0.0, settings.split_key)
    splits = ["validation", "test"] if is_split else ["test"]
    notes = read_labelled_notes(
        Path(settings.notes), Path(settings.cohort), shipped.outcome, shipped.labels, splits, resplit
    )
    check_same_notes(shipped, notes)
    model.network.to(default_device())
    notes, tokens = cut_notes(model, notes, context)
    is_scored = np.logical_or.reduce([notes.is_in(split) for split in splits])
    with progress("reading chunks", int(is_scored[tokens.admissions].sum()), "chunks") as bar:
        score = partial(score_split, model, notes, tokens, precision=precision, batch_tokens=settings.batch_tokens)
        test = score("test", bar=bar)
        validation = score("validation", bar=bar) if is_split else None
    fitted = shipped
    if validation:
        alarm_precision = settings.alarm_precision or shipped.alarm_precision
        fitted = fit_on_validation(shipped, validation, alarm_precision, settings.minimum_alarms)
    evaluation = Evaluation(notes, tokens, validation, test, fitted, settings.minimum_alarms, shipped)
    metrics = evaluation.write(Path(settings.cohort), context.output)
    evaluation.report(metrics, context)
    if settings.save:
        save_model(replace(model, description=fitted), context.output / "model")
    return metrics


def check_same_notes(shipped: ModelDescription, notes: LabelledNotes) -> None:
    """Raises RequestError for notes and labels that were made otherwise than those of the model's training.

    Facts that the model or the notes do not name are listed in the log.
    """
    trained_on = {name: value for name in RECORDED if (value := getattr(shipped, name)) is not None}
    names = [name for name in RECORDED if name in trained_on or name in notes.about]
    unnamed = [name for name in names if name not in trained_on or name not in notes.about]
    differences = [
        f"{name} {notes.about[name]!r} (the model's: {trained_on[name]!r})"
        for name in names
        if name not in unnamed and notes.about[name] != trained_on[name]
    ]
    if differences:
        raise RequestError(
            f"notes: expected notes and labels as the model was trained on, found in {notes.file.parent} and its "
            f"cohort {'; '.join(differences)}. Make them by domain.cohort and domain.notes with the settings of the "
            "model's own, or take a model of such notes."
        )
    if unnamed:
        log(f"not compared with the notes of the training, as one of both does not name it: {', '.join(unnamed)}")


def cut_notes(model: OutcomeModel, notes: LabelledNotes, context: StageContext) -> tuple[LabelledNotes, ChunkTokens]:
    """The chunks of `notes`, from the cache of the run, and `notes` with unknown_share and subwords_per_word.

    Raises RequestError where the model cannot read a text at all.
    """
    chunker = Chunker(model.tokenizer, model.description.chunking)
    rules, chunking = plain_rules(model.tokenizer).to_str(), model.description.chunking.model_dump()
    parts = {"notes": Digests().of_file(notes.file), "rules": rules, "chunking": chunking}
    folder = context.cache.folder / "chunks" / fingerprint(parts | {"format": FORMAT})[:32]
    with main_first(context.process_group):
        tokens = stored_chunk_tokens(
            notes.texts, notes.table["characters"].tolist(), chunker, folder, context.engine_before_training
        )
    unknown, is_unreadable = unknown_shares(tokens, len(notes), chunker)
    if len(unread := np.flatnonzero(is_unreadable)):
        raise RequestError(
            "notes: expected a text that the model can read for every stay, found white space, what its tokenizer "
            f"drops or no word of its vocabulary for {len(unread):,} of {len(notes):,} in {notes.file}, the first in "
            f"row {unread[0] + 1:,}. Leave these notes out, or take a model that knows their language."
        )
    subwords = subwords_per_word(tokens, len(notes), chunker)
    warn_of_unknown(unknown, subwords, model.description.subwords_per_word)
    return replace(notes, table=notes.table.assign(unknown_share=unknown, subwords_per_word=subwords)), tokens


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

    def probabilities(self, description: ModelDescription) -> Floats:
        """The probability of each label, (admissions, labels)."""
        return aggregate_labels(self.of_chunks, self.admissions, len(self.labels), description)

    def scores(self, model: ModelDescription, recalibrated: ModelDescription | None = None) -> pd.DataFrame:
        """The probabilities beside the outcomes; recalibrated: gives the column of that name."""
        of_labels = self.probabilities(model)
        columns: dict[str, Any] = {"hadm_id": self.table["hadm_id"].to_numpy()}
        if model.is_binary:
            columns["probability"] = of_labels[:, 0]
            columns["calibrated"] = model.calibrate(of_labels[:, 0])
            if recalibrated:
                columns[RECALIBRATED] = recalibrated.calibrate(of_labels[:, 0])
        else:
            columns |= {f"probability/{label}": p for label, p in zip(model.labels, of_labels.T, strict=True)}
        columns["n_chunks"] = np.bincount(self.admissions, minlength=len(self.labels)).astype(np.int32)
        columns |= {name: self.table[name].to_numpy() for name in ("unknown_share", "subwords_per_word")}
        return pd.DataFrame(columns | dict(zip(model.labels, self.labels.T, strict=True)) | {"split": self.name})


def score_split(
    model: OutcomeModel,
    notes: LabelledNotes,
    tokens: ChunkTokens,
    split: str,
    *,
    precision: ComputePrecision,
    batch_tokens: int | None = None,
    bar: Bar | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> ScoredSplit:
    """The admissions of `split` with the probabilities of their chunks; tokens: of all `notes`."""
    is_in = notes.is_in(split)
    chunks = np.flatnonzero(is_in[tokens.admissions])
    rows = (np.cumsum(is_in) - 1)[tokens.admissions[chunks]]
    compute = partial(chunk_log_odds, model, tokens, precision=precision, batch_tokens=batch_tokens, bar=bar)
    log_odds = map_over_processes(compute, chunks, process_group)
    return ScoredSplit(split, notes.table[is_in], notes.labels[is_in], rows, expit(log_odds))


def fit_on_validation(
    model: ModelDescription, validation: ScoredSplit, alarm_precision: float, minimum_alarms: int
) -> ModelDescription:
    """The model with the recalibration, alarm threshold and prevalence of `validation`; that of a binary task."""
    probability, outcomes = validation.probabilities(model)[:, 0], validation.labels[:, 0]
    start = Recalibration(model.slope, model.intercept)
    decided: dict[str, Any] = {"threshold": None, "alarms": None, "alarms_right": None}
    decided |= alarm_threshold(probability, outcomes, alarm_precision, minimum_alarms)
    decided |= {"prevalence": float(outcomes.mean()), "alarm_precision": alarm_precision}
    decided |= fit_recalibration(probability, outcomes, start=start)._asdict()
    return model.model_copy(update=decided)


@dataclass(frozen=True)
class Evaluation:
    """Scored admissions, and the model before and after its validation admissions decided on calibration and alarms.

    tokens: of the chunks of `notes`. validation: None where it decided on nothing.
    fitted: the model after it. shipped: that before it, where it was trained on other notes than these.
    """

    notes: LabelledNotes
    tokens: ChunkTokens
    validation: ScoredSplit | None
    test: ScoredSplit
    fitted: ModelDescription
    minimum_alarms: int
    shipped: ModelDescription | None = None

    def write(self, cohort: Path, output: Path, others: Sequence[Baseline] = ()) -> Metrics:
        """Writes the scores, and all else but the model, to `output`, and returns the metrics of test.

        cohort: the folder with characteristics of the admissions. others: baselines for the same notes.
        """
        splits = [split for split in (self.validation, self.test) if split]
        recalibrated = self.fitted if self.shipped and self.validation else None
        tables = [split.scores(self.shipped or self.fitted, recalibrated) for split in splits]
        write_parquet(output / SCORES, pd.concat(tables))
        self.notes.flow.write(output / FLOW)
        is_binary = self.fitted.is_binary
        metrics = self._binary(cohort, output, others) if is_binary else self._labels(output, others)
        sizes = {name: int(self.notes.is_in(name).sum()) for name in SPLITS}
        metrics |= {f"admissions/{name}": size for name, size in sizes.items() if size}
        metrics |= {"chunks": len(self.tokens), "lost_chunks": self.tokens.lost_chunks, "c": self.fitted.c}
        if not is_binary:
            return metrics
        metrics |= {"recalibration_slope": self.fitted.slope, "recalibration_intercept": self.fitted.intercept}
        for column, model in self._thresholds().items():
            of_model = {"": model.threshold, "_alarms": model.alarms, "_alarms_right": model.alarms_right}
            metrics |= in_column(column, {f"threshold{ending}": value for ending, value in of_model.items()})
        return metrics

    def _thresholds(self) -> dict[str, ModelDescription]:
        """The models whose alarm thresholds are evaluated, by the column of their metrics."""
        if not self.shipped:
            return {"": self.fitted}
        return {"": self.shipped} | ({RECALIBRATED: self.fitted} if self.validation else {})

    def _predicted(self) -> Predicted:
        subjects, outcomes = self.test.table["subject_id"].to_numpy(), self.test.labels[:, 0]
        probability, before = self.test.probabilities(self.fitted)[:, 0], None
        if not self.shipped:
            before = probability
        elif self.validation:
            before = self.shipped.calibrate(probability)
        after = self.fitted.calibrate(probability)
        return Predicted(subjects, outcomes, probability, after, before)

    def report(self, metrics: Metrics, context: StageContext, base: str = "") -> None:
        """Writes `report.json`, after `write`. metrics: of test. base: of a model that was trained here, in words."""
        outcome, probabilities = self.fitted.meaning, None
        if self.fitted.is_binary:
            probabilities = self._predicted().calibrated
        report = outcome_report(metrics, context.output, outcome, base=base, probabilities=probabilities)
        write_report(report, context)

    @spinner("metrics and their intervals")
    def _binary(self, cohort: Path, output: Path, others: Sequence[Baseline]) -> Metrics:
        model, held_out, of_held_out = self._predicted(), np.zeros(0, bool), np.zeros(0)
        if self.validation:
            held_out, of_held_out = self.validation.labels[:, 0], self.validation.probabilities(self.fitted)[:, 0]
        metrics = binary_metrics(model, threshold_at_precision(of_held_out, held_out))
        predictions, alarms = {"model": model}, []
        for column, described in self._thresholds().items():
            metrics |= in_column(column, alarm_metrics(model, described.threshold))
            counts = {"threshold": described.threshold, "alarms": described.alarms, "right": described.alarms_right}
            # A model's folder does not say how many alarms its own threshold had to rest on.
            minimum = None if described is self.shipped else self.minimum_alarms
            alarms.append({"column": column, "precision": described.alarm_precision, "minimum": minimum, **counts})
        for baseline in others:
            predictions[baseline.name], of_baseline = evaluate_baseline(baseline, held_out, model)
            metrics |= in_column(baseline.name, of_baseline)
        about = {"outcome": self.fitted.labels[0], "prevalence": float(model.outcomes.mean()), "alarms": alarms}
        reading = while_reading(self.test.of_chunks[:, 0], self.test.admissions, model.outcomes, self.fitted)
        write_json(output / CURVES, about | curves(predictions) | reading, compact=True)
        file = cohort / CHARACTERISTICS
        if file.is_file():
            characteristics = read_columns(file, ["hadm_id", "age", *GROUPED_BY]).set_index("hadm_id")
            characteristics = characteristics.reindex(self.test.table["hadm_id"])
            groups = groups_of(characteristics, self.test.table["characters"].tolist())
            write_json(output / SLICES, {"slices": slices(groups, model)})
        else:
            log(f"there is no {CHARACTERISTICS} in the cohort: no metrics by groups of patients")
        return metrics

    @spinner("metrics and their intervals")
    def _labels(self, output: Path, others: Sequence[Baseline]) -> Metrics:
        subjects, fitted, kind = self.test.table["subject_id"].to_numpy(), self.fitted, self.fitted.outcome.kind
        model = PredictedLabels(subjects, self.test.labels, self.test.probabilities(fitted), kind)
        metrics = label_metrics(model)
        if metrics["labels_left_out"]:
            log(
                f"{fitted.task}: {metrics['labels_left_out']:.0f} of {len(fitted.labels)} labels are true of no test "
                "admission or of all of them; they have no AUROC and are left out of the macro mean"
            )
        for baseline in others:
            metrics |= in_column(baseline.name, label_metrics(replace(model, probabilities=baseline.test)))
        write_json(output / SLICES, {"slices": label_slices(fitted.task, fitted.labels, model)})
        if kind == "multi-class":
            write_json(output / CONFUSION, {"labels": fitted.labels, "rows": confusion(model)})
        return metrics


def in_column(column: str, metrics: Metrics) -> Metrics:
    """The metrics under the name of a column of the report: `auroc_low` becomes `auroc/tfidf_low`."""
    if not column:
        return metrics
    named: Metrics = {}
    for metric, value in metrics.items():
        base, _, ending = metric.rpartition("_")
        if not metric.startswith(("prevalence", "labels")):
            named[f"{base}/{column}_{ending}" if ending in ("low", "high") else f"{metric}/{column}"] = value
    return named


def evaluate_baseline(baseline: Baseline, held_out: Flags, model: Predicted) -> tuple[Predicted, Metrics]:
    """A baseline on the test admissions of `model`, and its metrics.

    held_out: the outcomes of validation, from which threshold and recalibration come, as the model's do.
    """
    validation, test = baseline.validation[:, 0], baseline.test[:, 0]
    recalibrated = calibrated(test, *fit_recalibration(validation, held_out, baseline.name))
    other = replace(model, probability=test, calibrated=recalibrated, uncalibrated=test)
    metrics = binary_metrics(other, threshold_at_precision(validation, held_out))
    metrics |= metric_differences(model, other)
    if len(baseline.permuted):
        metrics |= permutation_metrics(metrics["auroc"] or 0.0, baseline.permuted)
    return other, metrics
