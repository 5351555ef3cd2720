"""Rows of MIMIC's tables, streamed in blocks, of files of any size: ids in one form, dates parsed, all else text.

A row that cannot be used is counted and listed by its number; neither its text nor an id of it is ever told.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertrelay.data.readers import open_input
from bertrelay.data.records import Rejects, TakesRejects
from bertrelay.errors import RequestError
from domain.clinical.cohorts.fields import parsed
from domain.clinical.cohorts.tables import Version

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    from numpy.typing import NDArray

BLOCK_BYTES = 4 << 20  # the longest note is far shorter, and blocks of 16 MB are read at half the speed
ROW = "row"
"""The column that says where a row stands: the header is row 1, and a text over several lines is one row."""

GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Block:
    """Some thousand rows of a table; block n of a file holds the same rows whenever it is read.

    number: from 0.
    rows: the columns asked for, in lower case, and `row`. Ids and text are strings, empty where missing; times and
        days are timestamps to the second, null where missing.
    bytes_read: of the file so far, packed as it lies there, for showing progress.
    """

    number: int
    rows: "pa.Table"
    bytes_read: int


def read_table(file: Path, columns: Sequence[str], rejects: Rejects) -> "pd.DataFrame":
    """All rows of a table that fits into memory, as `read_blocks` gives them; counted as used while they come in."""
    import pyarrow as pa

    blocks = []
    for block in read_blocks(file, columns, rejects):
        rejects.used(block.rows.num_rows)
        blocks.append(block.rows)
    found: pd.DataFrame = pa.concat_tables(blocks).to_pandas()
    return found


def read_blocks(file: Path, columns: Sequence[str], rejects: TakesRejects, first_block: int = 0) -> Iterator[Block]:
    """Streams the blocks of a table from `first_block` on; those before it are read over and not looked at.

    columns: by their names in lower case.
    rejects: counts and lists the rows that cannot be used; the caller counts the used ones.
    Raises RequestError for what concerns the whole file: missing, damaged, without a column, without rows.
    """
    names = _names_in(file, columns)
    reading = _Reading(file)
    for number, (batch, rows) in enumerate(reading.batches(list(names.values()))):
        wrong = reading.take_wrong_rows()
        if number >= first_block:
            _reject(wrong, file, rejects)
            yield Block(number, _usable(batch.rename_columns(list(names)), rows, file, rejects), reading.bytes_read)
    _reject(reading.take_wrong_rows(), file, rejects)
    if reading.last_row == 1:
        raise RequestError(f"{file} holds no rows that can be read. Check that it is complete, or fetch it again.")


def columns_of(file: Path) -> list[str]:
    """The names of a table's columns in lower case. Raises RequestError where there is no header."""
    return [name.strip().lower() for name in _header(file)]


def version_of(patients: Path) -> Version:
    """Whose table of patients it is: MIMIC-III knows the day of birth, MIMIC-IV an anchor's age."""
    columns = columns_of(patients)
    if "dob" in columns:
        return "III"
    if "anchor_age" in columns:
        return "IV"
    raise RequestError(
        f"{patients}: expected a column dob (MIMIC-III) or anchor_age (MIMIC-IV), found {len(columns)} others. "
        "Give MIMIC's own table of patients."
    )


def _header(file: Path) -> list[str]:
    with open_input(str(file)) as stream:
        try:
            first = stream.readline().decode("utf-8-sig")
        except (EOFError, OSError, UnicodeDecodeError) as error:
            raise _damaged(file, 0, type(error).__name__) from None
    names = next(csv.reader([first]), [])
    if not names:
        raise RequestError(f"{file} is empty: expected a table of MIMIC. Fetch it again.")
    return names


def _names_in(file: Path, columns: Sequence[str]) -> dict[str, str]:
    """The columns asked for, by their names in lower case, to their names in the file."""
    header = _header(file)
    found: dict[str, str] = {}
    for column in columns:
        same = [name for name in header if name.strip().lower() == column]
        if len(same) != 1:
            raise RequestError(
                f"{file}: expected one column {column} (in any case), found {len(same) or 'none'} among "
                f"{len(header)} columns. Give the table as MIMIC has it."
            )
        found[column] = same[0]
    return found


