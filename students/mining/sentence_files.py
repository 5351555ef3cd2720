"""The sentences of source and target of bitext mining, and the true pairs of a gold file."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertrelay.cache import Cache
from bertrelay.data.arrow import Sentences, number_distinct, open_arrow, text_digests
from bertrelay.data.records import Rejects, canonical_id, read, rows
from bertrelay.data.sentences import clean
from bertrelay.data.tables import Record, Table
from bertrelay.errors import RequestError
from bertrelay.progress import log
from students.searching.sentences import write_sentences

LINES = ("source_line", "target_line")
IDS = ("source_id", "target_id")
SIDES = ("source", "target")


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


def read_sentences(table: Table, path: Path, cache: Cache | None, rejects: Rejects | None) -> SentenceFile:
    """Writes the sentences of `table` to `path`, and logs what is left out. Raises RequestError when all are blank."""
    blank, written = write_sentences(table, path, cache, rejects, clean), open_arrow(path)
    digests = text_digests(text for chunk in written["text"].chunks for text in chunk.to_pylist())
    row_of, first = number_distinct(digests)
    counts = {"blank": blank, "equal to an earlier one": len(written) - len(first)}
    left_out = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    log(f"{table.name}: {len(first):,} sentences" + (f"; left out: {left_out}" if left_out else ""))
    digest = hashlib.sha256(digests.buffers()[1]).hexdigest()
    return SentenceFile(table.name, path, written["line"].to_numpy(), row_of, first, digest)


def read_gold(
    table: Table,
    source: SentenceFile,
    target: SentenceFile,
    cache: Cache | None = None,
    ids: tuple[Table, Table] | None = None,
) -> NDArray[np.int64]:
    """The true pairs, each once, as source row × targets + target row.

    They are lines in the columns `source_line` and `target_line`, or `source` and `target`, else in the first two.

    ids: tables of the identifiers of source and target. The pairs are then identifiers, in the columns `source_id` and
        `target_id`, or `source` and `target`, else in the first two.
    Raises RequestError, with file and line, for what is no line number, or of a line without a sentence, and for an
    identifier that no sentence has.
    """
    sides, names = (source, target), IDS if ids else LINES
    found = list(read(_without_header(table, names), names, cache))
    if len(found[0].values) != len(names):
        raise RequestError(f"{table.name}: expected two columns of true pairs, found {len(found[0].values)} named")
    lines_of: list[Callable[[str], int | None]] = [_line_number, _line_number]
    named = [[(_identifier if ids else _text)(record, place) for place in range(len(sides))] for record in found]
    if ids:
        wanted = map(set, zip(*named, strict=True))
        lines_of = [_lines_of_ids(own, names, cache).get for own, names in zip(ids, wanted, strict=True)]
    pairs = set()
    for record, values in zip(found, named, strict=True):
        pair = []
        for value, line_of, sentences in zip(values, lines_of, sides, strict=True):
            line = line_of(value)
            row = None if line is None else sentences.row_at(line)
            if row is None:
                raise RequestError(
                    f"{record.file}, line {record.line:,}: expected {_no_sentence(line, sentences, bool(ids))}"
                )
            pair.append(row)
        pairs.add(pair[0] * len(target) + pair[1])
    return np.array(sorted(pairs), np.int64)


def _text(record: Record, place: int) -> str:
    return str(record.values[place])


def _identifier(record: Record, place: int) -> str:
    """An identifier in its one form. Raises RequestError for a rounded one."""
    try:
        return canonical_id(record.values[place])
    except ValueError as error:
        raise RequestError(f"{record.file}, line {record.line:,}: expected identifiers, found {error}") from None


def _line_number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _lines_of_ids(table: Table, wanted: set[str], cache: Cache | None) -> dict[str, int]:
    """The lines of the sentences that have the identifiers `wanted`, which stand in the first column of `table`.

    Raises RequestError for one that several sentences have.
    """
    lines: dict[str, int] = {}
    for row in rows(table, (), cache):
        if isinstance(row, Record) and (name := _identifier(row, 0)) in wanted:
            if name in lines:
                raise RequestError(
                    f"{row.file}, line {row.line:,}: expected each identifier once, found that of line "
                    f"{lines[name]:,} again; make them different, or name pairs by lines"
                )
            lines[name] = row.line
    return lines


def _no_sentence(line: int | None, sentences: SentenceFile, by_id: bool) -> str:
    """What an error says of a true pair that leads to no sentence."""
    if by_id:
        return f"the identifiers of two sentences, found one that no sentence of {sentences.name} has"
    if line is None:
        return "the numbers of two lines, found something else"
    return (
        f"the line of a sentence in {sentences.name}, found {line:,}, where there is none. Lines count from 1, a "
        "header included; blank ones are no sentences"
    )


def _without_header(table: Table, names: tuple[str, str]) -> Table:
    """`table` as one without a header, where its first row is a pair already; columns that are SIDES are named."""
    if table.path is None or table.file_format not in ("csv", "tsv", "lines") or not table.header:
        return table
    as_rows = table.model_copy(update={"header": False, "format": "csv" if table.file_format == "csv" else "tsv"})
    first = next(read(as_rows, [0, 1])).values
    by_name = {str(value).strip().casefold(): value for value in first}
    if table.columns is None and by_name.keys() == set(SIDES):
        return table.model_copy(update={"columns": [by_name[name] for name in SIDES]})
    is_pair = names == LINES and all(str(value).isdecimal() for value in first)
    return as_rows if is_pair or (names == IDS and set(first) != set(IDS)) else table
