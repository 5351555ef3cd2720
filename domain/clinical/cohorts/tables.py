"""Which tables MIMIC has, and where they lie in a user's folder. Loads nothing heavy."""

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from bertrelay.errors import RequestError
from bertrelay.settings import InputFile

Version = Literal["III", "IV"]

SUFFIXES = (".csv", ".csv.gz")
DEEPEST = 4  # folders: `physionet.org/files/mimiciv/3.1/hosp`; below may lie millions of files of other modules


@dataclass(frozen=True)
class TableSet:
    """Tables that are read together.

    needed: of each group of names exactly one, as MIMIC-III and MIMIC-IV name what they share differently.
    optional: what is read where it stands.
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
    """What a recipe says of its tables, resolved where it can be: the folder becomes its files.

    So a fingerprint covers the tables that a stage reads, and not the 33 GB that stand beside them. The output of
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
