"""What all readers of clinical notes share: one form for ids, which rows can be used, and notes sorted on the disk.

`100001`, `100001.0` and `" 100001 "` name the same admission, of whatever type.
"""

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import groupby
from numbers import Integral
from operator import itemgetter
from pathlib import Path
from typing import Any

from bertrelay.data.readers import is_unicode
from bertrelay.data.records import MISSING_WORDS, canonical_id, is_missing
from bertrelay.data.records import log_copies as log_copies
from bertrelay.data.shards import Span
from bertrelay.errors import WorkError
from bertrelay.progress import log


def warn_of_mixed_ids(column: str, kinds: Iterable[type]) -> None:
    """Logs where the ids of a column are of several kinds: those written alike are taken for one."""
    names = {"text": str, "whole numbers": Integral, "numbers with a point": object}
    found = sorted({next(name for name, known in names.items() if issubclass(kind, known)) for kind in kinds})
    if len(found) > 1:
        log(f'{column}: some ids are {", others ".join(found)}; 7, 7.0 and "7" are taken for one admission')


def digest_of(text: str) -> bytes:
    """Identifies a text but for white space."""
    return hashlib.blake2b(" ".join(text.split()).encode(), digest_size=16).digest()


def given_note(identifier: object, text: object) -> tuple[str, str]:
    """The admission, by its id in the one form, and the text, empty where it is missing.

    Raises ValueError with the reason, and nothing of the row, for one that cannot be used.
    """
    name = canonical_id(identifier)
    if not name:
        raise ValueError("no id of an admission")
    if not isinstance(text, str) and not is_missing(text):
        raise ValueError("a note that is something other than text")
    given = text if isinstance(text, str) and text.strip() not in MISSING_WORDS else ""
    if not is_unicode((name, given)):
        raise ValueError("text that is not valid Unicode (half of a surrogate pair)")
    return name, given


@contextmanager
def note_database(path: Path, columns: str) -> Iterator[sqlite3.Connection]:
    """A table `notes` of the number of a stay, `columns` and text, as SQLite sorts more than fits into memory.

    Raises WorkError where SQLite cannot, as on a full disk.
    """
    try:
        with closing(sqlite3.connect(path)) as base:
            base.execute(f"CREATE TABLE IF NOT EXISTS notes (stay INT, {columns} text TEXT)")
            yield base
    except sqlite3.DatabaseError as error:
        raise WorkError(
            f"the notes could not be sorted in {path}: SQLite reports {str(error)!r}. Free space where the disk is "
            "full, end what else uses the file, then run again"
        ) from error


def sort_notes(base: sqlite3.Connection) -> dict[int, int]:
    """Sorts what is there by stay; the characters of each stay that has notes, in their order."""
    base.execute("CREATE INDEX IF NOT EXISTS by_stay ON notes (stay)")
    return dict(base.execute("SELECT stay, SUM(LENGTH(text)) FROM notes GROUP BY stay ORDER BY stay"))


def stays_of(base: sqlite3.Connection, span: Span) -> Iterator[tuple[int, Iterator[tuple[Any, ...]]]]:
    """The stays of a span that have notes, each with its rows in the order in which they came."""
    rows = base.execute("SELECT * FROM notes WHERE stay >= ? AND stay < ? ORDER BY stay, rowid", span[:2])
    return groupby(rows, key=itemgetter(0))
