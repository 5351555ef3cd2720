"""What a document is, and documents of tables (JSONL, CSV, TSV, Parquet) and of blocks of plain text."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from bertrelay.data.readers import open_input
from bertrelay.data.records import rows
from bertrelay.data.tables import Record, Table, Unusable
from bertrelay.errors import RequestError
from domain.pretraining.settings import DocumentSource

SPLIT, TRAIN = "split", "train"
PARQUET = b"PAR1"
NO_TEXT, NOT_TRAIN = "without text", "not of the train split"


class TextDocument(NamedTuple):
    """A text, paragraphs in lines, and what is known of where it comes from; unknown is empty.

    id: of the document, such as PubMed's number.
    group: whose it is, such as a patient's number.
    """

    text: str
    id: str = ""
    group: str = ""


class SkippedDocument(NamedTuple):
    """A document that is sound and is not read, for a reason to count by."""

    reason: str


Item = TextDocument | SkippedDocument | Unusable
"""What a source gives for each of its documents."""


def read_table(source: DocumentSource, file: Path) -> Iterator[Item]:
    """Streams the rows of a table; those of another split than `train` are left out.

    The column `split` of a table, as clinical notes have it, is read whatever the source names and whatever the format:
    notes of validation and test patients are never trained on.
    """
    table = Table.model_validate({"path": str(file), "format": source.format})
    wanted = {"text": source.text, "id": source.id, "group": source.group, "split": source.split}
    if source.split != SPLIT and _has_splits(table):
        wanted["own_split"] = SPLIT
    columns = {name: column for name, column in wanted.items() if column is not None}
    for row in rows(table, list(columns.values())):
        yield row if isinstance(row, Unusable) else _document(dict(zip(columns, row.values, strict=True)), row)


def _has_splits(table: Table) -> bool:
    try:
        return any(isinstance(row, Record) for row in rows(table, [SPLIT]))
    except RequestError:
        return False  # it does not, or reading it reports the fault


def _document(values: dict[str, Any], row: Record) -> Item:
    text, *name = (values.get(column) for column in ("text", "id", "group"))
    if any(values.get(column, TRAIN) != TRAIN for column in ("split", "own_split")):
        return SkippedDocument(NOT_TRAIN)
    if text is not None and not isinstance(text, str):
        return Unusable(row.file, row.line, "not text")
    if not text or text.isspace():
        return SkippedDocument(NO_TEXT)
    return TextDocument(text, *("" if value is None else str(value) for value in name))


def read_blocks(file: Path) -> Iterator[Item]:
    """Streams documents with blank lines between them; one that has a line that cannot be read is unusable."""
    with open_input(str(file)) as stream:
        if stream.read(len(PARQUET)) == PARQUET:  # as plain text its splits would not be seen
            raise RequestError(f"documents: {file} is Parquet and is to be read as blocks; give format = 'parquet'.")
    table = Table.model_validate({"path": str(file), "format": "lines"})
    for is_blank, block in groupby(rows(table, [0]), key=_is_blank):
        if not is_blank:
            lines = list(block)
            fault = next((line for line in lines if isinstance(line, Unusable)), None)
            yield fault or TextDocument("\n".join(line.values[0] for line in lines if isinstance(line, Record)))


def _is_blank(row: Record | Unusable) -> bool:
    return isinstance(row, Record) and not row.values[0].strip()
