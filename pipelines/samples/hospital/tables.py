"""The rows of a patient in the tables of MIMIC-III and MIMIC-IV, with the columns that the real ones have."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from random import Random

from pipelines.samples.hospital.notes import Note
from pipelines.samples.hospital.phrases import Diagnosis, Problem
from pipelines.samples.hospital.stays import Kind, Stay, Subject
from pipelines.samples.hospital.wording import marked_as_in_iv

Value = str | int | None
Row = tuple[Value, ...]
Rows = Iterable[tuple[str, Row]]
"""Rows with the table each belongs to."""


COLUMNS_III = {
    "ADMISSIONS": (
        "ROW_ID,SUBJECT_ID,HADM_ID,ADMITTIME,DISCHTIME,DEATHTIME,ADMISSION_TYPE,ADMISSION_LOCATION,"
        "DISCHARGE_LOCATION,INSURANCE,LANGUAGE,RELIGION,MARITAL_STATUS,ETHNICITY,EDREGTIME,EDOUTTIME,DIAGNOSIS,"
        "HOSPITAL_EXPIRE_FLAG,HAS_CHARTEVENTS_DATA"
    ),
    "PATIENTS": "ROW_ID,SUBJECT_ID,GENDER,DOB,DOD,DOD_HOSP,DOD_SSN,EXPIRE_FLAG",
    "DIAGNOSES_ICD": "ROW_ID,SUBJECT_ID,HADM_ID,SEQ_NUM,ICD9_CODE",
    "NOTEEVENTS": "ROW_ID,SUBJECT_ID,HADM_ID,CHARTDATE,CHARTTIME,STORETIME,CATEGORY,DESCRIPTION,CGID,ISERROR,TEXT",
}
COLUMNS_IV = {
    "hosp/admissions": (
        "subject_id,hadm_id,admittime,dischtime,deathtime,admission_type,admit_provider_id,admission_location,"
        "discharge_location,insurance,language,marital_status,race,edregtime,edouttime,hospital_expire_flag"
    ),
    "hosp/patients": "subject_id,gender,anchor_age,anchor_year,anchor_year_group,dod",
    "hosp/diagnoses_icd": "subject_id,hadm_id,seq_num,icd_code,icd_version",
    "note/discharge": "note_id,subject_id,hadm_id,note_type,note_seq,charttime,storetime,text",
    "note/radiology": "note_id,subject_id,hadm_id,note_type,note_seq,charttime,storetime,text",
}

INSURANCE = ("Medicare", "Private", "Medicaid", "Government", "Self Pay")
ETHNICITIES = ("WHITE", "BLACK/AFRICAN AMERICAN", "HISPANIC OR LATINO", "ASIAN", "UNKNOWN/NOT SPECIFIED")
RACES = ("WHITE", "BLACK/AFRICAN AMERICAN", "HISPANIC/LATINO - PUERTO RICAN", "ASIAN", "UNKNOWN")
MARITAL = ("MARRIED", "SINGLE", "WIDOWED", "DIVORCED", None)
YEAR_GROUPS = ("2008 - 2010", "2011 - 2013", "2014 - 2016", "2017 - 2019")
TYPES_III: dict[Kind, tuple[str, ...]] = {
    "unplanned": ("EMERGENCY", "EMERGENCY", "EMERGENCY", "URGENT"),
    "observation": ("EMERGENCY",),
    "planned": ("ELECTIVE",),
    "newborn": ("NEWBORN",),
    "donor": ("EMERGENCY",),
}
TYPES_IV: dict[Kind, tuple[str, ...]] = {
    "unplanned": ("EW EMER.", "EW EMER.", "URGENT", "DIRECT EMER."),
    "observation": ("EU OBSERVATION", "OBSERVATION ADMIT", "DIRECT OBSERVATION", "AMBULATORY OBSERVATION"),
    "planned": ("ELECTIVE", "SURGICAL SAME DAY ADMISSION"),
    "newborn": ("URGENT",),
    "donor": ("URGENT",),
}
OLDEST_AGE, HIDDEN_AGE_IV, HIDDEN_YEARS_III = 89, 91, 300


def rows_iii(random: Random, subject: Subject, notes: Iterable[Note]) -> Rows:
    """A patient in the form of MIMIC-III; a `ROW_ID` that is None is left for the file to number."""
    yield "PATIENTS", _patient_iii(subject)
    fixed = random.choice(INSURANCE), random.choice(ETHNICITIES), random.choice(MARITAL)
    for stay in subject.stays:
        yield "ADMISSIONS", _admission_iii(random, subject, stay, *fixed)
        for number, each in enumerate(_coded(stay), start=1):
            yield "DIAGNOSES_ICD", (None, subject.subject_id, stay.hadm_id, number, each.icd9)
    for note in notes:
        yield "NOTEEVENTS", _note_iii(random, subject, note)


def _patient_iii(subject: Subject) -> Row:
    born = subject.born.date()
    if subject.age > OLDEST_AGE:
        first = subject.stays[0].admitted.date()
        born = first.replace(year=first.year - HIDDEN_YEARS_III, day=min(first.day, 28))
    in_hospital = any(stay.died for stay in subject.stays)
    day = f"{subject.died.date()} 00:00:00" if subject.died else None
    return (
        None,
        subject.subject_id,
        subject.sex,
        f"{born} 00:00:00",
        day,
        day if in_hospital else None,
        None if in_hospital else day,
        int(subject.died is not None),
    )


def _admission_iii(
    random: Random, subject: Subject, stay: Stay, insurance: str, ethnicity: str, marital: str | None
) -> Row:
    arrived = stay.admitted - timedelta(hours=random.randint(2, 12)) if stay.kind == "unplanned" else None
    return (
        None,
        subject.subject_id,
        stay.hadm_id,
        _time(stay.admitted),
        _time(stay.discharged),
        _time(subject.died) if stay.died else None,
        random.choice(TYPES_III[stay.kind]),
        "EMERGENCY ROOM ADMIT" if stay.kind == "unplanned" else "PHYS REFERRAL/NORMAL DELI",
        _discharge_location(random, stay),
        insurance,
        "ENGL",
        "NOT SPECIFIED",
        marital,
        ethnicity,
        _time(arrived),
        _time(stay.admitted if arrived else None),
        {"donor": "ORGAN DONOR ACCOUNT", "newborn": "NEWBORN"}.get(stay.kind, stay.problem.name.upper()),
        int(stay.died),
        1,
    )


def _note_iii(random: Random, subject: Subject, note: Note) -> Row:
    time = _time(note.charted) if note.has_time else None
    return (
        note.row_id,
        subject.subject_id,
        note.hadm_id,
        str(note.charted.date()),
        time,
        time and _time(note.charted + timedelta(minutes=random.randrange(90))),
        note.category,
        note.description,
        random.randint(14000, 21000) if note.kind == "care" else None,
        1 if note.is_error else None,
        note.text,
    )


def rows_iv(random: Random, subject: Subject, notes: Iterable[Note]) -> Rows:
    """A patient in the form of MIMIC-IV; reports are charted by day, as the real ones are."""
    yield "hosp/patients", _patient_iv(random, subject)
    fixed = random.choice(INSURANCE[:3]), random.choice(MARITAL), random.choice(RACES)
    for stay in subject.stays:
        yield "hosp/admissions", _admission_iv(random, subject, stay, *fixed)
        version = random.choice((9, 10))
        for number, each in enumerate(_coded(stay), start=1):
            code = each.icd9 if version == 9 else each.icd10
            yield "hosp/diagnoses_icd", (subject.subject_id, stay.hadm_id, number, code, version)
    for number, note in enumerate(notes, start=1):
        yield _note_iv(subject, note, number)


def _patient_iv(random: Random, subject: Subject) -> Row:
    first = subject.stays[0].admitted
    age = HIDDEN_AGE_IV if subject.age > OLDEST_AGE else subject.age
    died = str(subject.died.date()) if subject.died else None
    return subject.subject_id, subject.sex, age, first.year, random.choice(YEAR_GROUPS), died


def _admission_iv(random: Random, subject: Subject, stay: Stay, insurance: str, marital: str | None, race: str) -> Row:
    arrived = stay.admitted - timedelta(hours=random.randint(2, 12)) if stay.kind == "unplanned" else None
    return (
        subject.subject_id,
        stay.hadm_id,
        _time(stay.admitted),
        _time(stay.discharged),
        _time(subject.died) if stay.died else None,
        random.choice(TYPES_IV[stay.kind]),
        f"P{random.randrange(100):02}XYZ",
        "EMERGENCY ROOM" if stay.kind == "unplanned" else "PHYSICIAN REFERRAL",
        _discharge_location(random, stay),
        insurance,
        "ENGLISH",
        marital,
        race,
        _time(arrived),
        _time(stay.admitted if arrived else None),
        int(stay.died),
    )


def _note_iv(subject: Subject, note: Note, number: int) -> tuple[str, Row]:
    short = {"report": "DS", "addendum": "AD"}.get(note.kind, "RR")
    charted = f"{note.charted.date()} 00:00:00" if short != "RR" else _time(note.charted)
    row = (
        f"{subject.subject_id}-{short}-{number}",
        subject.subject_id,
        note.hadm_id,
        short,
        number,
        charted,
        _time(note.charted + timedelta(hours=20)),
        marked_as_in_iv(note.text),
    )
    return "note/radiology" if short == "RR" else "note/discharge", row


def _coded(stay: Stay) -> list[Problem | Diagnosis]:
    """What a stay is coded with, most important first."""
    return [stay.problem, *stay.besides]


def _discharge_location(random: Random, stay: Stay) -> str | None:
    if stay.died:
        return "DEAD/EXPIRED"
    return "SHORT TERM HOSPITAL" if stay.transferred else random.choice(("HOME", "HOME HEALTH CARE", "SNF"))


def _time(moment: datetime | None) -> str | None:
    return moment.isoformat(" ", "seconds") if moment else None
