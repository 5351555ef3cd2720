"""Arrow files of a corpus: its sentences, and other columns."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from bertrelay.blocks import blocks_of
from bertrelay.cache import Cache
from bertrelay.data.arrow import open_arrow, write_arrow
from bertrelay.data.records import Rejects, canonical_id, read, rows
from bertrelay.data.sentences import sentence_records, text_column
from bertrelay.data.tables import BLOCK_ROWS, Column, Record, Table
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write

SCHEMA = pa.schema(
    {"text": pa.string(), "line": pa.int64(), "record": pa.int64(), "source": pa.int32(), "id": pa.string()}
)


def write_sentences(
    table: Table,
    path: Path,
    cache: Cache | None,
    rejects: Rejects | None,
    prepare: Callable[[str], str] = str,
    *,
    id_column: Column | None = None,
    source: int = 0,
) -> int:
    """Writes the sentences of `table` as SCHEMA has them; returns the number of blank ones, which are left out.

    line: in its file. record: from 1, without a header; records that cannot be used are counted, lines between records
        are not. source: the number of the table. id: of `id_column` as text, null without one.
    prepare: changes each text.
    Raises RequestError when all sentences are blank, for a record without an id, and for an id that two have.
    """
    records, seen = _numbered(_records(table, id_column, cache, rejects), rejects), 0

    def blocks() -> Iterator[dict[str, list[Any]]]:
        nonlocal seen
        for block in blocks_of(records, BLOCK_ROWS):
            seen += len(block)
            if rejects is not None:
                rejects.used(len(block))
            sentences = [
                (prepare(text), line, number, source, *(identifier or [None]))
                for number, ((text, *identifier), _, line) in block
                if text.strip()
            ]
            yield {name: [row[column] for row in sentences] for column, name in enumerate(SCHEMA.names)}

    with atomic_write(path) as building:
        write_arrow(building, SCHEMA, blocks())
        if id_column is not None:
            _check_ids(open_arrow(building), table)
    written = len(open_arrow(path))
    if not written:
        path.unlink()
        raise RequestError(f"{table.name}: expected sentences, found {seen:,} blank ones and no other")
    return seen - written


def _records(table: Table, id_column: Column | None, cache: Cache | None, rejects: Rejects | None) -> Iterator[Record]:
    """Streams the sentences of `table`, and with `id_column` their ids as text."""
    if id_column is None:
        yield from sentence_records(table, cache, rejects)
        return
    columns = [*text_column(table), id_column]
    for record in read(table.model_copy(update={"columns": columns}), (), cache, rejects):
        text, identifier = record.values
        try:
            if not isinstance(text, str):
                raise ValueError(f"expected text, found {type(text).__name__}")
            if not (identifier := canonical_id(identifier)):
                raise ValueError("a missing id")
        except ValueError as error:
            if rejects is None:
                raise RequestError(f"{record.file}, line {record.line:,}: {error}") from None
            rejects.add(record.file, record.line, str(error))
        else:
            yield record._replace(values=(text, identifier))


def _check_ids(sentences: pa.Table, table: Table) -> None:
    """Raises RequestError, with both lines, where two sentences have one id."""
    lines = dict[str, int]()
    for identifier, line in zip(sentences["id"].to_pylist(), sentences["line"].to_pylist(), strict=True):
        if (first := lines.setdefault(identifier, line)) != line:
            raise RequestError(f"{table.name}: expected an id for each text, found one at line {first:,} and {line:,}")


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
    table: Table, columns: Sequence[Column], lines_of_files: Mapping[Path, Sequence[int]], cache: Cache | None
) -> None:
    """Writes the `columns` of the records at the lines of each file, each value as JSON; null where a record has none.

    lines_of_files: lines that rise from file to file, as `table` is read once.
    Raises RequestError where the table has no record at one of the lines.
    """
    records = rows(table.model_copy(update={"columns": [*columns]}), (), cache)
    names = list(map(str, columns))

    def values(lines: Sequence[int]) -> Iterator[Sequence[Any]]:
        for line in lines:
            row = next((row for row in records if row.line >= line), None)
            if row is None or row.line != line:
                raise RequestError(f"{table.name}: expected a record at line {line:,}, found none; did it change?")
            yield row.values if isinstance(row, Record) else [None] * len(names)

    for path, lines in lines_of_files.items():
        blocks = (
            {name: [_as_json(row[column]) for row in block] for column, name in enumerate(names)}
            for block in blocks_of(values(lines), BLOCK_ROWS)
        )
        with atomic_write(path) as building:
            write_arrow(building, columns_schema(columns), blocks)


def write_table(table: pa.Table, path: Path) -> None:
    """Writes the rows of `table` as a file for `open_arrow`, whole or not at all."""
    with atomic_write(path) as building:
        write_arrow(building, table.schema, table_blocks(table))


def table_blocks(table: pa.Table) -> Iterator[Mapping[str, pa.Array]]:
    """Yields the columns of `table` block by block, for `write_arrow`."""
    for batch in table.to_batches(BLOCK_ROWS):
        yield dict(zip(table.column_names, batch.columns, strict=True))


def columns_schema(columns: Sequence[Column]) -> pa.Schema:
    """The schema of a file of columns, whose values are JSON."""
    return pa.schema(dict.fromkeys(map(str, columns), pa.string()))


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
