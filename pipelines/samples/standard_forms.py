"""The synthetic hospital in the forms of standards, from the tables of MIMIC-III that it is written in.

None of the traps changes a stay or a note that a cohort reads, where the form carries it.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from zoneinfo import ZoneInfo

from pipelines.samples.forms import DEAD, EVERY_CLINIC, EVERY_COPIED, OPEN, packed_text, read_mimic, write_rows

Row = dict[str, str]
Rows = Iterator[dict[str, object]]

PULLED = datetime(2250, 1, 1)
"""The day on which the data were pulled, which OMOP has for the end of stays that are still open."""
CLINIC_AFTER, LAST_SECOND = timedelta(days=1), timedelta(hours=24, seconds=-1)
ZONE = "Asia/Seoul"
"""The zone of the hospital, where clocks are never changed, so that no time is missing."""

INPATIENT, EMERGENCY_AND_INPATIENT, OUTPATIENT, RECORD, STILL_PATIENT = 9201, 262, 9202, 32817, 32220
NO_CONCEPT, ENGLISH, UTF8, NOTE_CLASS = 0, 4_180_186, 32_678, 706_391
SEXES = {"F": 8532, "M": 8507}
DISCHARGED_TO = {DEAD: 4_216_643, "SHORT TERM HOSPITAL": 8717, "SNF": 8863, "HOSPICE-HOME": 8546}


def _time(text: str) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def stays_with_traps(mimic: Path) -> Iterator[tuple[str, Row]]:
    """Yields the admissions with what they are: `stay`, `copy`, `clinic` (a visit a day after one) or `open`."""
    row: Row = {}
    for number, row in enumerate(read_mimic(mimic, "ADMISSIONS"), 1):
        if row["hospital_expire_flag"] == "1":
            row["discharge_location"] = DEAD
        yield "stay", row
        if number % EVERY_COPIED == 0:
            yield "copy", row
        if number % EVERY_CLINIC == 0:
            begin = datetime.fromisoformat(row["dischtime"]) + CLINIC_AFTER
            times = {"admittime": str(begin), "dischtime": str(begin + timedelta(hours=1))}
            yield "clinic", row | times | {"hadm_id": f"9{row['hadm_id']}", "discharge_location": "HOME"}
    for number in range(OPEN):
        ids = {"subject_id": f"99999{number}", "hadm_id": f"8{number}"}
        yield "open", row | ids | {"dischtime": "", "discharge_location": ""}


def kind_of_note(row: Mapping[str, str]) -> str:
    """The type of a note in one word or two, of a withdrawn one `withdrawn`."""
    category = row["category"].strip()
    is_addendum = category == "Discharge summary" and row["description"].strip().lower() == "addendum"
    return "withdrawn" if row["iserror"] == "1" else "Discharge addendum" if is_addendum else category


def write_omop(folder: Path, mimic: Path) -> dict[str, int]:
    """Writes tables of OMOP's CDM under the names of 5.3; rows by file.

    Dates without a time have midnight, open stays the day of the data pull as their end, and deaths are by day.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        "person.csv": _persons(mimic),
        "death.csv": _deaths(mimic),
        "visit_occurrence.csv": _visits(mimic),
        "observation_period.csv": _periods(mimic),
    }
    counts = {}
    for name, rows in tables.items():
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            counts[name] = write_rows(file, rows)
    with packed_text(folder / "note.csv.gz") as file:
        counts["note.csv.gz"] = write_rows(file, _notes(mimic))
    return counts


def _persons(mimic: Path) -> Rows:
    for row in read_mimic(mimic, "PATIENTS"):
        born = datetime.fromisoformat(row["dob"])
        yield {
            "person_id": row["subject_id"],
            "gender_concept_id": SEXES[row["gender"]],
            "year_of_birth": born.year,
            "month_of_birth": born.month,
            "day_of_birth": born.day,
            "birth_datetime": "",
            "race_concept_id": NO_CONCEPT,
            "ethnicity_concept_id": NO_CONCEPT,
            "gender_source_value": row["gender"],
        }


def _deaths(mimic: Path) -> Rows:
    for row in read_mimic(mimic, "PATIENTS"):
        if died := _time(row["dod"]):
            yield {
                "person_id": row["subject_id"],
                "death_date": died.date(),
                "death_datetime": f"{died.date()} 00:00:00",
                "death_type_concept_id": RECORD,
            }


