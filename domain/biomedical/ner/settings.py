"""Settings of NER training, evaluation and tagging; loads no torch."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from bertrelay.settings import (
    RUN_ONLY,
    BatchTokens,
    InputFile,
    MaxRejects,
    ModelSource,
    Positive,
    Precision,
    Settings,
    TaggerSource,
    UsedWith,
    refuse_idle,
)
from bertrelay.training.settings import TrainingSettings
from domain.biomedical.documents.conll import CONLL
from domain.biomedical.documents.document import RepeatedIds
from domain.biomedical.documents.formats import AnnotatedSource, ReadName, WrittenName
from domain.biomedical.documents.tags import Scheme

Share = Annotated[float, Field(ge=0, le=1)]
CRF_LEARNING_RATE = 0.01


class EntitySource(AnnotatedSource):
    """An annotated file or folder whose sentences are read."""

    columns: Annotated[list[int], Field(min_length=2, max_length=2)] = [0, -1]
    """Columns of token and tag in a line of CoNLL, from 0; negative from the end."""
    corpus: Annotated[str, Field(pattern=r"^[\w.-]*$")] = ""
    """Name of the corpus. Its sentences are also scored by themselves, under that name."""
    types: dict[str, str] = {}
    """Types of entities that this corpus annotates, each with its name in the model: `{ Chemical = "Drug" }`. Others
    are left out, and a sentence then says nothing about the types of other corpora. When empty, all types of all files
    are annotated here, under their names."""

    @model_validator(mode="after")
    def _columns_of_conll(self) -> Self:
        if self.format not in (None, *CONLL):
            refuse_idle(self, "columns", because=f"{self.format} has none")
        return self


class NerSettings(TrainingSettings):
    """Training of a BERT that finds entities in sentences of words."""

    base: ModelSource
    """Any BERT: a model of the hub, a folder that a pretraining wrote, a sentence encoder."""
    train: Annotated[list[EntitySource], Field(min_length=1)]
    """Annotated files."""
    dev: list[EntitySource] = []
    """Annotated files that choose the best weights by strict F1 and calibrate the confidences."""
    held_out: list[EntitySource] = []
    """Annotated files whose sentences are left out of `train`, and documents with more than half of their sentences
    there as wholes: tests of corpora that share abstracts, for example."""
    sampling_temperature: Annotated[float, Field(ge=1)] = 1.0
    """Above 1 small corpora are drawn more often, large ones less: an epoch has as many sentences as all have, each
    corpus a part of them in proportion to the root of this degree of its size. At 1 each sentence is there once."""
    types: list[str] = []
    """Types of entities to train on; all that `train` has when empty. Entities of other types then do not count."""
    scheme: Scheme = "IOB2"
    """Scheme of the tags that the model predicts, whatever scheme the files have."""
    decoder: Literal["softmax", "crf"] = "softmax"
    """`softmax` over each word's tags, or `crf`, a linear-chain CRF; both are decoded to legal sequences."""
    crf_learning_rate: Annotated[float | None, Field(gt=0), UsedWith(decoder="crf")] = None
    """Learning rate of the CRF's transitions, which begin at 0 and need a larger one than a trained network; 0.01 when
    absent."""
    max_tokens: Annotated[int, Field(ge=16)] | None = None
    """Longest window, in subwords, in which a longer sentence is read; when absent 256, or as many positions as the
    base has."""
    overlap: Annotated[int, Field(ge=0)] | None = None
    """Subwords that a window shares with the next one; a quarter of `max_tokens` when absent."""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Dropout in every layer and before the head; that of the base when absent."""
    capitals: bool = False
    """Mark words with two capitals or more, such as abbreviations, by the second token type, whatever the base used it
    for. Where the base's vocabulary is not lower-cased, or it has no second type, nothing is marked, and the log says
    so, for a recipe's base may be another one. transformers on its own does not mark them."""
    mask_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Fraction of subwords that the mask token replaces in training, others in each epoch, so that more is learned from
    the words around a word."""
    evaluate_every: Annotated[Positive | None, UsedWith("dev")] = None
    patience: Annotated[Positive | None, UsedWith("dev")] = None
    epochs: Positive = 5
    batch_tokens: Positive | None = 1024
    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    max_rejects: MaxRejects = 0.01
    """Fraction of sentences or documents that may be unusable."""
    max_swapped: Share = 0.2
    """Fraction of entities whose types may differ from all others, as mentions in their place do."""
    drop_misplaced: bool = False
    """Leave out, and count, an entity of `train` or `dev` at wrong offsets, in place of its document."""

    @model_validator(mode="before")
    @classmethod
    def _default_rate_of_a_crf(cls, values: Any) -> Any:
        """Fills in the rate, so that the fingerprint has it."""
        is_crf = isinstance(values, dict) and values.get("decoder") == "crf"
        return {"crf_learning_rate": CRF_LEARNING_RATE, **values} if is_crf else values


class NerEvaluateSettings(Settings):
    """Evaluation of a trained model on annotated files."""

    model: TaggerSource
    """Tagger: a model folder, `@stage/model`, `package:name/path` or a hub id."""
    test: Annotated[list[EntitySource], Field(min_length=1)]
    """Annotated files."""
    types: list[str] = []
    """Types of entities that count; all when empty. A model or a file with more than these is scored on these only."""
    published: dict[str, Share] = {}
    """F1 that others have published for these files, by type, shown beside the model's in the report."""
    precision: Precision = "auto"
    batch_tokens: BatchTokens = None
    """Subwords in a batch, padding included; chosen by the device when absent."""
    with_text: bool = False
    """Write predictions and examples of sensitive data too, which hold its text."""


class TagOptions(Settings):
    """Options of tagging documents."""

    types: list[str] = []
    """Types of entities that are given; all that the model finds when empty."""
    min_confidence: Share = 0.0
    """Least confidence of an entity that is given."""
    link: InputFile | None = None
    """Linker that gives the entities their identifiers: a folder, or `@stage/model`."""
    link_types: Annotated[list[str], UsedWith("link")] = []
    """Types of entities that are linked; all when empty."""
    relate: InputFile | None = None
    """Model of `domain.relations` that adds the relations of the entities: a folder, or `@stage/model`."""
    max_rejects: MaxRejects = 0.01
    """Fraction of documents that may be unusable, and that the output format may be unable to hold."""
    with_text: Annotated[bool, RUN_ONLY] = False
    """Allow a page of sensitive documents, as it shows their text."""
    precision: Precision = "auto"
    batch_tokens: BatchTokens = None
    """Subwords in a batch, padding included; chosen by the device when absent."""


class TagSettings(TagOptions):
    """Tagging of the documents of a file or folder."""

    model: TaggerSource
    """Tagger: a model folder, `@stage/model`, `package:name/path` or a hub id."""
    documents: InputFile
    """A file or folder."""
    format: ReadName | None = None
    """Format of the documents; by the file's name when absent."""
    repeated_ids: RepeatedIds = "error"
    """Meaning of a record of PubTator with the id of the one before it: an `error`, or the next of its document's
    `passages`, as full texts are written."""
    output: WrittenName = "jsonl"
    """Format of the file that is written."""
    keep: list[str] = []
    """Fields of JSONL that the output, which is JSONL, has too."""
