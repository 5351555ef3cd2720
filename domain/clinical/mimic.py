"""MIMIC's tables: where they lie in a folder, and their rows, streamed in blocks from files of any size.

Ids come in one form, dates parsed, all else as text. A row that cannot be used is counted and listed by its number;
neither its text nor an id of it is ever logged.
"""

import csv
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator

from bertrelay.data.readers import open_input
from bertrelay.data.records import Rejects, TakesRejects
from bertrelay.errors import RequestError
from bertrelay.settings import InputFile
from domain.clinical.ids import canonical_ids

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    from numpy.typing import NDArray

Version = Literal["III", "IV"]

SUFFIXES = (".csv", ".csv.gz")
DEEPEST = 4  # folders: `physionet.org/files/mimiciv/3.1/hosp`; below may lie millions of files of other modules


@dataclass(frozen=True)
class TableSet:
    """Tables that are read together.

    needed: of each group of names exactly one, as MIMIC-III and MIMIC-IV name what they share differently.
    optional: what is read where it is there.
    """

    needed: tuple[tuple[str, ...], ...]
    optional: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (*(name for group in self.needed for name in group), *self.optional)


HOSPITAL = TableSet(needed=(("admissions",), ("patients",)), optional=("diagnoses_icd",))
NOTES = TableSet(needed=(("noteevents", "discharge"),), optional=("radiology", "admissions"))


def find_tables(folder: Path, wanted: TableSet) -> dict[str, Path]:
    """The files of `wanted` in `folder` or below, by the tables' names: `.csv` or `.csv.gz`, in any case.

    Raises RequestError when a needed one is missing or one is there twice.
    """
    found: dict[str, list[Path]] = {}
    for path in _files(folder):
        name = _table_name(path)
        if name in wanted.names:
            found.setdefault(name, []).append(path)
    for name, paths in found.items():
        if len(paths) > 1:
            listed = " and ".join(str(path.relative_to(folder)) for path in sorted(paths))
            raise RequestError(
                f"expected one table {name} in {folder}, found {len(paths)}: {listed}. "
                f'Keep one of them there, or name the files, as in {{ {name} = "FILE", … }}'
            )
    check_names(found, wanted, f"{folder} and up to {DEEPEST} folders below")
    return {name: found[name][0] for name in wanted.names if name in found}


def check_names(found: Iterable[str], wanted: TableSet, place: str) -> None:
    """Raises RequestError where `found` lacks a needed table, has one that is not known, or those of both MIMICs."""
    found = set(found)
    for group in wanted.needed:
        there = [name for name in group if name in found]
        if not there:
            files = " or ".join(f"{name}.csv[.gz]" for name in group)
            raise RequestError(
                f"expected the table {files} of MIMIC (in any case), found none in {place}. "
                f"Found there of what is read: {', '.join(sorted(found)) or 'nothing'}. "
                "Give the folder that holds the tables, or fetch this one"
            )
        if len(there) > 1:
            raise RequestError(f"expected the tables of one MIMIC, found {' and '.join(there)} in {place}. Choose one")
    unknown = found.difference(wanted.names)
    if unknown:
        raise RequestError(f"expected tables named {', '.join(wanted.names)}, found {', '.join(sorted(unknown))}")


def _files(folder: Path) -> Iterable[Path]:
    for root, folders, names in os.walk(folder, followlinks=True):
        deep = len(Path(root).relative_to(folder).parts)
        folders[:] = [] if deep == DEEPEST else sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root, name) for name in names)


def _table_name(path: Path) -> str:
    """The table a file holds, in lower case; empty when it is none."""
    name = path.name.lower()
    suffix = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)
    return name.removesuffix(suffix) if suffix else ""


def _located(wanted: TableSet, value: Any) -> Any:
    """The tables of a recipe, resolved where possible: the folder becomes its files.

    So a fingerprint covers the tables that a stage reads, and not the 33 GB beside them. The output of
    another stage, and a folder that is not there, stay what they are: `tables_of` and the plan look after them.
    """
    try:
        if isinstance(value, dict):
            check_names(value, wanted, "the setting")
        elif isinstance(value, str) and not isinstance(value, InputFile):
            folder = InputFile.parse(value)
            if Path(folder).is_dir():
                return {name: InputFile(path) for name, path in find_tables(Path(folder), wanted).items()}
    except RequestError as error:
        raise ValueError(str(error)) from None
    return value


Tables = dict[str, InputFile] | InputFile
"""The files of tables by name, or a folder that holds them."""

HospitalTables = Annotated[Tables, BeforeValidator(partial(_located, HOSPITAL))]
"""A setting: a folder of MIMIC with admissions, patients and diagnoses, or those files by name."""

