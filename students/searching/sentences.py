"""Arrow files of a corpus: its sentences, and other columns."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from bertrelay.blocks import blocks_of
from bertrelay.cache import Cache
from bertrelay.data.arrow import open_arrow, write_arrow
from bertrelay.data.records import Rejects, rows
from bertrelay.data.sentences import sentence_records
from bertrelay.data.tables import BLOCK_ROWS, Column, Record, Table
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write

TEXT_AND_LINE = pa.schema({"text": pa.string(), "line": pa.int64(), "record": pa.int64()})


def write_sentences(
    table: Table,
    path: Path,
    cache: Cache | None,
    rejects: Rejects | None,
    prepare: Callable[[str], str] = str,
) -> int:
    """Writes the columns text, line and record of `table`; returns the number of blank sentences, which are left out.

    record: from 1, without a header; records that cannot be used are counted, lines between records are not.
    prepare: changes each text. Raises RequestError when all sentences are blank.
    """
    records, seen = _numbered(sentence_records(table, cache, rejects), rejects), 0

    def blocks() -> Iterator[dict[str, list[Any]]]:
        nonlocal seen
        for block in blocks_of(records, BLOCK_ROWS):
            seen += len(block)
            if rejects is not None:
                rejects.used(len(block))
            sentences = [(prepare(text), line, number) for number, ((text,), _, line) in block if text.strip()]
            yield {name: [row[column] for row in sentences] for column, name in enumerate(TEXT_AND_LINE.names)}

    with atomic_write(path) as building:
        write_arrow(building, TEXT_AND_LINE, blocks())
    written = len(open_arrow(path))
    if not written:
        path.unlink()
        raise RequestError(f"{table.name}: expected sentences, found {seen:,} blank ones and no other")
    return seen - written


def _numbered(records: Iterator[Record], rejects: Rejects | None) -> Iterator[tuple[int, Record]]:
    """Yields each usable record with its number among all."""
    before = rejects.counts.total() if rejects else 0
    for used, record in enumerate(records, 1):
        yield used + (rejects.counts.total() - before if rejects else 0), record


def check_columns(table: Table, columns: Sequence[Column], cache: Cache | None) -> None:
    """Raises RequestError where `table` lacks one of the `columns`."""
    if table.path is not None and table.file_format == "lines":
        raise RequestError(f"show: expected a table with columns, found plain lines in {table.name}; leave it out")
    next(rows(table.model_copy(update={"columns": [*columns]}), (), cache), None)


def write_columns(
    table: Table, columns: Sequence[Column], lines: Sequence[int], path: Path, cache: Cache | None
) -> None:
    """Writes the `columns` of the records at `lines`, each value as JSON; null where a record has none.

    Raises RequestError where the table has no record at one of the lines.
    """
    records = rows(table.model_copy(update={"columns": [*columns]}), (), cache)
    names = list(map(str, columns))

    def values() -> Iterator[Sequence[Any]]:
        for line in lines:
            row = next((row for row in records if row.line >= line), None)
            if row is None or row.line != line:
                raise RequestError(f"{table.name}: expected a record at line {line:,}, found none; did it change?")
            yield row.values if isinstance(row, Record) else [None] * len(names)

    blocks = (
        {name: [_as_json(row[column]) for row in block] for column, name in enumerate(names)}
        for block in blocks_of(values(), BLOCK_ROWS)
    )
    with atomic_write(path) as building:
        write_arrow(building, pa.schema(dict.fromkeys(names, pa.string())), blocks)


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
