"""A made-up hospital in the form of MIMIC-III or MIMIC-IV, whose patients return with a known probability.

It is written one patient after the other, so that memory does not grow with it.
"""

import csv
import gzip
import io
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from bertrelay.progress import progress
from bertrelay.stage import Metrics, StageContext
from pipelines.samples.notes import HospitalNote, late_notes_of, masked_as_in_iv, notes_of, wordings
from pipelines.samples.patients import Stay, Subject, diagnoses, draw_subject
from pipelines.samples.settings import HospitalSettings
from pipelines.samples.templates import load

MIMIC, RISK = "mimic", "risk.csv.gz"
SUBJECTS_PER_STEP = 200
SMALL = 150
"""Patients of a hospital that is written to be looked at."""
OLDEST_AGE, HIDDEN_AGE_IV, HIDDEN_YEARS_III = 89, 91, 300

TERMS, RATINGS = "terms.csv", "ratings.csv"
SAME, GOES_WITH, ONE_GROUP, APART = 4, 3, 2, 0

Row = dict[str, Any]
"""Values by the name of their column in lower case; each form has columns of its own, and takes what it has."""


def run(settings: HospitalSettings, context: StageContext) -> Metrics:
    """The stage `samples.hospital`: writes a hospital; the rows of each table, as `rows/admissions`."""
    if not context.process_group.is_main:
        return {}
    counts = write_hospital(context.output, settings)
    return {f"rows/{name.rpartition('/')[2].partition('.')[0].lower()}": n for name, n in counts.items()}


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
    files = {table: (f"{MIMIC}/{table}.csv.gz", header) for table, header in columns(settings.version).items()}
    files["risk"] = (RISK, ["subject_id", "hadm_id", "true_risk"])
    counts, numbered = Counter[str](), Counter[str]()
    with ExitStack() as stack, progress("hospital", settings.subjects, "patients") as bar:
        tables = {table: stack.enter_context(_writer(folder / name, header)) for table, (name, header) in files.items()}
        for number in range(settings.subjects):
            for table, row in _rows(settings, number):
                counts[table] += 1
                if row.get("row_id") is None:
                    numbered[table] += 1
                    row["row_id"] = numbered[table]
                tables[table].writerow([row[column.lower()] for column in files[table][1]])
            if (number + 1) % SUBJECTS_PER_STEP == 0 or number + 1 == settings.subjects:
                bar.advance(number % SUBJECTS_PER_STEP + 1)
    return {**{name: counts[table] for table, (name, _) in files.items()}, **write_terms(folder)}


def columns(version: str) -> dict[str, list[str]]:
    """The columns of each table of MIMIC-III or -IV."""
    return {table: header.split(",") for table, header in load("hospital")[f"MIMIC-{version}"]["tables"].items()}


