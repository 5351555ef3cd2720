"""Small hospitals for the tests: tables of MIMIC-III and IV, row by row."""

import csv
import gzip
from datetime import datetime, timedelta
from io import StringIO

from pipelines.samples.hospital import columns

COLUMNS = columns("III") | columns("IV")  # by table, with its folder in MIMIC-IV
TABLES = {"III": ("ADMISSIONS", "PATIENTS", "DIAGNOSES_ICD")}
TABLES["IV"] = ("hosp/admissions", "hosp/patients", "hosp/diagnoses_icd")
BEGIN = datetime(2150, 1, 1)


def day(days):
    """A time so many days after the beginning, as MIMIC writes it."""
    return (BEGIN + timedelta(days=days)).strftime("%Y-%m-%d %H:%M:%S")


def stay(subject, hadm_id, admitted, discharged, kind="EMERGENCY", death=None, flag=None, to="HOME"):
    """An admission by days from the beginning. death: day of a death in hospital. to: discharge location."""
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


def write_table(folder, table, rows):
    """Writes rows under MIMIC's column names in lower case; packed for a table of MIMIC-IV."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS[table])
    writer.writerows([row.get(name.lower(), "") for name in COLUMNS[table]] for row in rows)
    path, data = folder / f"{table}.csv", text.getvalue().encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    if "/" in table:
        path, data = path.with_suffix(".csv.gz"), gzip.compress(data)
    path.write_bytes(data)


def write_hospital(folder, stays, patients=None, diagnoses=(), version="III"):
    """The tables of `stays` in `folder`; other patients are 49 years old and alive."""
    if patients is None:
        patients = map(patient, dict.fromkeys(str(row["subject_id"]) for row in stays))
    for table, rows in zip(TABLES[version], (stays, patients, diagnoses), strict=True):
        if rows:
            write_table(folder, table, rows)
    return folder
