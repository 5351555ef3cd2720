"""MIMIC's tables: their files in a folder, and their rows, streamed in blocks from files of any size.

Blocks have ids in one form, dates parsed, and all else as text. A row that cannot be used is counted and listed by its
number; neither its text nor its ids are ever logged.
"""

import csv
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator

from bertrelay.blocks import blocks_of
from bertrelay.data.encodings import remedy
from bertrelay.data.readers import open_input, refuse_damaged, text_lines
from bertrelay.data.records import Rejects, canonical_id, rows
from bertrelay.data.tables import HEADER_AGAIN, Record, Table
from bertrelay.errors import RequestError
from bertrelay.settings import InputFile
from domain.clinical.sources.form import BLOCK_ROWS, FAULT, ROW, Reject

if TYPE_CHECKING:
    import pandas as pd

Version = Literal["III", "IV"]

DEEPEST = 4  # folders, as in `physionet.org/files/mimiciv/3.1/hosp`; deeper ones may have millions of other files


@dataclass(frozen=True)
class TableSet:
    """Tables that are read together.

    needed: groups of names, of which exactly one must exist: MIMIC-III and MIMIC-IV name the same table differently.
    optional: names of tables that are read where they exist.
    standard, file_name, suffix: whose tables they are, and the names of their files, as a pattern and for people.
    """

    needed: tuple[tuple[str, ...], ...]
    optional: tuple[str, ...] = ()
    standard: str = "MIMIC"
    file_name: re.Pattern[str] = re.compile(r"(.+)\.csv(\.gz)?")
    suffix: str = ".csv[.gz]"

    @property
    def names(self) -> tuple[str, ...]:
        return (*(name for group in self.needed for name in group), *self.optional)


HOSPITAL = TableSet(needed=(("admissions",), ("patients",)), optional=("diagnoses_icd",))
NOTES = TableSet(needed=(("noteevents", "discharge"),), optional=("radiology", "admissions"))


def find_tables(folder: Path, tables: TableSet) -> dict[str, Path]:
    """Finds the files of `tables` in `folder` or below, by the tables' names: `.csv` or `.csv.gz`, in any case.

    Raises RequestError where a needed table is missing or a table has two files.
    """
    paths_of: dict[str, list[Path]] = {}
    for path in (path for depth in range(DEEPEST + 1) for path in folder.glob("*/" * depth + "*")):
        name = tables.file_name.fullmatch(path.name.lower())
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if name is not None and name[1] in tables.names and not is_hidden:
            paths_of.setdefault(name[1], []).append(path)
    for table, paths in paths_of.items():
        if len(paths) > 1:
            listed = " and ".join(str(path.relative_to(folder)) for path in sorted(paths))
            raise RequestError(
                f"expected one table {table} in {folder}, found {len(paths)}: {listed}. "
                f'Keep one of them, or name the files, as in {{ {table} = "FILE", … }}'
            )
    check_names(paths_of, tables, f"{folder} and up to {DEEPEST} folders below")
    return {name: paths_of[name][0] for name in tables.names if name in paths_of}


def check_names(names: Iterable[str], tables: TableSet, source: str) -> None:
    """Raises RequestError where `names` lack a needed table, have another one, or those of both MIMICs.

    source: of the names, for errors.
    """
    names = set(names)
    for group in tables.needed:
        present = [name for name in group if name in names]
        if not present:
            files = " or ".join(f"{name}{tables.suffix}" for name in group)
            raise RequestError(
                f"expected the table {files} of {tables.standard} (in any case), found none in {source}. "
                f"Of the tables that are read it has: {', '.join(sorted(names)) or 'none'}. "
                "Give the folder that holds the tables, or fetch this one"
            )
        if len(present) > 1:
            raise RequestError(
                f"expected the tables of one MIMIC, found {' and '.join(present)} in {source}. Choose one"
            )
    unknown = names.difference(tables.names)
    if unknown:
        raise RequestError(f"expected tables named {', '.join(tables.names)}, found {', '.join(sorted(unknown))}")


