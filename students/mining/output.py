"""What bitext mining writes: the pairs, best first, in a file of one of four kinds."""

import csv
import json
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bertrelay.files import whole_file
from bertrelay.outputs import not_written
from students.mining.margin import Pairs
from students.mining.sides import Side

AT_ONCE = 4096
DIGITS_SHOWN = 6  # of a score


class Row(NamedTuple):
    """A line of the output: lines count from 1, a header included."""

    score: float
    source_line: int
    target_line: int
    source: str
    target: str


def write_pairs(output: Path, pairs: Pairs, source: Side, target: Side) -> None:
    """Writes the pairs with their lines and texts, best first; the file is whole or not there."""
    try:
        with whole_file(output) as writing:
            WRITERS[output.suffix](writing, _rows(pairs, source, target))
    except OSError as error:
        raise not_written(output, error) from error


def _rows(pairs: Pairs, source: Side, target: Side) -> Iterator[Row]:
    for score, s, t in zip(*(column.tolist() for column in pairs), strict=True):
        yield Row(round(score, DIGITS_SHOWN), source.line(s), target.line(t), source.text(s), target.text(t))


def _write_tsv(path: Path, rows: Iterator[Row]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in chain([Row._fields], rows):
            file.write("\t".join(map(str, row)) + "\n")


def _write_csv(path: Path, rows: Iterator[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(chain([Row._fields], rows))


def _write_jsonl(path: Path, rows: Iterator[Row]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row._asdict(), ensure_ascii=False) + "\n")


def _write_parquet(path: Path, rows: Iterator[Row]) -> None:
    types = (pa.float64(), pa.int64(), pa.int64(), pa.string(), pa.string())
    schema = pa.schema(list(zip(Row._fields, types, strict=True)))
    with path.open("wb") as file, pq.ParquetWriter(file, schema) as writer:
        while block := list(islice(rows, AT_ONCE)):
            columns = [pa.array(column, kind) for column, kind in zip(zip(*block, strict=True), types, strict=True)]
            writer.write_table(pa.table(columns, schema=schema))


WRITERS: dict[str, Callable[[Path, Iterator[Row]], None]] = {
    ".tsv": _write_tsv,
    ".csv": _write_csv,
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
}
