"""What bitext mining writes: the pairs, best first, in a file of one of four kinds."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bertrelay.data.tables import write_csv, write_jsonl, write_tsv
from bertrelay.files import atomic_write, write_error
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
        with atomic_write(output) as writing:
            WRITERS[output.suffix](writing, _rows(pairs, source, target))
    except OSError as error:
        raise write_error(output, error) from error


def _rows(pairs: Pairs, source: Side, target: Side) -> Iterator[Row]:
    for score, s, t in zip(*(column.tolist() for column in pairs), strict=True):
        yield Row(round(score, DIGITS_SHOWN), source.line(s), target.line(t), source.text(s), target.text(t))


def _write_parquet(path: Path, rows: Iterator[Row]) -> None:
    types = (pa.float64(), pa.int64(), pa.int64(), pa.string(), pa.string())
    schema = pa.schema(list(zip(Row._fields, types, strict=True)))
    with path.open("wb") as file, pq.ParquetWriter(file, schema) as writer:
        while block := list(islice(rows, AT_ONCE)):
            columns = [pa.array(column, kind) for column, kind in zip(zip(*block, strict=True), types, strict=True)]
            writer.write_table(pa.table(columns, schema=schema))


WRITERS: dict[str, Callable[[Path, Iterator[Row]], None]] = {
    ".tsv": lambda path, rows: write_tsv(path, Row._fields, rows),
    ".csv": lambda path, rows: write_csv(path, Row._fields, rows),
    ".jsonl": lambda path, rows: write_jsonl(path, (row._asdict() for row in rows)),
    ".parquet": _write_parquet,
}