class _Reading:
    """One pass over a CSV file: batches of undecoded fields, where their rows stand, and how much was read.

    last_row: of what was given so far.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.bytes_read = 0
        self.last_row = 1
        self._wrong_rows: list[int] = []  # those with another number of fields than the header
        self._wrong_taken = 0

    def batches(self, names: Sequence[str]) -> "Iterator[tuple[pa.RecordBatch, NDArray[np.int64]]]":
        """Batches with the columns `names` as bytes, in this order, and the numbers of their rows."""
        import pyarrow as pa

        try:
            with pa.OSFile(str(self.file)) as raw:
                packed = raw.read(2) == GZIP
                raw.seek(0)
                stream = _QuoteCounter(pa.CompressedInputStream(raw, "gzip") if packed else raw)
                for batch in self._open(pa.PythonFile(stream, mode="r"), names):
                    self.bytes_read = raw.tell()
                    yield batch, self._numbers(batch.num_rows)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(self.file, self.last_row, type(error).__name__) from None
        if stream.quotes % 2:
            raise _damaged(self.file, self.last_row, "a quote is left open")

    def _open(self, stream: "pa.PythonFile", names: Sequence[str]) -> "pa.csv.CSVStreamingReader":
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        return arrow_csv.open_csv(
            stream,
            arrow_csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False),  # threads would not tell row numbers
            arrow_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=self._note),
            arrow_csv.ConvertOptions(include_columns=list(names), column_types=dict.fromkeys(names, pa.binary())),
        )

    def _note(self, row: Any) -> str:
        self._wrong_rows.append(row.number)
        return "skip"

    def take_wrong_rows(self) -> list[int]:
        """The rows of another width that were met since this was last asked."""
        found = self._wrong_rows[self._wrong_taken :]
        self._wrong_taken = len(self._wrong_rows)
        return found

    def _numbers(self, count: int) -> "NDArray[np.int64]":
        """Where the next `count` sound rows stand, the wrong ones between them left out."""
        import numpy as np

        after = np.arange(self.last_row + 1, self.last_row + 1 + count + len(self._wrong_rows))
        numbers = np.setdiff1d(after, self._wrong_rows)[:count]
        self.last_row = int(numbers[-1]) if count else self.last_row
        return numbers


class _QuoteCounter:
    """Reads through to a stream and counts its quotes: where their number is odd, one has swallowed what follows."""

    closed = False

    def __init__(self, stream: "pa.NativeFile") -> None:
        self.stream = stream
        self.quotes = 0

    def read(self, size: int = -1) -> bytes:
        found: bytes = self.stream.read(size)
        self.quotes += found.count(b'"')
        return found

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.stream.close()


def _reject(wrong: Sequence[int], file: Path, rejects: TakesRejects) -> None:
    for row in wrong:
        rejects.add(str(file), row, "another number of fields than the header")


def _usable(batch: "pa.RecordBatch", rows: "NDArray[np.int64]", file: Path, rejects: TakesRejects) -> "pa.Table":
    """The batch with its values parsed and `row` beside them, without the rows that hold what cannot be."""
    import numpy as np
    import pyarrow as pa

    sound = np.ones(batch.num_rows, bool)
    columns: dict[str, pa.Array] = {ROW: pa.array(rows)}
    for name, raw in zip(batch.schema.names, batch.columns, strict=True):
        columns[name], reason = parsed(name, raw)
        wrong = sound & _lost(raw, columns[name])
        for row in rows[wrong].tolist():
            rejects.add(str(file), row, reason)
        sound &= ~wrong
    return pa.table(columns).filter(pa.array(sound))


def _lost(raw: "pa.Array", parsed: "pa.Array") -> "NDArray[np.bool_]":
    """Where something stood and nothing could be made of it."""
    import pyarrow.compute as pc

    there = pc.greater(pc.binary_length(raw), 0)
    lost: NDArray[np.bool_] = pc.and_(pc.is_null(parsed), there).to_numpy(zero_copy_only=False)
    return lost


def _damaged(file: Path, row: int, how: str) -> RequestError:
    return RequestError(
        f"{file} is cut off or damaged somewhere after row {row:,} ({how}). Fetch it again, or pack it again."
    )
