"""What bitext mining reads: the distinct sentences of source and target, and the true pairs of a gold file."""

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bertrelay.data.records import Record, Rejects, Table, read
from bertrelay.data.sentences import sentence_records
from bertrelay.errors import RequestError
from bertrelay.files import write_error
from bertrelay.progress import log
from students.parallel.corpus import Sentences
from students.parallel.pairs import clean
from students.parallel.split import DIGEST, DIGEST_BYTES, number_targets

LINES = ("source_line", "target_line")
AT_ONCE = 4096
SCHEMA = pa.schema([("sentence", pa.string())])


@dataclass(frozen=True)
class SentenceFile:
    """The distinct sentences of source or target, clean (NFC, single spaces); equal ones are one row.

    path: the Arrow file of all sentences that are not blank.
    lines: their lines in the table, int64 (sentences,)
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

    def text(self, row: int) -> str:
        """The sentence of a row."""
        return self.read(row, row + 1)[0]

    def line(self, row: int) -> int:
        """The first line of a row's sentence, from 1."""
        return int(self.lines[self.first[row]])

    def place(self, row: int) -> str:
        """What an error calls the sentence of a row."""
        return f"line {self.line(row):,} of {self.name}"

    def row_at(self, line: int) -> int | None:
        """The row of the sentence of a line; None where there is none."""
        place = int(np.searchsorted(self.lines, line))
        is_there = place < len(self.lines) and self.lines[place] == line
        return int(self.row_of[place]) if is_there else None


def read_sentences(table: Table, path: Path, cache: Path | None, rejects: Rejects | None) -> SentenceFile:
    """Writes the sentences of `table` to `path`, and logs what is left out. Raises RequestError when all are blank."""
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
    _log_summary(table.name, len(first), blank, len(lines) - len(first))
    return SentenceFile(
        table.name, path, np.frombuffer(lines, np.int64), row_of, first, hashlib.sha256(digests).hexdigest()
    )


def _write_sentences(path: Path, sentences: Iterator[str]) -> None:
    try:
        with path.open("wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            while block := list(islice(sentences, AT_ONCE)):
                writer.write_batch(pa.record_batch([pa.array(block, pa.string())], schema=SCHEMA))
    except OSError as error:
        raise write_error(path, error) from error


def _log_summary(name: str, rows: int, blank: int, repeated: int) -> None:
    counts = {"blank": blank, "equal to an earlier one": repeated}
    left_out = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    log(f"{name}: {rows:,} sentences" + (f"; left out: {left_out}" if left_out else ""))


# Gold


def read_gold(table: Table, source: SentenceFile, target: SentenceFile, cache: Path | None = None) -> NDArray[np.int64]:
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


def _row_at(value: Any, side: SentenceFile, record: Record) -> int:
    number = int(value) if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()) else None
    if number is None or isinstance(value, bool):
        raise RequestError(
            f"{record.file}, line {record.line:,}: expected the numbers of two lines, found something else"
        )
    row = side.row_at(number)
    if row is None:
        raise RequestError(
            f"{record.file}, line {record.line:,}: expected the line of a sentence in {side.name}, found {number:,}, "
            "where there is none. Lines count from 1, a header included; blank ones are no sentences"
        )
    return row
