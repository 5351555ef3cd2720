"""Small hospitals for the tests: tables of MIMIC-III and IV written row by row, as a person would by hand."""

import csv
import gzip
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path

BEGIN = datetime(2150, 1, 1)
ADMISSIONS = {
    "III": "ROW_ID SUBJECT_ID HADM_ID ADMITTIME DISCHTIME DEATHTIME ADMISSION_TYPE DISCHARGE_LOCATION "
    "INSURANCE ETHNICITY HOSPITAL_EXPIRE_FLAG",
    "IV": "subject_id hadm_id admittime dischtime deathtime admission_type discharge_location insurance race "
    "hospital_expire_flag",
}
PATIENTS = {
    "III": "ROW_ID SUBJECT_ID GENDER DOB DOD EXPIRE_FLAG",
    "IV": "subject_id gender anchor_age anchor_year dod",
}
DIAGNOSES = {
    "III": "ROW_ID SUBJECT_ID HADM_ID SEQ_NUM ICD9_CODE",
    "IV": "subject_id hadm_id seq_num icd_code icd_version",
}
NAMES = {"III": ("ADMISSIONS.csv", "PATIENTS.csv", "DIAGNOSES_ICD.csv")}
NAMES["IV"] = ("hosp/admissions.csv.gz", "hosp/patients.csv.gz", "hosp/diagnoses_icd.csv.gz")


def day(days: float) -> str:
    """A time so many days after the beginning, as MIMIC writes it."""
    return (BEGIN + timedelta(days=days)).strftime("%Y-%m-%d %H:%M:%S")


def stay(subject, hadm_id, admitted, discharged, kind="EMERGENCY", death=None, flag=None, to="HOME"):
    """An admission by days from the beginning; `death` is when the subject dies in hospital, `to` where one goes."""
    flag = int(death is not None) if flag is None else flag
    return {
        "subject_id": subject,
        "hadm_id": hadm_id,
        "admittime": day(admitted),
        "dischtime": day(discharged),
        "deathtime": "" if death is None else day(death),
        "admission_type": kind,
        "discharge_location": to,
        "insurance": "Medicare",
        "ethnicity": "WHITE",
        "race": "WHITE",
        "hospital_expire_flag": flag,
    }


def patient(subject, born="2100-05-01", dod="", age=50):
    return {
        "subject_id": subject,
        "gender": "F",
        "dob": f"{born} 00:00:00",
        "dod": dod,
        "anchor_age": age,
        "anchor_year": BEGIN.year,
    }


def write_table(path: Path, columns: str, rows):
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns.split())
    writer.writerows([row.get(name.lower(), "") for name in columns.split()] for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_hospital(folder: Path, stays, patients=None, diagnoses=(), version="III") -> Path:
    """The tables of `stays` in `folder`; patients not given are 49 years old and alive."""
    subjects = dict.fromkeys(str(row["subject_id"]) for row in stays)
    patients = [patient(subject) for subject in subjects] if patients is None else patients
    tables = (ADMISSIONS, stays), (PATIENTS, patients), (DIAGNOSES, diagnoses)
    for name, (columns, rows) in zip(NAMES[version], tables, strict=True):
        if rows:
            write_table(folder / name, columns[version], rows)
    return folder