def _visits(mimic: Path) -> Rows:
    for kind, row in stays_with_traps(mimic):
        is_planned, location = row["admission_type"] == "ELECTIVE", row["discharge_location"]
        concept = INPATIENT if is_planned else EMERGENCY_AND_INPATIENT
        begin, end = datetime.fromisoformat(row["admittime"]), _time(row["dischtime"]) or PULLED
        yield {
            "visit_occurrence_id": row["hadm_id"],
            "person_id": row["subject_id"],
            "visit_concept_id": OUTPATIENT if kind == "clinic" else concept,
            "visit_start_date": begin.date(),
            "visit_start_datetime": begin,
            "visit_end_date": end.date(),
            "visit_end_datetime": end,
            "visit_type_concept_id": STILL_PATIENT if kind == "open" else RECORD,
            "visit_source_value": "" if kind == "clinic" else row["admission_type"],
            "admitting_source_concept_id": NO_CONCEPT,
            "discharge_to_concept_id": DISCHARGED_TO.get(location, NO_CONCEPT),
            "discharge_to_source_value": location,
        }


def _periods(mimic: Path) -> Rows:
    ends: dict[str, datetime] = {}
    for row in read_mimic(mimic, "ADMISSIONS"):
        ends[row["subject_id"]] = max(_time(row["dischtime"]) or PULLED, ends.get(row["subject_id"], datetime.min))
    for number, (subject, end) in enumerate(ends.items(), 1):
        yield {
            "observation_period_id": number,
            "person_id": subject,
            "observation_period_start_date": "1900-01-01",
            "observation_period_end_date": end.date() + timedelta(days=365),
            "period_type_concept_id": RECORD,
        }


def _notes(mimic: Path) -> Rows:
    for row in read_mimic(mimic, "NOTEEVENTS"):
        at = datetime.fromisoformat(row["charttime"] or row["chartdate"][:10])
        yield {
            "note_id": row["row_id"],
            "person_id": row["subject_id"],
            "note_date": at.date(),
            "note_datetime": at,
            "note_type_concept_id": RECORD,
            "note_class_concept_id": NOTE_CLASS,
            "note_title": "",
            "note_text": row["text"],
            "encoding_concept_id": UTF8,
            "language_concept_id": ENGLISH,
            "visit_occurrence_id": row["hadm_id"],
            "note_source_value": kind_of_note(row),
        }


