"""The synthetic hospital in tables of its own, from the tables of MIMIC-III that it is written in.

They have traps, none of which changes a stay or a note that a cohort reads.
"""

import csv
import gzip
import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TextIO

Rows = Iterator[dict[str, str]]

DAY, TIME = "%d.%m.%Y", "%d.%m.%Y %H:%M"
KINDS = {"EMERGENCY": "Acute", "URGENT": "acute ", "ELECTIVE": "Elective", "NEWBORN": "Birth"}
"""Admission types of the own tables; two are written in another way, as people write them."""
DEAD = "DEAD/EXPIRED"
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
    with (folder / "stays.csv").open("w", encoding="utf-8", newline="") as file:
        stays = write_rows(file, stay_rows(mimic))
    with packed_text(folder / "notes.csv.gz") as file:
        return {"stays.csv": stays, "notes.csv.gz": write_rows(file, note_rows(mimic))}


@contextmanager
def packed_text(path: Path) -> Iterator[TextIO]:
    """Opens a file for packed text; the same text gives the same bytes."""
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=raw, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as file,
    ):
        yield file


def write_rows(file: TextIO, rows: Iterable[Mapping[str, object]]) -> int:
    """Writes CSV with a header of the first row's columns; returns the number of rows."""
    writer, count = csv.writer(file, lineterminator="\n"), 0
    for count, row in enumerate(rows, 1):
        if count == 1:
            writer.writerow(row)
        writer.writerow(row.values())
    return count