def located(tables: TableSet, value: Any) -> Any:
    """Resolves the tables of a recipe where possible: a folder becomes its files.

    So a fingerprint covers the tables that a stage reads, and not the 33 GB beside them. The output of another stage,
    and a folder that is missing or lacks a table, stay as they are, for `tables_of` and the plan: the stage that needs
    the missing table may not be run.
    """
    try:
        if isinstance(value, dict):
            check_names(value, tables, "the setting")
    except RequestError as error:
        raise ValueError(str(error)) from None
    if isinstance(value, str) and not isinstance(value, InputFile):
        folder = InputFile.parse(value)
        if Path(folder).is_dir() and not any(table_problems("", folder, tables)):
            return {name: InputFile(path) for name, path in find_tables(Path(folder), tables).items()}
    return value


def table_problems(key: str, setting: "Tables", tables: TableSet) -> Iterator[tuple[str, str]]:
    """Yields the problem of a folder that exists, as `Settings.input_problems` does."""
    if isinstance(setting, InputFile) and Path(setting).is_dir():
        try:
            find_tables(Path(setting), tables)
        except RequestError as error:
            yield key, str(error)


Tables = dict[str, InputFile] | InputFile
"""The files of tables by name, or a folder that holds them."""

HospitalTables = Annotated[Tables, BeforeValidator(partial(located, HOSPITAL))]
"""A setting: a folder of MIMIC with admissions, patients and diagnoses, or those files by name."""

NoteTables = Annotated[Tables, BeforeValidator(partial(located, NOTES))]
"""A setting: a folder of MIMIC with its notes, or those files by name."""


def tables_of(setting: Tables, tables: TableSet) -> dict[str, Path]:
    """Returns the files that a setting names. Raises RequestError as `find_tables` does."""
    if isinstance(setting, dict):
        return {name: Path(path) for name, path in setting.items()}
    return find_tables(Path(setting), tables)


def note_version(tables: Collection[str]) -> Version:
    """Returns the version of MIMIC that has these tables of notes."""
    return "III" if "noteevents" in tables else "IV"


IDS = ("subject_id", "hadm_id")
NUMBERS = ("hospital_expire_flag", "iserror", "icd_version", "anchor_age", "anchor_year")
"""Columns that may have been through floats, as ids may, and are text in the same form."""
FLAGS = NUMBERS[:2]
TIMES = ("admittime", "dischtime", "deathtime", "charttime", "storetime")
DAYS = ("chartdate", "dob", "dod")
TIME_FORMAT, TIME_LENGTH = "%Y-%m-%d %H:%M:%S", 19
DAY_LENGTH, MIDNIGHT = 10, " 00:00:00"
FORMS = dict.fromkeys(TIMES, "time YYYY-MM-DD HH:MM:SS") | dict.fromkeys(DAYS, "date YYYY-MM-DD")
FORMS |= (
    dict.fromkeys(NUMBERS, "number")
    | dict.fromkeys(FLAGS, "flag (0, 1, or empty)")
    | dict.fromkeys(IDS, "id but a rounded number, as 1.23E+11 is")
)


def read_table(file: Path, columns: Sequence[str], rejects: Rejects, lenient: Collection[str] = ()) -> "pd.DataFrame":
    """Reads all rows of a table that fits into memory, as `read_blocks` does, and counts them as used."""
    import pandas as pd

    blocks = []
    for block in read_blocks(file, columns, rejects.add, lenient=lenient):
        rejects.used(len(block))
        blocks.append(block)
    return pd.concat(blocks, ignore_index=True)


