"""The files of bitext mining: two sides laid down once, a gold file read, and the pairs written."""

import csv
import hashlib
import json
import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bertrelay.errors import RequestError
from bertrelay.files import sync_folder
from bertrelay.progress import say
from bertrelay.records import Record, Rejects, Table, read
from bertrelay.sentence_files import sentence_records
from bertrelay.vectors import not_written
from students.corpus import Sentences
from students.holdout import DIGEST, DIGEST_BYTES, number_targets
from students.margin import Pairs
from students.parallel import clean

LINES = ("source_line", "target_line")
AT_ONCE = 4096
DIGITS_SHOWN = 6  # of a score
SCHEMA = pa.schema([("sentence", pa.string())])


@dataclass(frozen=True)
class Side:
    """The distinct sentences of one side, clean (NFC, single spaces); equal ones are one row, at their first line.

    path: the Arrow file of all sentences that are not blank.
    lines: where these stand in the table, int64 (sentences,)
    row_of: the row of each, int32 (sentences,)
    first: the sentence with which each row first appears, int64 (rows,)
    digest: of all sentences.
    """

    name: str
    path: Path
    lines: NDArray[np.int64]
    row_of: NDArray[np.int32]
    first: NDArray[np.int64]
    digest: str

    def __len__(self) -> int:
        return len(self.first)

    @cached_property
    def _sentences(self) -> Sentences:
        return Sentences(self.path)

    def read(self, start: int, stop: int) -> list[str]:
        """The sentences of rows `start` to `stop`, the last one not included."""
        places = self.first[start:stop]
        if not len(places):
            return []
        between = self._sentences.read(int(places[0]), int(places[-1]) + 1)
        return [between[place] for place in (places - places[0]).tolist()]

    def line(self, row: int) -> int:
        """Where the sentence of a row stands first, from 1."""
        return int(self.lines[self.first[row]])

    def row_at(self, line: int) -> int | None:
        """The row of the sentence that stands in a line; None where none does."""
        place = int(np.searchsorted(self.lines, line))
        is_there = place < len(self.lines) and self.lines[place] == line
        return int(self.row_of[place]) if is_there else None


def lay_down(table: Table, path: Path, cache: Path | None, rejects: Rejects | None) -> Side:
    """Writes the sentences of `table` to `path` and tells what is left out. Raises RequestError when all are blank."""
    lines, digests, blank = array("q"), bytearray(), 0

    def sentences() -> Iterator[str]:
        nonlocal blank
        for record in sentence_records(table, cache, rejects):
            sentence = clean(record.values[0])
            if rejects is not None:
                rejects.used()
            if not sentence:
                blank += 1
                continue
            lines.append(record.line)
            digests.extend(hashlib.blake2b(sentence.encode(), digest_size=DIGEST_BYTES).digest())
            yield sentence

    _write_sentences(path, sentences())
    if not lines:
        raise RequestError(f"{table.name}: expected sentences, found {blank:,} blank ones and no other")
    row_of, first = number_targets(np.frombuffer(digests, DIGEST))
    _tell(table.name, len(first), blank, len(lines) - len(first))
    return Side(table.name, path, np.frombuffer(lines, np.int64), row_of, first, hashlib.sha256(digests).hexdigest())


def _write_sentences(path: Path, sentences: Iterator[str]) -> None:
    try:
        with path.open("wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            while block := list(islice(sentences, AT_ONCE)):
                writer.write_batch(pa.record_batch([pa.array(block, pa.string())], schema=SCHEMA))
    except OSError as error:
        raise not_written(path, error) from error


def _tell(name: str, rows: int, blank: int, repeated: int) -> None:
    counts = {"blank": blank, "equal to an earlier one": repeated}
    left_out = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    say(f"{name}: {rows:,} sentences" + (f"; left out: {left_out}" if left_out else ""))


# Gold


def read_gold(table: Table, source: Side, target: Side, cache: Path | None = None) -> NDArray[np.int64]:
    """The true pairs as `pair_keys`, each once: of the columns `source_line` and `target_line`, else of the first two.

    Raises RequestError, with file and line, for what is no line number, or of a line that holds no sentence.
    """
    found = set()
    for record in read(_without_header(table), LINES, cache):
        if len(record.values) != len(LINES):
            raise RequestError(f"{table.name}: expected two columns of line numbers, found {len(record.values)} named")
        source_row, target_row = (
            _row_at(value, side, record) for value, side in zip(record.values, (source, target), strict=True)
        )
        found.add(source_row * len(target) + target_row)
    return np.array(sorted(found), np.int64)


def _without_header(table: Table) -> Table:
    """`table` as one without a header, where its first row is two numbers already, which no columns are called."""
    if table.path is None or table.file_format not in ("csv", "tsv", "lines") or not table.header:
        return table
    as_rows = table.model_copy(update={"header": False, "format": "csv" if table.file_format == "csv" else "tsv"})
    first = next(read(as_rows, [0, 1]))
    return as_rows if all(str(value).isdecimal() for value in first.values) else table


def _row_at(value: Any, side: Side, record: Record) -> int:
    number = int(value) if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()) else None
    if number is None or isinstance(value, bool):
        raise RequestError(
            f"{record.file}, line {record.line:,}: expected the numbers of two lines, found something else"
        )
    row = side.row_at(number)
    if row is None:
        raise RequestError(
            f"{record.file}, line {record.line:,}: expected the line of a sentence in {side.name}, found {number:,}, "
            "where none stands. Lines count from 1, a header included; blank ones are no sentences"
        )
    return row


def pair_keys(pairs: Pairs, targets: int) -> NDArray[np.int64]:
    """One number for each pair, of `targets` that there are."""
    return pairs.sources * targets + pairs.targets


# The pairs


class Row(NamedTuple):
    """A line of the output: lines count from 1, a header included."""

    score: float
    source_line: int
    target_line: int
    source: str
    target: str


def check_output(output: Path, *inputs: Table) -> None:
    """Raises RequestError for an output of no known kind, in no folder, or that is one of the `inputs`."""
    if output.suffix not in WRITERS:
        raise RequestError(f"output: expected a file that ends in {', '.join(WRITERS)}, found {output}")
    if not output.parent.is_dir():
        raise RequestError(f"output: there is no folder {output.parent} to write {output.name} into; make it first")
    if output.is_dir():
        raise RequestError(f"output: expected a file, found the folder {output}; name a file in it")
    paths = [Path(table.path) for table in inputs if table.path and output.exists() and Path(table.path).exists()]
    if any(map(output.samefile, paths)):
        raise RequestError(f"output: {output} is an input; name another file")


def write_pairs(output: Path, pairs: Pairs, source: Side, target: Side) -> None:
    """Writes the pairs with their lines and texts, best first; the file is whole or not there."""
    writing = output.with_name(output.name + ".writing")
    try:
        WRITERS[output.suffix](writing, _rows(pairs, source, target))
        with writing.open("rb") as file:
            os.fsync(file.fileno())
        writing.replace(output)
        sync_folder(output.parent)
    except OSError as error:
        raise not_written(output, error) from error
    finally:
        writing.unlink(missing_ok=True)


def _rows(pairs: Pairs, source: Side, target: Side) -> Iterator[Row]:
    for score, *rows in zip(pairs.scores.tolist(), pairs.sources.tolist(), pairs.targets.tolist(), strict=True):
        places = [(side, row) for side, row in zip((source, target), rows, strict=True)]
        lines = [side.line(row) for side, row in places]
        texts = [side.read(row, row + 1)[0] for side, row in places]
        yield Row(round(score, DIGITS_SHOWN), lines[0], lines[1], texts[0], texts[1])


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
