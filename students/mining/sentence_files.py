"""The distinct sentences of source and target of bitext mining, in Arrow files."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertrelay.cache import Cache
from bertrelay.data.arrow import Sentences, number_distinct, open_arrow, text_digests
from bertrelay.data.records import Rejects
from bertrelay.data.sentences import clean
from bertrelay.data.tables import Table
from bertrelay.progress import log
from students.searching.sentences import write_sentences


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
        """Reads the sentences of rows `start` to `stop`, the last one not included."""
        positions = self.first[start:stop]
        if not len(positions):
            return []
        between = self._sentences.read(int(positions[0]), int(positions[-1]) + 1)
        return [between[position] for position in (positions - positions[0]).tolist()]

    def text(self, row: int) -> str:
        return self.read(row, row + 1)[0]

    def line(self, row: int) -> int:
        """Returns the first line of a row's sentence, from 1."""
        return int(self.lines[self.first[row]])

    def describe_row(self, row: int) -> str:
        """Names the sentence of a row in an error."""
        return f"line {self.line(row):,} of {self.name}"

    def row_at(self, line: int) -> int | None:
        """Returns the row of the sentence of a line; None for a line without one."""
        position = int(np.searchsorted(self.lines, line))
        exists = position < len(self.lines) and self.lines[position] == line
        return int(self.row_of[position]) if exists else None


def read_sentences(table: Table, path: Path, cache: Cache | None, rejects: Rejects | None) -> SentenceFile:
    """Writes the sentences of `table` to `path`, and logs the dropped ones. Raises RequestError if all are blank."""
    blank, written = write_sentences(table, path, cache, rejects, clean), open_arrow(path)
    digests = text_digests(text for chunk in written["text"].chunks for text in chunk.to_pylist())
    row_of, first = number_distinct(digests)
    counts = {"blank": blank, "equal to an earlier one": len(written) - len(first)}
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in counts.items() if count)
    log(f"{table.name}: {len(first):,} sentences" + (f"; left out: {left_out}" if left_out else ""))
    digest = hashlib.sha256(digests.buffers()[1]).hexdigest()
    return SentenceFile(table.name, path, written["line"].to_numpy(), row_of, first, digest)
