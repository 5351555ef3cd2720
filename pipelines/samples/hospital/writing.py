"""A hospital written to disk, one patient after the other, so that memory does not grow with it."""

import csv
import gzip
import io
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

from bertrelay.progress import progress
from pipelines.samples.hospital.notes import late_notes_of, notes_of
from pipelines.samples.hospital.settings import HospitalSettings
from pipelines.samples.hospital.stays import Subject, draw_subject
from pipelines.samples.hospital.tables import COLUMNS_III, COLUMNS_IV, rows_iii, rows_iv
from pipelines.samples.hospital.terms import write_terms

MIMIC, RISK = "mimic", "risk.csv.gz"
SUBJECTS_PER_STEP = 200
SMALL = 150
"""Patients of a hospital that is written to be looked at."""


def write_hospitals(folder: Path, seed: int = 7) -> dict[str, int]:
    """Writes a small hospital in the form of each MIMIC, into `hospital-iii` and `hospital-iv`; rows by file."""
    counts: dict[str, int] = {}
    for version in ("III", "IV"):
        name = f"hospital-{version.lower()}"
        settings = HospitalSettings.model_validate({"seed": seed, "subjects": SMALL, "version": version})
        written = write_hospital(folder / name, settings)
        counts |= {f"{name}/{file}": count for file, count in written.items()}
    return counts


def write_hospital(folder: Path, settings: HospitalSettings) -> dict[str, int]:
    """Writes tables into `folder/mimic`, true risks and terms beside them, from `settings` alone; rows by file."""
    columns = COLUMNS_III if settings.version == "III" else COLUMNS_IV
    files = {table: (f"{MIMIC}/{table}.csv.gz", header.split(",")) for table, header in columns.items()}
    files["risk"] = (RISK, ["subject_id", "hadm_id", "true_risk"])
    counts: Counter[str] = Counter()
    numbered: Counter[str] = Counter()
    with ExitStack() as stack, progress("hospital", settings.subjects, "patients") as bar:
        tables = {table: stack.enter_context(_writer(folder / name, head)) for table, (name, head) in files.items()}
        for number in range(settings.subjects):
            for table, row in _rows(settings, number):
                name, head = files[table]
                counts[name] += 1
                if head[0] == "ROW_ID" and row[0] is None:
                    numbered[name] += 1
                    row = (numbered[name], *row[1:])
                tables[table].writerow(row)
            if (number + 1) % SUBJECTS_PER_STEP == 0 or number + 1 == settings.subjects:
                bar.advance(number % SUBJECTS_PER_STEP + 1)
    return {**{name: counts[name] for name, _ in files.values()}, **write_terms(folder)}


def _rows(settings: HospitalSettings, number: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """All rows of one patient with the table each belongs to."""
    subject, random = draw_subject(settings.seed, number)
    is_iii = settings.version == "III"
    notes = notes_of(random, subject, settings.words, early=is_iii)
    notes += late_notes_of(Random(f"{settings.seed} {number} late"), subject)
    yield from (rows_iii if is_iii else rows_iv)(random, subject, notes)
    yield from _risks(subject)


def _risks(subject: Subject) -> Iterable[tuple[str, tuple[int, int, str]]]:
    for stay in subject.stays:
        if stay.prognosis:
            yield "risk", (subject.subject_id, stay.hadm_id, f"{stay.prognosis.risk:.6f}")


@contextmanager
def _writer(path: Path, header: list[str]) -> Iterator[Any]:
    """A writer of rows to a packed table; without name and time in it, the same rows give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=raw, mtime=0) as packed,
        io.TextIOWrapper(io.BufferedWriter(packed, 1 << 18), encoding="utf-8", newline="") as text,
    ):
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        yield writer