def read_blocks(
    file: Path, columns: Sequence[str], reject: Reject, first_block: int = 0, lenient: Collection[str] = ()
) -> "Iterator[pd.DataFrame]":
    """Streams a table in blocks of `BLOCK_ROWS` rows from block `first_block` on; those before it are skipped.

    columns: by their names in lower case; a block has these and `row`. Ids and text are strings, empty where missing;
        times and days are timestamps to the second, null where missing.
    reject: takes the rows that cannot be used; the caller counts the used ones.
    lenient: columns whose faults cost a row only that value; the column `fault` of the block has the reason, also of a
        damaged row whose other columns can be read.
    Raises RequestError for a file that is missing or damaged, or has no such column or no rows.
    """
    import pandas as pd

    names = columns_of(file)
    for column in columns:
        if names.count(column) != 1:
            raise RequestError(
                f"{file}: expected one column {column} (in any case), found {names.count(column) or 'none'} among "
                f"{len(names)} columns. Give the table as MIMIC has it."
            )
    table = Table(path=InputFile(file), format="csv", columns=[names.index(column) for column in columns])
    essential = [position for position, name in enumerate(columns) if name not in lenient]
    stream = islice(enumerate(rows(table, []), 2), first_block * BLOCK_ROWS, None)
    for block in blocks_of(stream, BLOCK_ROWS):
        records, faults = [], []
        for number, row in block:
            if isinstance(row, Record) and [str(value).strip().lower() for value in row.values] == list(columns):
                reject(row.file, number, HEADER_AGAIN)
            elif isinstance(row, Record):
                records.append((number, *row.values))
                faults.append("")
            elif lenient and row.values and all(row.values[position] for position in essential):
                records.append((number, *row.values))
                faults.append(row.reason)
            else:
                reject(row.file, number, row.reason)
        frame = pd.DataFrame(records, columns=[ROW, *columns])
        yield _parsed(frame.assign(**{FAULT: pd.Series(faults, dtype=object)}), file, reject, lenient)


def _parsed(block: "pd.DataFrame", file: Path, reject: Reject, lenient: Collection[str]) -> "pd.DataFrame":
    """Parses the columns by their names; drops the rows where that fails in a column that is not `lenient`."""
    import pandas as pd

    is_wrong, faults = block[ROW].isna(), block.pop(FAULT)
    for name in block.columns.drop(ROW):
        text, is_day = block[name].astype(str), name in DAYS
        if is_day or name in TIMES:
            exact = text.where((text.str.len() != DAY_LENGTH) | (not is_day), text + MIDNIGHT)
            exact = exact.where(exact.str.len() == TIME_LENGTH)  # pandas takes other forms, too
            times = pd.to_datetime(exact, format=TIME_FORMAT, errors="coerce").astype("datetime64[s]")
            block[name] = times.dt.floor("D") if is_day else times
        elif name in IDS + NUMBERS:
            ids = block[name] = text.map(_exact_id)
            if name in FLAGS:  # a flag that is True, or 2, would be taken for one that is not set
                block[name] = ids.where(ids.isin(["", "0", "1"]))
            elif name in NUMBERS:
                block[name] = ids.where((ids == "") | pd.to_numeric(ids, errors="coerce").notna())
        wrong = block[name].isna() & (text != "") & ~is_wrong
        if name in lenient:
            faults = faults.mask(wrong & (faults == ""), f"{name} is no {FORMS.get(name)}")
            continue
        for row in block.loc[wrong, ROW].tolist():
            reject(str(file), row, f"{name} is no {FORMS[name]}")
        is_wrong |= wrong
    return (block.assign(**{FAULT: faults}) if lenient else block)[~is_wrong]


def _exact_id(text: str) -> str | None:
    """Returns an id in its one form; None for a rounded one."""
    try:
        return canonical_id(text)
    except ValueError:
        return None


def columns_of(file: Path) -> list[str]:
    """Returns the names of a table's columns in lower case; none for an empty file."""
    with open_input(str(file)) as stream, refuse_damaged(str(file)):
        header, _, fault = next(text_lines(str(file), stream), ("", "", None))
    if fault is not None:
        raise RequestError(f"{file}, line 1: the header is {fault.reason} ({fault.detail}). {remedy(fault)}")
    return [name.strip().lower() for name in next(csv.reader([header]), [])]


def version_of(patients: Path) -> Version:
    """Returns the version of MIMIC by its table of patients: III has the day of birth, IV the age in an anchor year."""
    columns = columns_of(patients)
    if "dob" in columns:
        return "III"
    if "anchor_age" in columns:
        return "IV"
    raise RequestError(
        f"{patients}: expected a column dob (MIMIC-III) or anchor_age (MIMIC-IV), found {len(columns)} others. "
        "Give MIMIC's own table of patients."
    )