def write_meds(folder: Path, mimic: Path) -> dict[str, int]:
    """Writes shards of MEDS with the notes as events; rows by file.

    Dates without a time have 23:59:59, stays that are there twice are in a second shard, and open stays have no
    discharge.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    fields = {"subject_id": pa.int64(), "time": pa.timestamp("us"), "code": pa.string()}
    schema = pa.schema({**fields, "text_value": pa.large_string(), "hadm_id": pa.int64()})
    stays = list(stays_with_traps(mimic))
    once = (_stay_events(kind, row) for kind, row in stays if kind != "copy")
    again = (_stay_events(kind, row) for kind, row in stays if kind == "copy")
    shards = {
        "data/train/0.parquet": chain(_person_events(mimic), *once, _note_events(mimic)),
        "data/train/0-again.parquet": chain(*again),
    }
    counts = {}
    for name, events in shards.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        rows = [dict(zip(schema.names, event, strict=True)) for event in events]
        rows.sort(key=lambda row: (row["subject_id"], row["time"] or datetime.min))  # static events first
        pq.write_table(pa.Table.from_pylist(rows, schema), folder / name)
        counts[name] = len(rows)
    return counts


Event = tuple[int, datetime | None, str, str | None, int | None]


def _end_of(day: str) -> datetime:
    return datetime.fromisoformat(day[:10]) + LAST_SECOND


def _person_events(mimic: Path) -> Iterator[Event]:
    for row in read_mimic(mimic, "PATIENTS"):
        subject = int(row["subject_id"])
        yield subject, None, f"GENDER//{row['gender']}", None, None
        yield subject, datetime.fromisoformat(row["dob"]), "MEDS_BIRTH", None, None
        if row["dod"]:
            yield subject, _end_of(row["dod"]), "MEDS_DEATH", None, None


def _stay_events(kind: str, row: Row) -> Iterator[Event]:
    subject, visit = int(row["subject_id"]), int(row["hadm_id"])
    begin, end = datetime.fromisoformat(row["admittime"]), _time(row["dischtime"])
    name = "CLINIC" if kind == "clinic" else "HOSPITAL_ADMISSION"
    yield subject, begin, f"{name}//{row['admission_type']}", None, visit
    if end and kind != "clinic":
        yield subject, end, f"HOSPITAL_DISCHARGE//{row['discharge_location']}", None, visit


def _note_events(mimic: Path) -> Iterator[Event]:
    for row in read_mimic(mimic, "NOTEEVENTS"):
        at = _time(row["charttime"]) or _end_of(row["chartdate"])
        visit = int(row["hadm_id"]) if row["hadm_id"] else None
        yield int(row["subject_id"]), at, f"NOTE//{kind_of_note(row)}", row["text"], visit


def write_fhir(folder: Path, mimic: Path) -> dict[str, int]:
    """Writes files of a bulk export of FHIR R4; resources by file.

    Times are in two zones, stays that are there twice are in a second file, and open stays are in progress.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stays = list(stays_with_traps(mimic))
    files = {
        "Patient.ndjson": map(_patient, read_mimic(mimic, "PATIENTS")),
        "Encounter.000.ndjson": (_encounter(kind, row) for kind, row in stays if kind != "copy"),
        "Encounter.001.ndjson": (_encounter("stay", row) for kind, row in stays if kind == "copy"),
        "DocumentReference.ndjson.gz": map(_document, read_mimic(mimic, "NOTEEVENTS")),
    }
    counts = {}
    for name, resources in files.items():
        with (
            packed_text(folder / name) if name.endswith(".gz") else (folder / name).open("w", encoding="utf-8") as file
        ):
            for counts[name], resource in enumerate(resources, 1):
                file.write(json.dumps(resource) + "\n")
    return counts


def _instant(text: str, in_utc: bool) -> str:
    at = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(ZONE))
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z") if in_utc else at.isoformat()


def _patient(row: Row) -> dict[str, object]:
    patient = {"resourceType": "Patient", "id": row["subject_id"], "birthDate": row["dob"][:10]}
    patient["gender"] = {"F": "female", "M": "male"}[row["gender"]]
    return {**patient, "deceasedDateTime": row["dod"][:10]} if row["dod"] else {**patient, "deceasedBoolean": False}


def _encounter(kind: str, row: Row) -> dict[str, object]:
    period = {"start": _instant(row["admittime"], in_utc=True)}
    if row["dischtime"]:
        period["end"] = _instant(row["dischtime"], in_utc=False)
    priority = {"ELECTIVE": "EL", "NEWBORN": "NEWBORN"}.get(row["admission_type"], "EM")
    return {
        "resourceType": "Encounter",
        "id": row["hadm_id"],
        "status": "in-progress" if kind == "open" else "finished",
        "class": {"code": "AMB" if kind == "clinic" else "IMP"},
        "priority": {"coding": [{"code": "R" if kind == "clinic" else priority}]},
        "subject": {"reference": f"Patient/{row['subject_id']}"},
        "period": period,
        "hospitalization": {"dischargeDisposition": {"text": row["discharge_location"]}},
    }


def _document(row: Row) -> dict[str, object]:
    kind, data = kind_of_note(row), base64.b64encode(row["text"].encode()).decode()
    charted = _instant(row["charttime"], in_utc=False) if row["charttime"] else row["chartdate"][:10]
    context: dict[str, object] = {"period": {"start": charted}}
    if row["hadm_id"]:
        context["encounter"] = [{"reference": f"Encounter/{row['hadm_id']}"}]
    document: dict[str, object] = {
        "resourceType": "DocumentReference",
        "id": row["row_id"],
        "status": "entered-in-error" if kind == "withdrawn" else "current",
        "type": {"text": kind},
        "subject": {"reference": f"Patient/{row['subject_id']}"},
        "content": [{"attachment": {"contentType": "text/plain; charset=utf-8", "data": data}}],
        "context": context,
    }
    return document | ({"date": _instant(row["storetime"], in_utc=True)} if row["storetime"] else {})
