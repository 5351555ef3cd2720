"""What scoring reads and writes: notes sorted by admission on the disk, scored blocks, and the table they become.

Imports neither torch nor transformers, so that an invalid request is refused at once.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bertrelay.data.records import Rejects, rows
from bertrelay.data.shards import Span, cut_spans
from bertrelay.data.tables import Record, Table, write_table
from bertrelay.errors import RequestError
from bertrelay.files import write_error
from domain.clinical.ids import canonical_id, given_note, warn_of_mixed_ids

SUFFIXES = (".csv", ".jsonl", ".parquet")
BLOCK_CHARACTERS = 400_000
"""As much text is scored before it is on the disk, some 80 admissions: the most that a kill costs."""
BLOCK_ADMISSIONS = 2_000
"""And so many admissions at most, for those with little or no text are rows as well."""
Row = dict[str, Any]
Admission = tuple[str, list[str]]
"""An id and its notes, in the order of the rows."""


class NotesTable(NamedTuple):
    """A file of notes, and the columns of admission and text."""

    path: Path
    id_column: str = "hadm_id"
    text_column: str = "text"

    @property
    def table(self) -> Table:
        columns = [self.id_column, self.text_column]
        return Table.model_validate({"path": str(self.path), "columns": columns})


def check_notes(notes: NotesTable) -> None:
    """Reads one row, which shows most of what can be wrong with a request. Raises RequestError."""
    if notes.table.file_format not in ("csv", "tsv", "jsonl", "parquet"):
        raise RequestError(f"notes: expected a file that ends in .csv, .tsv, .jsonl or .parquet, found {notes.path}")
    next(rows(notes.table, []), None)


class SortedNotes:
    """The notes of a file by admission, whatever the order of its rows: in a nameless file that ends with the process.

    admissions: in the order in which the file first has them. digest: sha256 of all that a scorer sees.
    """

    def __init__(self, base: sqlite3.Connection, digest: str) -> None:
        self._base, self.digest = base, digest
        self.admissions = int(base.execute("SELECT COUNT(*) FROM admissions").fetchone()[0])

    @property
    def spans(self) -> list[Span]:
        """Spans of `BLOCK_CHARACTERS` or little more, and no more than `BLOCK_ADMISSIONS`, which count as so much."""
        sizes = self._base.execute(
            "SELECT SUM(LENGTH(text)) FROM admissions JOIN notes USING (id) GROUP BY number ORDER BY number"
        )
        least = BLOCK_CHARACTERS // BLOCK_ADMISSIONS
        return cut_spans(((max(least, size), 1) for (size,) in sizes), BLOCK_CHARACTERS)

    def of(self, span: Span) -> list[Admission]:
        """The admissions of a span."""
        found: dict[str, list[str]] = {}
        for name, text in self._base.execute(
            "SELECT id, text FROM admissions JOIN notes USING (id) WHERE number >= ? AND number < ? "
            "ORDER BY number, place",
            span[:2],
        ):
            found.setdefault(name, []).append(text)
        return list(found.items())

    def one(self, identifier: str) -> list[str]:
        """The notes of one admission; none of one that is not there."""
        found = self._base.execute("SELECT text FROM notes WHERE id = ? ORDER BY place", [canonical_id(identifier)])
        return [text for (text,) in found]

    def only(self) -> str | None:
        """The admission, where there is one alone."""
        first = self._base.execute("SELECT id FROM admissions").fetchone()
        return str(first[0]) if self.admissions == 1 else None


@contextmanager
def sorted_notes(notes: NotesTable, beside: Path, rejects: Rejects) -> Iterator[SortedNotes]:
    """Reads `notes` once. Rows without an admission, or that cannot be read, go to `rejects`.

    beside: where there is space for as much text again.
    Raises RequestError when nothing is left.
    """
    path = beside.with_name(f".{beside.name}.notes")
    path.unlink(missing_ok=True)
    base = sqlite3.connect(path, isolation_level=None)
    try:
        base.execute("PRAGMA journal_mode = OFF")
        base.execute("PRAGMA synchronous = OFF")
        folder = str(beside.absolute().parent).replace("'", "''")
        base.execute(f"PRAGMA temp_store_directory = '{folder}'")  # what does not fit into memory is sorted there
        base.execute("CREATE TABLE notes (id TEXT, place INTEGER, text TEXT)")
        path.unlink()  # only this process can read its text, and a kill leaves none of it
        digest = hashlib.sha256()
        base.execute("BEGIN")
        base.executemany("INSERT INTO notes VALUES (?, ?, ?)", _numbered(notes, rejects, digest))
        base.execute("COMMIT")
        base.execute("CREATE INDEX by_id ON notes (id, place)")
        base.execute("CREATE TABLE admissions (number INTEGER PRIMARY KEY, id TEXT)")
        base.execute(
            "INSERT INTO admissions SELECT ROW_NUMBER() OVER (ORDER BY MIN(place)) - 1, id FROM notes GROUP BY id"
        )
        found = SortedNotes(base, digest.hexdigest())
        if not found.admissions:
            raise RequestError(f"{notes.path} holds no note of an admission. Check the file and its columns.")
        yield found
    except sqlite3.OperationalError as error:
        raise write_error(path, OSError(28, "the notes could not be sorted on the disk")) from error
    finally:
        base.close()
        path.unlink(missing_ok=True)


def _numbered(notes: NotesTable, rejects: Rejects, digest: "hashlib._Hash") -> Iterator[tuple[str, int, str]]:
    kinds = set[type]()
    for place, row in enumerate(rows(notes.table, [])):
        if not isinstance(row, Record):
            rejects.add(row.file, row.line, row.reason)
            continue
        try:
            name, text = given_note(*row.values)
        except ValueError as error:
            rejects.add(row.file, row.line, str(error))
            continue
        kinds.add(type(row.values[0]))
        rejects.used()
        digest.update(json.dumps([name, text]).encode())
        yield name, place, text
    warn_of_mixed_ids(notes.id_column, kinds)


def write_scores(rows: Iterator[Row], columns: Sequence[str], output: Path) -> None:
    """Writes rows as JSONL, Parquet or CSV, by the suffix; CSV has no place for the list of chunks."""
    import pyarrow as pa

    chunk = {"start": pa.int32(), "end": pa.int32(), "probability": pa.float64(), "share": pa.float64()}
    kinds = {
        **dict.fromkeys(("hadm_id", "label", "top_section", "top_text", "reason"), pa.string()),
        **dict.fromkeys(("n_chunks", "top_start", "top_end"), pa.int32()),
        "alarm": pa.bool_(),
        "chunks": pa.list_(pa.struct(list(chunk.items()))),
    }
    typed = {name: kinds.get(name, pa.float64()) for name in columns if name != "chunks" or output.suffix != ".csv"}
    write_table(output, typed, ([row[name] for name in typed] for row in rows))