@contextmanager
def _writer(path: Path, header: list[str]) -> Iterator[Any]:
    """A writer of rows to a compressed table; without name and time in it, the same rows give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=raw, mtime=0) as packed,
        io.TextIOWrapper(io.BufferedWriter(packed, 1 << 18), encoding="utf-8", newline="") as text,
    ):
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        yield writer


def _rows(settings: HospitalSettings, number: int) -> Iterator[tuple[str, Row]]:
    """All rows of one patient with the table each belongs to."""
    subject, random = draw_subject(settings.seed, number)
    notes = notes_of(random, subject, settings.words, early=settings.version == "III")
    notes += late_notes_of(Random(f"{settings.seed} {number} late"), subject)
    records = list(_records(random, subject, notes, settings.version))
    risks = [(stay.hadm_id, stay.prognosis.risk) for stay in subject.stays if stay.prognosis]
    for table, row in [*records, *(("risk", {"hadm_id": id_, "true_risk": f"{risk:.6f}"}) for id_, risk in risks)]:
        yield table, {"subject_id": subject.subject_id, **row}


def _records(
    random: Random, subject: Subject, notes: Iterable[HospitalNote], version: str
) -> Iterator[tuple[str, Row]]:
    """The rows of a patient in the tables of one form."""
    form, is_iii = load("hospital")[f"MIMIC-{version}"], version == "III"
    tables = {table.rpartition("/")[2].lower(): table for table in form["tables"]}
    fixed = form["constant"] | {name: random.choice(values) for name, values in form["of_patient"].items()}
    yield tables["patients"], {**fixed, **_patient(subject, is_iii)}
    for stay in subject.stays:
        yield tables["admissions"], {**fixed, **_admission(random, subject, stay, form)}
        icd_version = 9 if is_iii else random.choice((9, 10))
        for number, each in enumerate((stay.problem, *stay.besides), start=1):
            code = each.icd9 if icd_version == 9 else each.icd10
            row = {"hadm_id": stay.hadm_id, "seq_num": number, "icd_version": icd_version}
            yield tables["diagnoses_icd"], {**row, "icd_code": code, "icd9_code": code}
    for number, note in enumerate(notes, start=1):
        yield _note_iii(random, note) if is_iii else _note_iv(subject, note, number)


def _patient(subject: Subject, is_iii: bool) -> Row:
    first, born, died = subject.stays[0].admitted, subject.born.date(), subject.died and subject.died.date()
    is_hidden = subject.age > OLDEST_AGE
    if is_hidden:
        born = first.date().replace(year=first.year - HIDDEN_YEARS_III, day=min(first.day, 28))
    in_hospital = any(stay.died for stay in subject.stays)
    midnight = f"{died} 00:00:00" if died else None
    return {
        "gender": subject.sex,
        "dob": f"{born} 00:00:00",
        "dod": midnight if is_iii else died,
        "dod_hosp": midnight if in_hospital else None,
        "dod_ssn": None if in_hospital else midnight,
        "expire_flag": int(died is not None),
        "anchor_age": HIDDEN_AGE_IV if is_hidden else subject.age,
        "anchor_year": first.year,
    }


def _admission(random: Random, subject: Subject, stay: Stay, form: dict[str, Any]) -> Row:
    is_unplanned = stay.kind == "unplanned"
    arrived = stay.admitted - timedelta(hours=random.randint(2, 12)) if is_unplanned else None
    admission_type = random.choice(form["admission_type"][stay.kind])
    provider = f"P{random.randrange(form['providers']):02}XYZ" if "providers" in form else None
    if stay.died:
        to = "DEAD/EXPIRED"
    else:
        to = "SHORT TERM HOSPITAL" if stay.transferred else random.choice(("HOME", "HOME HEALTH CARE", "SNF"))
    return {
        "hadm_id": stay.hadm_id,
        "admittime": _time(stay.admitted),
        "dischtime": _time(stay.discharged),
        "deathtime": _time(subject.died) if stay.died else None,
        "admission_type": admission_type,
        "admit_provider_id": provider,
        "admission_location": form["admission_location"]["unplanned" if is_unplanned else "other"],
        "discharge_location": to,
        "edregtime": _time(arrived),
        "edouttime": _time(stay.admitted if arrived else None),
        "diagnosis": {"donor": "ORGAN DONOR ACCOUNT", "newborn": "NEWBORN"}.get(stay.kind, stay.problem.name.upper()),
        "hospital_expire_flag": int(stay.died),
    }


def _note_iii(random: Random, note: HospitalNote) -> tuple[str, Row]:
    time = _time(note.charted) if note.has_time else None
    return "NOTEEVENTS", {
        "row_id": note.row_id,
        "hadm_id": note.hadm_id,
        "chartdate": note.charted.date(),
        "charttime": time,
        "storetime": time and _time(note.charted + timedelta(minutes=random.randrange(90))),
        "category": note.category,
        "description": note.description,
        "cgid": random.randint(14000, 21000) if note.kind == "care" else None,
        "iserror": 1 if note.is_error else None,
        "text": note.text,
    }


def _note_iv(subject: Subject, note: HospitalNote, number: int) -> tuple[str, Row]:
    """Reports are charted by day, as the real ones are."""
    short = {"report": "DS", "addendum": "AD"}.get(note.kind, "RR")
    return "note/radiology" if short == "RR" else "note/discharge", {
        "note_id": f"{subject.subject_id}-{short}-{number}",
        "hadm_id": note.hadm_id,
        "note_type": short,
        "note_seq": number,
        "charttime": _time(note.charted) if short == "RR" else f"{note.charted.date()} 00:00:00",
        "storetime": _time(note.charted + timedelta(hours=20)),
        "text": masked_as_in_iv(note.text),
    }


def _time(moment: datetime | None) -> str | None:
    return moment.isoformat(" ", "seconds") if moment else None


def term_groups() -> dict[str, list[str]]:
    """Terms of the notes, by group."""
    problems = diagnoses("problems")
    return {
        "raises the risk": [wording for condition in wordings("conditions") for wording in condition],
        "harmless": list(wordings("harmless")),
        "problem": [problem.name for problem in problems],
        "complaint": [problem.complaint.lower() for problem in problems],
        "medicine": [line.split()[0].lower() for line in wordings("medications")],
        "history": [line.partition(",")[0].lower() for line in wordings("past")],
    }


def term_ratings() -> Iterator[tuple[str, str, int]]:
    """Pairs of terms with their similarity by rule: each term with the next of its group, and one of the next group.

    Two wordings of one condition score 4, a problem and the complaint that comes with it 3, other terms of one group 2,
    and terms of different groups 0. A person would rate them differently; of a sample the rule has to be known.
    """
    yield from ((first, second, SAME) for first, second in wordings("conditions"))
    yield from ((problem.name, problem.complaint.lower(), GOES_WITH) for problem in diagnoses("problems"))
    listed = list(term_groups().values())
    for terms, after in zip(listed, [*listed[1:], listed[0]], strict=True):
        for place, term in enumerate(terms):
            follower = terms[(place + 1) % len(terms)]
            if [term, follower] not in wordings("conditions"):
                yield term, follower, ONE_GROUP
            yield term, after[-1 - place % len(after)], APART


def write_terms(folder: Path) -> dict[str, int]:
    """Writes `terms.csv` and `ratings.csv`; rows by file."""
    import pandas as pd

    groups = pd.DataFrame(term_groups().items(), columns=["group", "term"]).explode("term")
    tables = {
        TERMS: groups[["term", "group"]],
        RATINGS: pd.DataFrame(term_ratings(), columns=["term1", "term2", "score"]),
    }
    for name, table in tables.items():
        table.to_csv(folder / name, index=False, lineterminator="\n")
    return {name: len(table) for name, table in tables.items()}
