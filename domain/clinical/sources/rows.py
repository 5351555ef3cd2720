"""Steps of reading that all sources share: rows that are left out or used with a fault, ages."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bertrelay.data.records import Rejects, log_copies
from domain.clinical.sources.form import FAULT, FILE, ROW, Count

OLDEST, AFTER_OLDEST = 89, 91
LAST_SECOND = np.timedelta64(86_399, "s")
"""Time of day at which a note that has only a date may have been written at the latest."""


def without(table: pd.DataFrame, wrong: "pd.Series[bool]", reason: str, file: Path, rejects: Rejects) -> pd.DataFrame:
    """Drops the `wrong` rows and counts them."""
    for path, row in places(table[wrong], file):
        rejects.used(-1)  # as which it was counted when it was read
        rejects.add(path, row, reason)
    return table[~wrong]


def places(table: pd.DataFrame, file: Path | str) -> list[tuple[str, int]]:
    """Returns the file and the number of each row; `file` where the table has no files."""
    files = table[FILE] if FILE in table else [str(file)] * len(table)
    return list(zip(files, table[ROW].tolist(), strict=True))


def without_copies(table: pd.DataFrame, file: Path) -> pd.DataFrame:
    """Drops rows that equal an earlier one in all columns that are read; logs their number."""
    is_copy = table.duplicated(table.columns.drop([ROW, FILE], errors="ignore").tolist())
    log_copies(int(is_copy.sum()), len(table), f"rows of {file.name}", "in all columns that are read")
    return table[~is_copy]


def list_faults(table: pd.DataFrame, faults: "pd.Series[str]", file: Path, rejects: Rejects) -> None:
    """Lists the rows with a fault, whose other columns are used."""
    for (path, row), fault in zip(places(table[faults != ""], file), faults[faults != ""], strict=True):
        rejects.used(-1)  # as which it was counted when it was read
        rejects.add(path, row, fault)


def identified(admissions: pd.DataFrame, begin: str, file: Path, rejects: Rejects, count: Count) -> pd.DataFrame:
    """Keeps the admissions with a subject and a beginning, each once; adds has_own_id and is_whole.

    begin: the column of the beginning.
    """
    for column in ("subject_id", begin):
        missing = admissions[column].isna() | (admissions[column] == "")
        admissions = without(admissions, missing, f"without {column}", file, rejects)
    admissions = count("with a subject and a beginning", admissions)
    copies = without_copies(admissions, file)
    is_same = copies.duplicated(["subject_id", "hadm_id", begin]) & (copies["hadm_id"].fillna("") != "")
    copies = without(copies, is_same, "an earlier row's admission, otherwise described", file, rejects)
    if len(copies) < len(admissions):
        admissions = count("without copies of an earlier row", copies)
    has_id = admissions["hadm_id"].fillna("") != ""
    is_again = has_id & admissions.duplicated("hadm_id")
    faults = admissions[FAULT].mask(~has_id, "without hadm_id").mask(is_again, "a hadm_id that an earlier row has")
    list_faults(admissions, faults, file, rejects)
    # What stands for a missing id sorts behind an admission of the same times with one, so that their stay has an id.
    ids = admissions["hadm_id"].where(has_id & ~is_again, "\uffff" + _numbers(admissions))
    return admissions.assign(hadm_id=ids, has_own_id=has_id & ~is_again, is_whole=admissions[FAULT] == "")


def _numbers(table: pd.DataFrame) -> "pd.Series[str]":
    """The number of each row as text, with its file where rows come from several."""
    rows = table[ROW].astype(str)
    return table[FILE] + " " + rows if FILE in table else rows


def age_at(admitted: "pd.Series[pd.Timestamp]", born: "pd.Series[pd.Timestamp]") -> "pd.Series[int]":
    """Computes the age in whole years."""
    at, birth = admitted.dt, born.dt
    before_birthday = (at.month < birth.month) | ((at.month == birth.month) & (at.day < birth.day))
    return at.year - birth.year - before_birthday.astype(int)


def top_coded(age: "pd.Series[Any]") -> "pd.Series[float]":
    """Makes all ages over 89 one, as MIMIC-IV does, and negative ones null."""
    return age.where(age >= 0).mask(age > OLDEST, AFTER_OLDEST)
