"""Settings of the training and evaluation of relations; loads no torch."""

from typing import Annotated, Literal

from pydantic import Field

from bertrelay.settings import (
    BatchTokens,
    MaxRejects,
    ModelSource,
    Positive,
    Precision,
    Settings,
    UsedWith,
)
from bertrelay.training.settings import TrainingSettings
from domain.biomedical.documents.formats import AnnotatedSource

Share = Annotated[float, Field(ge=0, le=1)]
Level = Literal["concept", "mention"]
Within = Literal["document", "sentence"]


class RelationSettings(TrainingSettings):
    """Training of a BERT that finds the relations of a document's entities."""

    base: ModelSource
    """Any BERT: a model of the hub, a folder that a pretraining wrote, a sentence encoder."""
    train: Annotated[list[AnnotatedSource], Field(min_length=1)]
    """Annotated files."""
    dev: list[AnnotatedSource] = []
    """Annotated files that choose the best weights and the threshold by F1, and calibrate the probabilities."""
    types: list[str] = []
    """Types of relations to train on; all that `train` has when empty. Relations of other types then do not count."""
    level: Level = "concept"
    """`concept`: a relation is between two identifiers of a document, whose mentions are read together; `mention`:
    between two mentions."""
    within: Within = "document"
    """Pairs that may be related: of a whole document, or of mentions in one sentence."""
    directed: bool = False
    """The order of a relation's arguments counts, as in the file; else a pair is the same either way."""
    negatives: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the pairs without a relation that are trained on in an epoch, others in each."""
    none_weight: Annotated[float, Field(gt=0)] = 1.0
    """Weight of a pair without a relation in the loss; below 1 more relations are found and more of them are wrong."""
    max_tokens: Annotated[int, Field(ge=16)] | None = None
    """Longest window, in subwords, in which a longer document is read; when absent 512, or as many positions as the
    base has."""
    overlap: Annotated[int, Field(ge=0)] | None = None
    """Subwords that a window shares with the next one; a quarter of `max_tokens` when absent."""
    head_learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Learning rate of the layers on the BERT, which begin at random."""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Dropout in every layer and in the head; that of the base when absent."""
    evaluate_every: Annotated[Positive | None, UsedWith("dev")] = None
    patience: Annotated[Positive | None, UsedWith("dev")] = None
    epochs: Positive = 15
    batch_tokens: Positive | None = 2048
    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    max_rejects: MaxRejects = 0.01
    """Fraction of documents that may be unusable."""


class RelationEvaluateSettings(Settings):
    """Evaluation of a trained model on annotated files, whose entities are taken as annotated."""

    model: ModelSource
    """Model of `domain.relations`: a folder, `@stage/model`, or a hub id."""
    test: Annotated[list[AnnotatedSource], Field(min_length=1)]
    """Annotated files."""
    max_rejects: MaxRejects = 0.01
    precision: Precision = "auto"
    batch_tokens: BatchTokens = None
    """Subwords in a batch, padding included; chosen by the device when absent."""
