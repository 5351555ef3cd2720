"""Where documents come from: settings alone, with nothing heavy to load."""

from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from bertrelay.data.tables import Column
from bertrelay.settings import DataSource, InputFile, refuse_idle

DocumentFormat = Literal["jsonl", "csv", "tsv", "parquet", "blocks", "xml"]

FORMATS: dict[str, DocumentFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".txt": "blocks",
    ".xml": "xml",
    ".nxml": "xml",
    ".tar": "xml",
    ".tgz": "xml",
}
NOT_TABLES: dict[DocumentFormat | None, str] = {"blocks": "plain text", "xml": "XML"}


def format_of(path: str | Path) -> DocumentFormat | None:
    """The format that a file's suffix says, None for one that says nothing."""
    inner = Path(path)
    return FORMATS.get((inner.with_suffix("") if inner.suffix.lower() == ".gz" else inner).suffix.lower())


class DocumentSource(DataSource):
    """A file of documents, or a folder of such files, each read by its suffix (`.gz` or not) unless `format` says how.

    format: `blocks` are plain text with a blank line between documents; `xml` is MEDLINE/PubMed or PMC's JATS, which
        the file itself tells, and a `.tar` of such files.
    text, id, group: columns of a table. group says whose a document is, such as `subject_id`: a group is held out as
        a whole, and no two of its documents make a "random" pair. id and group are optional.
    split: column that says which split a document is of; only those of `train` are read.
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
