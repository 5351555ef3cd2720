"""Settings of continued pretraining and of its documents; free of torch."""

from pathlib import Path
from typing import Annotated, Literal, Self, cast

from pydantic import Field, model_validator

from bertrelay.data import tables
from bertrelay.data.tables import Column, suffix_of
from bertrelay.model.settings import Base
from bertrelay.settings import DataSource, InputFile, Positive, Settings, refuse_idle
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
    return FORMATS.get(suffix_of(path))


class DocumentSource(DataSource):
    """A file of documents, or a folder of such files, each read by its suffix (`.gz` or not) unless `format` is given.

    format: `blocks` are plain text with a blank line between documents; `xml` is MEDLINE/PubMed or PMC's JATS, as
        the file itself shows, or a `.tar` of such files.
    text: column of the text, of a table.
    id: column of the document's id; XML has its own.
    group: column of the owner of a document, such as `subject_id`: a group is held out as a whole, and no two of its
        documents make a "random" pair.
    split: column with the split of a document; only those of `train` are read. A column named `split`, in
        capitals or not, is read besides.
    path: a file, a folder, or `@stage/path`.
    """

    path: InputFile
    format: DocumentFormat | None = None
    text: Column = "text"
    id: Column | None = None
    group: Column | None = None
    split: Column | None = None

    @model_validator(mode="after")
    def _columns_are_of_tables(self) -> Self:
        kind = NOT_TABLES.get(self.format or format_of(self.path))
        if kind:
            refuse_idle(self, "text", "id", "group", "split", because=f"only tables have columns, and this is {kind}")
        return self


Objective = Literal["mlm", "nsp"]
Share = Annotated[float, Field(ge=0, le=1)]


class Masking(Settings):
    """Which tokens are hidden from the model, and by what; the defaults are BERT's.

    share: of the tokens that may be masked.
    whole_words: all pieces of a word or none; each piece is still replaced by a draw of its own, as in BERT.
    mask, random: the shares of chosen tokens that become [MASK] and a random token; the rest stays as it is.
    """

    share: Annotated[float, Field(gt=0, lt=1)] = 0.15
    whole_words: bool = False
    mask: Share = 0.8
    random: Share = 0.1

    @model_validator(mode="after")
    def _at_most_all(self) -> Self:
        if self.mask + self.random > 1:
            raise ValueError(f"expected mask and random to make at most 1, found {self.mask} and {self.random}")
        return self


class PretrainSettings(TrainingSettings):
    """Continued pretraining of a BERT on documents: masked words, next sentences, or both.

    The defaults are those of the clinical BERTs of Alsentzer et al. 2019: 32 sequences of 128 tokens a step, rate 5e-5.

    base: a model to start from, or the size of a new BERT with a vocabulary of the documents.
    documents: files of text.
    masking: which tokens are chosen (`share`, `whole_words`), and how they are replaced (`mask`, `random`).
    objectives: `mlm`, masked words, and `nsp`, next sentence or not, which only BERT has (DistilBERT, RoBERTa, XLM-R,
        CamemBERT and MPNet have not).
    max_tokens: the longest sequence, special tokens included. 128 first and 512 after it are two stages.
    short_share: of the pairs that are drawn shorter than `max_tokens`.
    new_tokens: words that become one token each, a list or a file with a word a line.
    protected_tokens: tokens such as `[NAME]` that are one token each, never masked, and never put in for another; a
        list or a file with one a line, such as `@notes/tokens.txt`.
    held_out_share: of documents, or of groups, that are never trained on and give the metrics.
    keep: the weights with the best held-out metrics, evaluated while training, or the last ones.
    max_rejects: the share of documents that may be unusable.
    """

    base: Base
    documents: Annotated[list[DocumentSource], Field(min_length=1)]
    objectives: Annotated[list[Objective], Field(min_length=1)] = ["mlm", "nsp"]
    max_tokens: Annotated[int, Field(ge=8)] = 128
    masking: Masking = Masking()
    short_share: Share = 0.1
    new_tokens: list[str] | InputFile = []
    protected_tokens: list[str] | InputFile = []
    held_out_share: Annotated[float, Field(ge=0, lt=1)] = 0.05
    keep: Literal["best", "last"] = "best"
    batch_items: Positive | None = 32
    learning_rate: Annotated[float, Field(gt=0)] = 5e-5
    max_rejects: Share = 0.01

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(set(self.objectives)) < len(self.objectives):
            raise ValueError(f"objectives: expected each once, found {', '.join(self.objectives)}")
        if self.keep == "best" and self.held_out_share == 0:
            raise ValueError("keep: the best weights need held-out documents; set held_out_share, or keep = 'last'")
        if "mlm" not in self.objectives:
            refuse_idle(self, "masking", because="masked words are no objective")
        if "nsp" not in self.objectives:
            refuse_idle(self, "short_share", because="without next sentences there are no pairs")
        if self.keep == "last":
            refuse_idle(self, "evaluate_every", "patience", because="the last weights are kept, whatever the metrics")
        return self
