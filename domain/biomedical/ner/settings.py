"""Settings of NER training, scoring and tagging; free of torch."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from bertrelay.settings import (
    RUN_ONLY,
    WHEN_SET,
    DataSource,
    InputFile,
    ModelSource,
    Positive,
    Precision,
    Settings,
    TaggerSource,
    refuse_idle,
)
from bertrelay.training.settings import TrainingSettings
from domain.biomedical.documents import ReadName, WrittenName
from domain.biomedical.documents.conll import CONLL
from domain.biomedical.documents.tokens import Scheme

Share = Annotated[float, Field(ge=0, le=1)]
CRF_LEARNING_RATE = 0.01


class EntitySource(DataSource):
    """An annotated file or folder.

    format: found by the suffix when absent.
    columns: where a line of CoNLL has the token and the tag, from 0; negative from the end.
    """

    path: InputFile
    format: ReadName | None = None
    columns: Annotated[list[int], Field(min_length=2, max_length=2)] = [0, -1]

    @model_validator(mode="after")
    def _columns_of_conll(self) -> Self:
        if self.format not in (None, *CONLL):
            refuse_idle(self, "columns", because=f"{self.format} has none")
        return self


class NerSettings(TrainingSettings):
    """A BERT that is trained to find entities in sentences of words.

    base: any BERT: a model of the hub, a folder that a pretraining wrote, a sentence encoder.
    train, dev: annotated files. `dev` chooses the best weights by strict F1 and calibrates the confidences.
    types: of entities to train on; all that `train` has when left out. Entities of other types are then none.
    scheme: of the tags that the model predicts, whatever scheme the files have.
    decoder: `softmax` over each word's tags, or `crf`, a linear-chain CRF; both are decoded to legal sequences.
    crf_learning_rate: that of the CRF's transitions, which begin at 0 and need a larger one than a trained network;
        0.01 when left out.
    max_tokens: longer sentences are read in windows of so many subwords; 256, or as many positions as the base has.
    overlap: how many subwords a window shares with the next one; a quarter of `max_tokens` when left out.
    dropout: in every layer and before the head; that of the base when left out.
    capitals: marks words with two capitals or more, such as abbreviations, by the second token type, whatever the base
        used it for. Where the base's vocabulary is not lower-cased, or it has no second type, nothing is marked, and
        the log says so, for a recipe's base may be another one. transformers alone does not mark them.
    mask_share: the share of subwords that the mask token replaces in training, others in each epoch, so that more is
        learned from the words around a word.
    max_rejects: the share of sentences or documents that may be unusable.
    max_swapped: the share of entities whose types may differ from all others, as mentions in their place do.
    drop_misplaced: whether an entity of `train` or `dev` at wrong offsets is left out, and counted, in place of its
        document.
    """

    base: ModelSource
    train: Annotated[list[EntitySource], Field(min_length=1)]
    dev: list[EntitySource] = []
    types: list[str] = []
    scheme: Scheme = "IOB2"
    decoder: Literal["softmax", "crf"] = "softmax"
    crf_learning_rate: Annotated[float | None, Field(gt=0), WHEN_SET] = None
    max_tokens: Annotated[int, Field(ge=16)] | None = None
    overlap: Annotated[int, Field(ge=0)] | None = None
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    capitals: bool = False
    mask_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    epochs: Positive = 5
    batch_tokens: Positive | None = 1024
    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    max_rejects: Share = 0.01
    max_swapped: Annotated[Share, WHEN_SET] = 0.2
    drop_misplaced: Annotated[bool, WHEN_SET] = False

    @model_validator(mode="before")
    @classmethod
    def _default_rate_of_a_crf(cls, given: Any) -> Any:
        """Fills in the rate, so that it counts in the fingerprint: a CRF without it learned at the network's rate."""
        is_crf = isinstance(given, dict) and given.get("decoder") == "crf"
        return {"crf_learning_rate": CRF_LEARNING_RATE, **given} if is_crf else given

    @model_validator(mode="after")
    def _nothing_idle(self) -> Self:
        if not self.dev:
            refuse_idle(self, "evaluate_every", "patience", because="there is no dev data")
        if self.decoder != "crf":
            refuse_idle(self, "crf_learning_rate", because="decoder is not crf")
        return self


class NerEvaluateSettings(Settings):
    """A model scored on annotated files, as it is.

    types: of entities that count; all when left out. A model or a file with more than these is scored on these alone.
    published: F1 that others have published for these files, by type, shown beside ours in the report.
    batch_tokens: subwords in a batch, padding included; chosen by the device when absent.
    with_text: whether predictions and examples are written of sensitive data too, which hold its text.
    """

    model: TaggerSource
    test: Annotated[list[EntitySource], Field(min_length=1)]
    types: list[str] = []
    published: dict[str, Share] = {}
    precision: Precision = "auto"
    batch_tokens: Annotated[Positive | None, RUN_ONLY] = None
    with_text: Annotated[bool, WHEN_SET] = False


class TagOptions(Settings):
    """How documents are tagged.

    max_rejects: the share of documents that may be unusable, and that the output format may be unable to hold.
    with_text: allows a page of sensitive documents, as it shows their text.
    batch_tokens: subwords in a batch, padding included; chosen by the device when absent.
    """

    max_rejects: Share = 0.01
    with_text: Annotated[bool, RUN_ONLY] = False
    precision: Precision = "auto"
    batch_tokens: Annotated[Positive | None, RUN_ONLY] = None


class TagSettings(TagOptions):
    """Documents whose entities a model finds.

    documents: a file or folder; `format` when its name does not imply it.
    output: the format that is written.
    keep: fields of JSONL that the output, which is JSONL, has too.
    """

    model: TaggerSource
    documents: InputFile
    format: ReadName | None = None
    output: WrittenName = "jsonl"
    keep: Annotated[list[str], WHEN_SET] = []
