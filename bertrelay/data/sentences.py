"""Sentences of a table with one column of text: streamed, counted, read block by block."""

import hashlib
import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bertrelay.cache import Cache
from bertrelay.data.records import Rejects, read
from bertrelay.data.shards import Span, SpanReader
from bertrelay.data.tables import Column, Record, Table
from bertrelay.data.vectors import ReadBlock
from bertrelay.errors import RequestError
from bertrelay.settings import InputFile, options_of


class SentenceScan(NamedTuple):
    """Result of one pass over a table: the number of sentences, of blank ones among them, and the sha256 of all."""

    sentences: int
    blank: int
    digest: str


def clean(text: str) -> str:
    """`text` in Unicode NFC, with every run of white space one space and none around."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def as_table(source: Table | str | Path) -> Table:
    """`source` itself, or a table of the file of that name, by its suffix. Raises RequestError for sentences."""
    if isinstance(source, Table):
        return source
    name = str(source)
    exists = os.path.exists(name)  # noqa: PTH110 (of pathlib it raises for a long text)
    is_sentence = len(name.split()) > 1 and "/" not in name and not Path(name).suffix and not exists
    if not isinstance(source, str | Path) or is_sentence:  # an error may not show it
        kind = "a sentence" if isinstance(source, str) else type(source).__name__
        raise RequestError(f"expected a Table or the name of a file of sentences, found {kind}; write them to a file")
    try:
        path = InputFile.parse(name)
    except ValueError as error:
        raise RequestError(str(error)) from None
    return options_of(Table, {"path": path})


def iterate_sentences(table: Table, cache: Cache | None = None) -> Iterator[str]:
    """Streams the texts of `sentence_records`."""
    return (record.values[0] for record in sentence_records(table, cache))


def sentence_records(table: Table, cache: Cache | None = None, rejects: Rejects | None = None) -> Iterator[Record]:
    """Streams sentences as records: from the one column that `table` names, else from `text`, or from plain lines.

    cache: where a data set of the hub is kept.
    rejects: as for `bertrelay.data.records.read`; the caller counts the used ones.
    Raises RequestError for a table that does not exist, is empty, lacks the column, or has values that are no text.
    """
    for record in read(table, text_column(table), cache, rejects):
        if len(record.values) != 1:
            raise RequestError(f"{table.name}: expected one column of text, found {len(record.values)} columns named")
        if not isinstance(record.values[0], str):
            kind = type(record.values[0]).__name__
            if rejects is not None:
                rejects.add(record.file, record.line, "not text", detail=f"found {kind}")
                continue
            raise RequestError(
                f"{record.file}, line {record.line:,}: expected text, found {kind}; name a column of text"
            )
        yield record


def text_column(table: Table) -> list[Column]:
    """The columns that `table` names, else the column `text`, or the whole line of plain lines."""
    return table.columns or [0 if table.path and table.file_format == "lines" else "text"]


def check_first(table: Table, rejects: Rejects | None = None) -> None:
    """Reads one sentence, which finds most errors of a request. Raises as `sentence_records` does."""
    next(sentence_records(table, rejects=rejects), None)


def scan(table: Table, cache: Cache | None = None, rejects: Rejects | None = None) -> SentenceScan:
    """Reads all of `table` and counts; `rejects` takes records that cannot be used.

    Raises RequestError where no record can be used, and without `rejects` at the first that cannot, with file and line.
    """
    sentences, blank, digest = 0, 0, hashlib.sha256()
    for (text,), _, _ in sentence_records(table, cache, rejects):
        if rejects is not None:
            rejects.used()
        data = text.encode()
        sentences += 1
        blank += not text.strip()
        digest.update(len(data).to_bytes(8))
        digest.update(data)
    if not sentences:
        raise RequestError(f"{table.name}: expected sentences, found no record that can be used")
    return SentenceScan(sentences, blank, digest.hexdigest())


def block_reader(table: Table, cache: Cache | None = None, skip_invalid: bool = False) -> ReadBlock:
    """A function (first, end) → the sentences of these rows; it reads rising blocks in one pass over `table`.

    skip_invalid: leave out records that cannot be used, as `scan` with rejects does.
    """

    def texts() -> Iterator[str]:
        rejects = Rejects(None, limit=1.0) if skip_invalid else None
        return (record.values[0] for record in sentence_records(table, cache, rejects))

    reader = SpanReader(texts, table.name)
    return lambda first, end: reader.read(Span(first, end, end - first))
