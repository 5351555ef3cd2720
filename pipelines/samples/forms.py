"""The synthetic hospital in forms other than MIMIC's, from the tables of MIMIC-III that it is written in.

Each has the traps of its form. None of them changes a stay or a note that a cohort reads.
"""

import csv
import gzip
import io
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

Rows = Iterator[dict[str, str]]

DAY, TIME = "%d.%m.%Y", "%d.%m.%Y %H:%M"
KINDS = {"EMERGENCY": "Acute", "URGENT": "acute ", "ELECTIVE": "Elective", "NEWBORN": "Birth"}
"""Admission types of the own tables; two are written in another way, as people write them."""
DEAD = "DEAD/EXPIRED"
STAYS = ("patient", "visit", "arrived", "left", "kind", "left to", "born", "died", "sex")
NOTES = ("patient", "visit", "written", "signed", "kind", "text")
EVERY_COPIED, EVERY_CLINIC, OPEN = 17, 10, 3
"""Which stays are there twice, which are followed by a visit to a clinic, and how many patients are still there."""


def read_mimic(folder: Path, table: str) -> Rows:
    """Streams a table of MIMIC-III as the hospital writes it, under column names in lower case."""
    with gzip.open(folder / f"{table}.csv.gz", "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield {name.lower(): value for name, value in row.items()}


def _in_form(text: str, form: str) -> str:
    return datetime.fromisoformat(text).strftime(form) if text else ""


def _clinic_visit(stay: dict[str, str]) -> dict[str, str]:
    """A visit to a clinic one day after a stay, which is no admission."""
    left = datetime.strptime(stay["left"], TIME)
    arrived, end = left + timedelta(days=1), left + timedelta(days=1, hours=1)
    times = {"arrived": arrived.strftime(TIME), "left": end.strftime(TIME)}
    return stay | times | {"visit": f"C{stay['visit']}", "kind": "Clinic", "left to": "HOME"}


def stay_rows(mimic: Path) -> Rows:
    """Yields the stays of own tables: times as in Germany, deaths by their day, copies, clinic visits, open stays."""
    patients = {row["subject_id"]: row for row in read_mimic(mimic, "PATIENTS")}
    stay: dict[str, str] = {}
    for number, row in enumerate(read_mimic(mimic, "ADMISSIONS"), 1):
        patient = patients[row["subject_id"]]
        stay = {
            "patient": f"P{row['subject_id']}",
            "visit": f"V{row['hadm_id']}",
            "arrived": _in_form(row["admittime"], TIME),
            "left": _in_form(row["dischtime"], TIME),
            "kind": KINDS[row["admission_type"]],
            "left to": DEAD if row["hospital_expire_flag"] == "1" else row["discharge_location"],
            "born": _in_form(patient["dob"], DAY),
            "died": _in_form(patient["dod"], DAY),
            "sex": patient["gender"],
        }
        yield stay
        if number % EVERY_COPIED == 0:
            yield stay
        if number % EVERY_CLINIC == 0:
            yield _clinic_visit(stay)
    for number in range(OPEN):
        yield stay | {"patient": f"P-open-{number}", "visit": f"V-open-{number}", "left": "", "left to": "", "died": ""}


def note_rows(mimic: Path) -> Rows:
    """Yields the notes of own tables: of those without a time the date, of withdrawn ones another type."""
    for row in read_mimic(mimic, "NOTEEVENTS"):
        category = row["category"].strip()
        is_addendum = category == "Discharge summary" and row["description"].strip().lower() == "addendum"
        kind = "Discharge addendum" if is_addendum else category
        yield {
            "patient": f"P{row['subject_id']}",
            "visit": f"V{row['hadm_id']}" if row["hadm_id"] else "",
            "written": _in_form(row["charttime"], TIME) or _in_form(row["chartdate"], DAY),
            "signed": _in_form(row["storetime"], TIME),
            "kind": "withdrawn" if row["iserror"] == "1" else kind,
            "text": row["text"],
        }


def write_own_tables(folder: Path, mimic: Path) -> dict[str, int]:
    """Writes `stays.csv` and `notes.csv.gz`; rows by file."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = {}
    with (folder / "stays.csv").open("w", encoding="utf-8", newline="") as file:
        counts["stays.csv"] = _write(file, STAYS, stay_rows(mimic))
    with (
        (folder / "notes.csv.gz").open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=raw, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as file,
    ):
        counts["notes.csv.gz"] = _write(file, NOTES, note_rows(mimic))
    return counts


def _write(file: Any, columns: tuple[str, ...], rows: Rows) -> int:
    writer, count = csv.DictWriter(file, columns, lineterminator="\n"), 0
    writer.writeheader()
    for count, row in enumerate(rows, 1):  # noqa: B007
        writer.writerow(row)
    return count


FORMS: dict[str, Callable[[Path, Path], dict[str, int]]] = {"table": write_own_tables}
"""By form, what writes it into a folder, from the folder of MIMIC's tables."""


def write_form(folder: Path, form: str, mimic: Path) -> dict[str, int]:
    """Writes the hospital in `form` into `folder/FORM`; rows by file."""
    return {f"{form}/{file}": rows for file, rows in FORMS[form](folder / form, mimic).items()}
