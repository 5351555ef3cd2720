"""Settings of continued pretraining and of its documents; free of torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self, cast

from pydantic import Field, model_validator

from bertrelay.data import tables
from bertrelay.data.tables import Column, inner_suffix
from bertrelay.model.settings import Base
from bertrelay.settings import DataSource, InputFile, MaxRejects, Positive, Settings, UsedWith, refuse_idle
from bertrelay.training.settings import TrainingSettings

DocumentFormat = Literal["jsonl", "csv", "tsv", "parquet", "blocks", "xml"]
FORMATS: dict[str, DocumentFormat] = {
    **{suffix: cast(DocumentFormat, name) for suffix, name in tables.FORMATS.items()},
    ".txt": "blocks",
    ".xml": "xml",
    ".nxml": "xml",
    ".tar": "xml",
    ".tgz": "xml",
}
NOT_TABLES: dict[DocumentFormat | None, str] = {"blocks": "plain text", "xml": "XML"}


def format_of(path: str | Path) -> DocumentFormat | None:
    """The format of a file's suffix, None for an unknown one."""
    return FORMATS.get(inner_suffix(path))


class DocumentSource(DataSource):
    """A file of documents, or a folder of such files, each read by its suffix (`.gz` or not) unless `format` is set."""

    path: InputFile
    """A file, a folder, or `@stage/path`."""
    format: DocumentFormat | None = None
    """`blocks` are plain text with a blank line between documents; `xml` is MEDLINE/PubMed or PMC's JATS, as the file
    itself shows, or a `.tar` of such files."""
    text: Column = "text"
    """Column of the text, of a table."""
    id: Column | None = None
    """Column of the document's id; XML has its own."""
    group: Column | None = None
    """Column of the owner of a document, such as `subject_id`: a group is held out as a whole, and no two of its
    documents make a "random" pair."""
    split: Column | None = None
    """Column with the split of a document; only those of `train` are read. A column named `split`, in capitals or not,
    is read besides."""

    @model_validator(mode="after")
    def _columns_are_of_tables(self) -> Self:
        kind = NOT_TABLES.get(self.format or format_of(self.path))
        if kind:
            refuse_idle(self, "text", "id", "group", "split", because=f"only tables have columns, and this is {kind}")
        return self


Files = Sequence[tuple[DocumentSource, Path]]
"""Files, each with the source that it belongs to."""

Objective = Literal["mlm", "nsp"]
Share = Annotated[float, Field(ge=0, le=1)]


class Masking(Settings):
    """Tokens that are hidden from the model, and their replacement; the defaults are BERT's."""

    share: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Fraction of the tokens that are chosen, of those that may be masked."""
    whole_words: bool = False
    """Choose all subwords of a word or none; each subword is still replaced by a draw of its own, as in BERT."""
    mask: Share = 0.8
    """Fraction of chosen tokens that become [MASK]."""
    random: Share = 0.1
    """Fraction of chosen tokens that become a random token; the rest stays as it is."""

    @model_validator(mode="after")
    def _at_most_all(self) -> Self:
        if self.mask + self.random > 1:
            raise ValueError(f"expected mask and random to make at most 1, found {self.mask} and {self.random}")
        return self


class PretrainSettings(TrainingSettings):
    """Continued pretraining of a BERT on documents: masked words, next sentences, or both.

    The defaults are those of the clinical BERTs of Alsentzer et al. 2019: 32 sequences of 128 tokens a step, rate 5e-5.
    """

    base: Base
    """A model to start from, or the size of a new BERT with a vocabulary of the documents."""
    documents: Annotated[list[DocumentSource], Field(min_length=1)]
    """Files of text."""
    objectives: Annotated[list[Objective], Field(min_length=1)] = ["mlm", "nsp"]
    """`mlm`, masked words, and `nsp`, next sentence or not, which only BERT has (DistilBERT, RoBERTa, XLM-R, CamemBERT
    and MPNet have not)."""
    max_tokens: Annotated[int, Field(ge=8)] = 128
    """Longest sequence, special tokens included. 128 first and 512 after it are two stages."""
    masking: Annotated[Masking, UsedWith(objectives="mlm")] = Masking()
    """Tokens to mask (`share`, `whole_words`), and their replacement (`mask`, `random`)."""
    short_share: Annotated[Share, UsedWith(objectives="nsp")] = 0.1
    """Fraction of pairs that are drawn shorter than `max_tokens`."""
    new_tokens: list[str] | InputFile = []
    """Words that become one token each, a list or a file with a word a line."""
    protected_tokens: list[str] | InputFile = []
    """Tokens such as `[NAME]` that are one token each, never masked, and never put in for another; a list or a file
    with one a line, such as `@notes/tokens.txt`."""
    held_out_share: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Fraction of documents, or of groups, that are never trained on and give the metrics."""
    keep: Literal["best", "last"] = "best"
    """Keep the weights with the best held-out metrics, evaluated while training, or the last ones."""
    batch_items: Positive | None = 32
    evaluate_every: Annotated[Positive | None, UsedWith(keep="best")] = None
    patience: Annotated[Positive | None, UsedWith(keep="best")] = None
    learning_rate: Annotated[float, Field(gt=0)] = 5e-5
    max_rejects: MaxRejects = 0.01
    """Fraction of documents that may be unusable."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(set(self.objectives)) < len(self.objectives):
            raise ValueError(f"objectives: expected each once, found {', '.join(self.objectives)}")
        if self.keep == "best" and self.held_out_share == 0:
            raise ValueError("keep: the best weights need held-out documents; set held_out_share, or keep = 'last'")
        return self
