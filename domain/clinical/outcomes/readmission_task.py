"""Chunks and the labels of their admissions, as the training loop asks for them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from bertrelay.batches import Items
from bertrelay.hardware import resolve_precision
from bertrelay.progress import Bar
from bertrelay.stage import Metrics
from bertrelay.training import Batch
from domain.clinical.notes.chunk_tokens import ChunkTokens
from domain.clinical.outcomes.aggregation import aggregate
from domain.clinical.outcomes.classifier import ReadmissionModel
from domain.clinical.outcomes.labelled_notes import LabelledNotes
from domain.clinical.outcomes.measures import Flags, Floats, Ranking, auroc_of, average_precision, known
from domain.clinical.outcomes.prediction import chunk_log_odds
from domain.clinical.outcomes.readmission_settings import ReadmissionSettings

CRITERION = "dev/auroc"


@dataclass(frozen=True)
class Split:
    """The chunks of a split, whose they are by numbers from 0, and the labels of those admissions."""

    chunks: NDArray[np.int64]
    admissions: NDArray[np.int64]
    labels: Flags

    @property
    def count(self) -> int:
        """Of admissions."""
        return len(self.labels)


class ReadmissionTask:
    """Labels of chunks, as the training loop asks for them; an item is a chunk of a train admission."""

    criterion = CRITERION

    def __init__(
        self, model: ReadmissionModel, settings: ReadmissionSettings, notes: LabelledNotes, tokens: ChunkTokens
    ) -> None:
        self.model, self.readmission_model = model.network, model
        self.notes, self.tokens = notes, tokens
        self.precision = resolve_precision(settings.precision)
        self.chunks = tokens.of(notes.is_in("train"))
        self.weights = chunk_weights(tokens.admissions[self.chunks], settings.share_weight)
        self.lengths = self.padded_lengths = tokens.lengths[self.chunks]

    def collate(self, items: Items, epoch: int) -> Batch:  # noqa: ARG002 (nothing is random here)
        """The chunks `items`, their labels and weights."""
        chunks = self.chunks[items]
        width = int(self.tokens.lengths[chunks].max())
        ids, mask = self.tokens.batch(chunks, width, self.readmission_model.pad_id)
        labels = self.notes.readmitted[self.tokens.admissions[chunks]].astype(np.float32)
        inputs = {
            "input_ids": ids,
            "attention_mask": mask,
            "labels": torch.from_numpy(labels),
            "weights": torch.from_numpy(self.weights[items].astype(np.float32)),
        }
        return Batch(inputs, {"readmission": len(items)})

    def loss(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """The negative log-likelihood of the labels, in nats, summed over chunks by their weights."""
        inputs = batch.inputs
        log_odds = model(inputs["input_ids"], inputs["attention_mask"])  # (chunks,)
        weights, labels = inputs["weights"], inputs["labels"]
        return {"readmission": binary_cross_entropy_with_logits(log_odds, labels, weights, reduction="sum")}

    def evaluate(self) -> Metrics:
        """AUROC and average precision of the validation admissions."""
        split = self.of_split("validation")
        how = self.readmission_model.settings
        found = aggregate(self.probabilities(split), split.admissions, split.count, how.aggregation, how.c)
        auprc = known(average_precision(*Ranking(found, split.labels).counts(np.ones(split.count))))
        return {CRITERION: auroc_of(found, split.labels), "dev/auprc": auprc}

    def of_split(self, split: str) -> Split:
        """The chunks of a split and its labels."""
        is_in = self.notes.is_in(split)
        chunks = self.tokens.of(is_in)
        numbers = (np.cumsum(is_in) - 1)[self.tokens.admissions[chunks]]
        return Split(chunks, numbers, self.notes.readmitted[is_in])

    def probabilities(self, split: Split, bar: Bar | None = None) -> Floats:
        """The probability of each chunk of `split`, (chunks,)."""
        found: Floats = expit(
            chunk_log_odds(self.readmission_model, self.tokens, split.chunks, self.precision, bar=bar)
        )
        return found


def chunk_weights(admissions: NDArray[np.int64], shared: bool) -> Floats:
    """What each chunk weighs in training, 1 on average: all alike, or the chunks of each admission 1 together."""
    if not shared:
        return np.ones(len(admissions))
    _, numbers, counts = np.unique(admissions, return_inverse=True, return_counts=True)
    return (len(admissions) / len(counts)) / counts[numbers]
