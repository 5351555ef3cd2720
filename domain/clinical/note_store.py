"""Notes in the order of their stays, whatever the order in which they are read, in memory that does not grow with them.

DuckDB sorts the keys of the notes, and spills inside a folder of the stage. It needs the rows of a sort in memory, some
hundred thousand at once, so that their texts are in a file of their own, which has no name: a kill leaves none of it.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, groupby
from operator import attrgetter
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import pyarrow as pa

from bertrelay.data.shards import Span
from bertrelay.errors import WorkError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY = "96MB"
KEYS = pa.schema(
    {
        "stay": pa.int32(),
        "hadm_id": pa.string(),
        "kind": pa.int8(),
        "charted": pa.string(),
        "row": pa.int64(),
        "digest": pa.binary(),
        "characters": pa.int32(),
        "start": pa.int64(),
        "size": pa.int32(),
    }
)
SORTED = """
    CREATE TABLE sorted AS SELECT * EXCLUDE (digest) FROM keys
    QUALIFY digest IS NULL
        OR row_number() OVER (PARTITION BY stay, hadm_id, kind, charted, digest ORDER BY start) = 1
    ORDER BY stay, charted NULLS LAST, row, start
"""
NOTES_OF_SPAN = """
    SELECT stay, hadm_id, kind, charted, row, start, size FROM sorted
    WHERE stay >= ? AND stay < ? ORDER BY stay, charted NULLS LAST, row, start
"""


class Note(NamedTuple):
    """A note of a stay, by the stay's number. charted: a time that sorts as text; row: the number of its
    row. Notes of one stay with equal times and numbers keep the order in which they are added.
    """

    stay: int
    hadm_id: str | None
    kind: int
    charted: str | None
    row: int
    text: str


def digest_of(text: str) -> bytes:
    """Returns a hash of a text that white space does not change."""
    return hashlib.blake2b(" ".join(text.split()).encode(), digest_size=16).digest()


class NoteStore:
    """Notes that are added in any order, then sorted, then read by stays. Blank texts are no copies of each other."""

    def __init__(self, base: "DuckDBPyConnection", texts: BinaryIO) -> None:
        self._base, self._texts, self._end = base, texts, 0
        base.from_arrow(KEYS.empty_table()).create("keys")

    def add(self, notes: Sequence[Note]) -> None:
        """Adds a block of notes."""
        texts = [note.text.encode() for note in notes]
        starts = list(accumulate(map(len, texts), initial=self._end))
        self._texts.write(b"".join(texts))
        self._end = starts.pop()
        rows = [
            (*note[:-1], digest_of(note.text) if note.text.strip() else None, len(note.text), start, len(text))
            for note, text, start in zip(notes, texts, starts, strict=True)
        ]
        columns = zip(*rows, strict=True) if rows else [[] for _ in KEYS]
        arrays = [pa.array(list(column), kind) for column, kind in zip(columns, KEYS.types, strict=True)]
        self._base.from_arrow(pa.Table.from_arrays(arrays, schema=KEYS)).insert_into("keys")

    def sort(self) -> dict[int, int]:
        """Sorts the notes by stay, time and row, and leaves out copies: notes of equal text, admission, kind and time.

        Returns the characters of each stay that has notes, in the order of the stays.
        """
        self._base.execute(SORTED)
        self._base.execute("DROP TABLE keys")
        sizes = self._base.execute("SELECT stay, SUM(characters) FROM sorted GROUP BY stay ORDER BY stay").fetchall()
        return {stay: int(characters) for stay, characters in sizes}

    def __len__(self) -> int:
        (row,) = self._base.execute("SELECT COUNT(*) FROM sorted").fetchall()
        return int(row[0])

    def read(self, span: Span) -> Iterator[tuple[int, list[Note]]]:
        """Yields the stays of `span` that have notes, with the notes in order."""
        rows = self._base.execute(NOTES_OF_SPAN, [span.first, span.end]).fetchall()
        notes = (Note._make((*key, self._text(start, size))) for *key, start, size in rows)
        return ((stay, list(group)) for stay, group in groupby(notes, attrgetter("stay")))

    def _text(self, start: int, size: int) -> str:
        self._texts.seek(start)
        return self._texts.read(size).decode()


@contextmanager
def open_note_store(folder: Path) -> Iterator[NoteStore]:
    """Opens an empty store in `folder`, which a killed run may have left, and which is removed at the end.

    Raises WorkError where DuckDB cannot sort, as on a full disk.
    """
    import duckdb  # 20 MB that no other stage needs

    rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    options: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": MEMORY,
        "threads": 1,  # each needs memory of its own, and the keys of a million notes take seconds
        "temp_directory": str(folder),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    try:
        with duckdb.connect(config=options) as base, TemporaryFile(dir=folder) as texts:
            yield NoteStore(base, texts)
    except duckdb.Error as error:
        raise WorkError(
            f"the notes could not be sorted in {folder}: DuckDB reports {type(error).__name__}. Free space where the "
            "disk is full, then run again"
        ) from error
    finally:
        rmtree(folder, ignore_errors=True)