NoteTables = Annotated[Tables, BeforeValidator(partial(_located, NOTES))]
"""A setting: a folder of MIMIC with its notes, or those files by name."""


def tables_of(setting: Tables, wanted: TableSet) -> dict[str, Path]:
    """The files that a setting names. Raises RequestError as `find_tables` does."""
    if isinstance(setting, dict):
        return {name: Path(path) for name, path in setting.items()}
    return find_tables(Path(setting), wanted)


def note_version(tables: Collection[str]) -> Version:
    """Whose notes these are."""
    return "III" if "noteevents" in tables else "IV"


IDS = ("subject_id", "hadm_id")
NUMBERS = ("hospital_expire_flag", "iserror", "icd_version", "seq_num", "anchor_age", "anchor_year")
"""Which may have been through floats as well, and are given as text in the same form."""
TIMES = ("admittime", "dischtime", "deathtime", "charttime", "storetime")
DAYS = ("chartdate", "dob", "dod")
TIME = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$"
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
MIDNIGHT = " 00:00:00"


def parsed(name: str, raw: "pa.Array") -> "tuple[pa.Array, str]":
    """A column as what it is by its name, null where that fails; and what to call the failure."""
    import pyarrow.compute as pc

    text = _decoded(raw)
    if name in TIMES:
        return _times(text), f"{name} is no time YYYY-MM-DD HH:MM:SS"
    if name in DAYS:
        is_day = pc.equal(pc.utf8_length(text), 10)
        midnights = pc.if_else(is_day, pc.binary_join_element_wise(text, MIDNIGHT, ""), text)
        return pc.floor_temporal(_times(midnights), unit="day"), f"{name} is no date YYYY-MM-DD"
    if name in IDS + NUMBERS:
        text = pc.if_else(pc.is_null(text), text, canonical_ids(text))
    return text, f"{name} is not valid UTF-8"


def _times(text: "pa.Array") -> "pa.Array":
    """Timestamps to the second; null for what is not written exactly so. strptime alone takes 30 February for March."""
    import pyarrow.compute as pc

    written = pc.if_else(pc.match_substring_regex(text, TIME), text, None)
    times = pc.strptime(written, TIME_FORMAT, "s", error_is_null=True)
    day = pc.utf8_slice_codeunits(written, 8, 10).cast("int64")
    return pc.if_else(pc.equal(pc.day(times), day), times, None)


def _decoded(raw: "pa.Array") -> "pa.Array":
    """Text of bytes; null where they are not UTF-8."""
    import pyarrow as pa

    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text(value) for value in raw.to_pylist()], pa.string())


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


BLOCK_BYTES = 4 << 20  # the longest note is far shorter, and blocks of 16 MB are read at half the speed
ROW = "row"
"""The column with the number of a row: the header is row 1, and a text over several lines is one row."""

GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class TableBlock:
    """Some thousand rows of a table; block n of a file holds the same rows whenever it is read.

    number: from 0.
    rows: the requested columns, in lower case, and `row`. Ids and text are strings, empty where missing; times and
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


def read_blocks(
    file: Path, columns: Sequence[str], rejects: TakesRejects, first_block: int = 0
) -> Iterator[TableBlock]:
    """Streams the blocks of a table from `first_block` on; those before it are skipped.

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
            yield TableBlock(
                number, _usable(batch.rename_columns(list(names)), rows, file, rejects), reading.bytes_read
            )
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
    """The requested columns, by their names in lower case, to their names in the file."""
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
    """One pass over a CSV file: batches of undecoded fields, the numbers of their rows, and how much was read.

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
            arrow_csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False),  # with threads there are no row numbers
            arrow_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=self._note),
            arrow_csv.ConvertOptions(include_columns=list(names), column_types=dict.fromkeys(names, pa.binary())),
        )

    def _note(self, row: Any) -> str:
        self._wrong_rows.append(row.number)
        return "skip"

    def take_wrong_rows(self) -> list[int]:
        """The rows of another width that were met since the last call."""
        found = self._wrong_rows[self._wrong_taken :]
        self._wrong_taken = len(self._wrong_rows)
        return found

    def _numbers(self, count: int) -> "NDArray[np.int64]":
        """The numbers of the next `count` valid rows, without the invalid ones between them."""
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
    """Where a value could not be parsed."""
    import pyarrow.compute as pc

    there = pc.greater(pc.binary_length(raw), 0)
    lost: NDArray[np.bool_] = pc.and_(pc.is_null(parsed), there).to_numpy(zero_copy_only=False)
    return lost


def _damaged(file: Path, row: int, how: str) -> RequestError:
    return RequestError(
        f"{file} is cut off or damaged somewhere after row {row:,} ({how}). Fetch it again, or pack it again."
    )
