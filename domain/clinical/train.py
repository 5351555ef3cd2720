"""The stages `domain.readmission` and `domain.outcome`: a BERT learns from notes to predict an outcome.

They write `model/`, `scores.parquet` (validation and test), `slices.json`, `flow.csv`, and of a binary task
`curves.json`, of one with classes `confusion.json`.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from bertrelay.data.records import canonical_id
from bertrelay.device import ComputePrecision, default_device
from bertrelay.errors import RequestError
from bertrelay.evaluation.statistics import none_if_nan
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup
from bertrelay.progress import progress, spinner
from bertrelay.report import model_name
from bertrelay.stage import Metrics, StageContext
from bertrelay.training.batches import Items
from bertrelay.training.loop import train
from bertrelay.training.task import Batch
from domain.clinical.aggregation import choose_c
from domain.clinical.baselines import baselines
from domain.clinical.chunks import ChunkTokens
from domain.clinical.evaluate import Evaluation, ScoredSplit, cut_notes, fit_on_validation, score_split
from domain.clinical.metrics import Floats, auprc_of, auroc_of, best_metrics, mean_of_known
from domain.clinical.model import OutcomeModel, save_model, start_model
from domain.clinical.outcomes import LabelledNotes, read_labelled_notes
from domain.clinical.settings import (
    OUTCOMES,
    PAPERS_C,
    Kind,
    LearningSettings,
    ModelDescription,
    OutcomeSettings,
    ReadmissionSettings,
)

CRITERION = "validation/auroc"


class OutcomeTask:
    """Labels of chunks, as the training loop asks for them; an item is a chunk of a train admission."""

    criterion = CRITERION

    def __init__(
        self,
        model: OutcomeModel,
        settings: LearningSettings,
        notes: LabelledNotes,
        tokens: ChunkTokens,
        precision: ComputePrecision,
    ) -> None:
        self.model, self.outcome_model = model.network, model
        self.notes, self.tokens = notes, tokens
        self.precision = precision
        self.chunks = np.flatnonzero(notes.is_in("train")[tokens.admissions])
        self.weights = chunk_weights(tokens.admissions[self.chunks], settings.share_weight)
        self.lengths = self.padded_lengths = tokens.lengths[self.chunks]

    def collate(self, items: Items, epoch: int) -> Batch:  # noqa: ARG002 (nothing is random here)
        """The chunks `items`, their labels and weights."""
        chunks = self.chunks[items]
        width = int(self.tokens.lengths[chunks].max())
        ids, mask = self.tokens.batch(chunks, width, self.outcome_model.pad_id)
        labels = torch.from_numpy(self.notes.labels[self.tokens.admissions[chunks]]).float()  # (chunks, labels)
        weights = torch.from_numpy(self.weights[items]).float()
        inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels, "weights": weights}
        return Batch(inputs, {self.notes.outcome.name: len(items)})

    def loss(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """The negative log-likelihood of the labels, in nats, summed over chunks by their weights."""
        inputs = batch.inputs
        logits = model(inputs["input_ids"], inputs["attention_mask"])  # (chunks, labels)
        of_chunks = negative_log_likelihood(logits, inputs["labels"], self.notes.outcome.kind)  # (chunks,)
        return {self.notes.outcome.name: (inputs["weights"] * of_chunks).sum()}

    def evaluate(self, process_group: ProcessGroup = SINGLE_PROCESS) -> Metrics:
        """AUROC and average precision of the validation admissions, of several labels their means."""
        validation = score_split(
            self.outcome_model,
            self.notes,
            self.tokens,
            "validation",
            precision=self.precision,
            process_group=process_group,
        )
        probabilities = validation.probabilities(self.outcome_model.description)
        metrics = {CRITERION: auroc_of, "validation/auprc": auprc_of}
        return {name: mean_of_known(metric, probabilities, validation.labels) for name, metric in metrics.items()}


def negative_log_likelihood(logits: Tensor, labels: Tensor, kind: Kind) -> Tensor:
    """The negative log-likelihood of the labels of each chunk, in nats; both (chunks, labels) to (chunks,)."""
    if kind == "multi-class":
        return cross_entropy(logits, labels, reduction="none")
    return binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(1)


def chunk_weights(admissions: NDArray[np.int64], shared: bool) -> Floats:
    """The weight of each chunk in training, (chunks,), 1 on average: equal, or of equal sum in each admission."""
    if not shared:
        return np.ones(len(admissions))
    _, numbers, counts = np.unique(admissions, return_inverse=True, return_counts=True)
    return (len(admissions) / len(counts)) / counts[numbers]


def run(settings: ReadmissionSettings, context: StageContext) -> Metrics:
    """30-day readmission: trains a model, fits c, recalibration and threshold on validation, and evaluates it on test.

    Raises RequestError for notes and cohorts that cannot be trained on, and for a base that cannot classify.
    """
    notes = read_labelled_notes(Path(settings.notes), Path(settings.cohort))
    risks = None if settings.risk is None else _true_risks(notes, Path(settings.risk))
    return _trained(notes, settings, context, risks)


def run_outcome(settings: OutcomeSettings, context: StageContext) -> Metrics:
    """The other tasks, from early notes. Raises RequestError as `run` does, and for notes that leak the outcome."""
    outcome = OUTCOMES[settings.task]
    notes = read_labelled_notes(Path(settings.notes), Path(settings.cohort), outcome, settings.groups)
    return _trained(notes, settings, context)


def _trained(
    notes: LabelledNotes, settings: LearningSettings, context: StageContext, risks: Floats | None = None
) -> Metrics:
    if settings.control == "shuffled_labels":
        notes = notes.with_shuffled_labels(settings.seed)
    description = ModelDescription(
        task=notes.outcome.name,
        labels=list(notes.names),
        **notes.about,
        c=PAPERS_C if settings.c == "chosen" else settings.c,
        **{name: getattr(settings, name) for name in ("pooling", "chunking", "aggregation")},
    )
    model = start_model(settings.base, description, dropout=settings.dropout, seed=settings.seed, cache=context.cache)
    model.network.to(default_device())
    notes, tokens = cut_notes(model, notes, context)
    usual = none_if_nan(float(notes.table["subwords_per_word"][notes.is_in("train")].median(skipna=False)))
    model = replace(model, description=description.model_copy(update={"subwords_per_word": usual}))
    precision = context.precision(settings.precision)
    task = OutcomeTask(model, settings, notes, tokens, precision)
    metrics = train(task, settings, context.output, context.work, precision)
    if not context.process_group.is_main:
        return {}
    with progress("reading chunks", len(tokens) - len(task.chunks), "chunks") as bar:
        score = partial(score_split, model, notes, tokens, precision=precision, bar=bar)
        validation, test = score("validation"), score("test")
    with spinner("calibrating"):
        fitted = _fitted(model.description, validation, settings)
    save_model(replace(model, description=fitted), context.output / "model")
    permutations = settings.permutations if fitted.outcome.kind == "binary" else 0
    others = list(baselines(notes, permutations, settings.seed))
    evaluation = Evaluation(notes, tokens, validation, test, fitted, settings.minimum_alarms)
    tested = evaluation.write(Path(settings.cohort), context.output, others)
    if risks is not None:
        tested |= best_metrics(test.table["subject_id"].to_numpy(), test.labels[:, 0], risks[notes.is_in("test")])
    evaluation.report(tested, context, model_name(settings.base))
    return tested | metrics  # those of test come first


def _fitted(model: ModelDescription, validation: ScoredSplit, settings: LearningSettings) -> ModelDescription:
    """The model with the c that is best on validation, and of a binary task recalibration and threshold."""

    def auroc_with(c: float) -> float | None:
        return mean_of_known(auroc_of, validation.probabilities(model.model_copy(update={"c": c})), validation.labels)

    if settings.c == "chosen":
        model = model.model_copy(update={"c": choose_c(auroc_with)})
    if model.outcome.kind != "binary":
        return model
    return fit_on_validation(model, validation, settings.alarm_precision, settings.minimum_alarms)


def _true_risks(notes: LabelledNotes, file: Path) -> Floats:
    """The true risk of each stay, (stays,). Raises RequestError where the table lacks that of a test stay."""
    try:
        table = pd.read_csv(file, dtype={"hadm_id": str, "true_risk": float}, usecols=["hadm_id", "true_risk"])
    except (OSError, ValueError) as error:
        raise RequestError(
            f"risk: expected a CSV file with the columns hadm_id and true_risk, found something else in {file} "
            f"({type(error).__name__})"
        ) from None  # pandas quotes the value of a cell
    try:
        by_id = dict(zip(table["hadm_id"].map(canonical_id), table["true_risk"], strict=True))
    except ValueError as error:
        raise RequestError(f"risk: expected ids of admissions in {file}, found {error}") from None
    risks = np.array(notes.table["hadm_id"].map(by_id), np.float64)
    missing = int(np.isnan(risks[notes.is_in("test")]).sum())
    if missing:
        raise RequestError(
            f"risk: expected the true risk of every test admission, found none of {missing:,} in {file}. "
            "Give the one of the same hospital."
        )
    return risks
