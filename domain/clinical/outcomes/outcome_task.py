"""Chunks and the labels of their admissions, as the training loop asks for them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from bertrelay.hardware import resolve_precision
from bertrelay.progress import Bar
from bertrelay.stage import Metrics
from bertrelay.training.batches import Items
from bertrelay.training.loop import Batch
from domain.clinical.notes.chunk_tokens import ChunkTokens
from domain.clinical.outcomes.aggregation import aggregate_labels
from domain.clinical.outcomes.classifier import OutcomeModel
from domain.clinical.outcomes.labelled_notes import LabelledNotes
from domain.clinical.outcomes.measures import Flags, Floats, auprc_of, auroc_of, mean_of_known
from domain.clinical.outcomes.outcome import Kind
from domain.clinical.outcomes.outcome_settings import LearningSettings
from domain.clinical.outcomes.prediction import chunk_log_odds

CRITERION = "dev/auroc"


@dataclass(frozen=True)
class Split:
    """The chunks of a split, whose they are by numbers from 0, and the labels of those admissions, (…, labels)."""

    chunks: NDArray[np.int64]
    admissions: NDArray[np.int64]
    labels: Flags

    @property
    def count(self) -> int:
        """Of admissions."""
        return len(self.labels)


class OutcomeTask:
    """Labels of chunks, as the training loop asks for them; an item is a chunk of a train admission."""

    criterion = CRITERION

    def __init__(
        self, model: OutcomeModel, settings: LearningSettings, notes: LabelledNotes, tokens: ChunkTokens
    ) -> None:
        self.model, self.outcome_model = model.network, model
        self.notes, self.tokens = notes, tokens
        self.precision = settings.precision
        self.chunks = tokens.of(notes.is_in("train"))
        self.weights = chunk_weights(tokens.admissions[self.chunks], settings.share_weight)
        self.lengths = self.padded_lengths = tokens.lengths[self.chunks]

    def collate(self, items: Items, epoch: int) -> Batch:  # noqa: ARG002 (nothing is random here)
        """The chunks `items`, their labels and weights."""
        chunks = self.chunks[items]
        width = int(self.tokens.lengths[chunks].max())
        ids, mask = self.tokens.batch(chunks, width, self.outcome_model.pad_id)
        labels = self.notes.labels[self.tokens.admissions[chunks]].astype(np.float32)  # (chunks, labels)
        inputs = {
            "input_ids": ids,
            "attention_mask": mask,
            "labels": torch.from_numpy(labels),
            "weights": torch.from_numpy(self.weights[items].astype(np.float32)),
        }
        return Batch(inputs, {self.notes.outcome.name: len(items)})

    def loss(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """The negative log-likelihood of the labels, in nats, summed over chunks by their weights."""
        inputs = batch.inputs
        logits = model(inputs["input_ids"], inputs["attention_mask"])  # (chunks, labels)
        of_chunks = unlikeliness(logits, inputs["labels"], self.notes.outcome.kind)  # (chunks,)
        return {self.notes.outcome.name: (inputs["weights"] * of_chunks).sum()}

    def evaluate(self) -> Metrics:
        """AUROC and average precision of the validation admissions, of several labels their means."""
        split, how = self.of_split("validation"), self.outcome_model.settings
        found = aggregate_labels(self.probabilities(split), split.admissions, split.count, how)
        measures = {CRITERION: auroc_of, "dev/auprc": auprc_of}
        return {name: mean_of_known(measure, found, split.labels) for name, measure in measures.items()}

    def of_split(self, split: str) -> Split:
        """The chunks of a split and its labels."""
        is_in = self.notes.is_in(split)
        chunks = self.tokens.of(is_in)
        numbers = (np.cumsum(is_in) - 1)[self.tokens.admissions[chunks]]
        return Split(chunks, numbers, self.notes.labels[is_in])

    def probabilities(self, split: Split, bar: Bar | None = None) -> Floats:
        """The probability of each label of the chunks of `split`, (chunks, labels)."""
        precision = resolve_precision(self.precision, self.outcome_model.network.device)
        found: Floats = expit(chunk_log_odds(self.outcome_model, self.tokens, split.chunks, precision, bar=bar))
        return found


def unlikeliness(logits: Tensor, labels: Tensor, kind: Kind) -> Tensor:
    """The negative log-likelihood of the labels of each chunk, in nats; both (chunks, labels) to (chunks,)."""
    if kind == "multi-class":
        return cross_entropy(logits, labels, reduction="none")
    return binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(1)


def chunk_weights(admissions: NDArray[np.int64], shared: bool) -> Floats:
    """What each chunk weighs in training, 1 on average: all alike, or the chunks of each admission 1 together."""
    if not shared:
        return np.ones(len(admissions))
    _, numbers, counts = np.unique(admissions, return_inverse=True, return_counts=True)
    return (len(admissions) / len(counts)) / counts[numbers]
