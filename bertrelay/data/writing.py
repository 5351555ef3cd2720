"""Rows written as CSV, TSV, JSONL or Parquet."""

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from bertrelay.errors import RequestError
from bertrelay.files import atomic_write

BREAKS = re.compile("[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")
PARQUET_ROWS = 4096  # written at once


def on_one_line(text: str) -> str:
    """`text` with a space in place of the line breaks and tabs that would break its row."""
    return BREAKS.sub(" ", text)


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes the names of the columns, then the rows; None is an empty field."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(chain([columns], rows))


def write_tsv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes the names of the columns, then the rows, with tabs between and no quotes, so each text is on one line."""
    with path.open("w", encoding="utf-8", newline="") as file:
        for row in chain([columns], rows):
            file.write("\t".join("" if value is None else on_one_line(str(value)) for value in row) + "\n")


def write_jsonl(path: Path, documents: Iterable[Mapping[str, Any]]) -> None:
    write_lines(path, map(json_line, documents))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes lines of UTF-8, each with its end."""
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(lines)


def json_line(row: Mapping[str, Any]) -> str:
    """A row as a line of a shard, and of JSONL."""
    return json.dumps(row, ensure_ascii=False) + "\n"


def write_table(output: Path, columns: Mapping[str, Any], rows: Iterable[Sequence[Any]]) -> None:
    """Writes rows in the format of the suffix: .csv, .tsv, .jsonl or .parquet. The file is whole or not there.

    columns: name to Arrow type, or its name. Raises RequestError or WorkError where the file cannot be written.
    """
    names = list(columns)
    with atomic_write(output) as building:
        match output.suffix:
            case ".csv":
                write_csv(building, names, rows)
            case ".tsv":
                write_tsv(building, names, rows)
            case ".jsonl":
                write_jsonl(building, (dict(zip(names, row, strict=True)) for row in rows))
            case ".parquet":
                import pyarrow as pa
                import pyarrow.parquet as pq

                schema, stream = pa.schema(list(columns.items())), iter(rows)
                with pq.ParquetWriter(building, schema) as writer:
                    while block := [dict(zip(names, row, strict=True)) for row in islice(stream, PARQUET_ROWS)]:
                        writer.write_table(pa.Table.from_pylist(block, schema))
            case _:
                raise RequestError(f"output: expected a .csv, .tsv, .jsonl or .parquet file, found {output}")
