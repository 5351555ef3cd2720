"""Tables in MIMIC's form with a mark in every column that can hold one."""

import csv
import gzip
import io
import re

from hospital_tables import COLUMNS
from synthetic_patients import stays

MARK = re.compile(rb"qzx|2177-", re.IGNORECASE)  # no hash has such letters
STAYS = 40
TABLES = ("ADMISSIONS", "PATIENTS", "NOTEEVENTS", "DIAGNOSES_ICD")
DATES = {"DOB": "2100-02-03 00:00:00", "DOD": "2177-11-12 00:00:00", "CHARTDATE": "2177-03-09"}
TIMES = {"ADMITTIME": "2177-03-05 10:20:30", "DISCHTIME": "2177-03-09 11:21:31", "CHARTTIME": "2177-03-06 07:08:09"}
TIMES["STORETIME"] = "2177-03-06 08:09:10"
OTHERS = {"HOSPITAL_EXPIRE_FLAG": "0", "DEATHTIME": "", "ISERROR": "", "DESCRIPTION": "Report"}

Rows = dict[str, list[list[str]]]


def cell(column, number):
    """A value that its column can hold, with a mark in it where the type allows one."""
    if column in ("SUBJECT_ID", "HADM_ID"):
        return f"qzx{column[0]}{number}"
    if column == "CATEGORY":
        return "Discharge summary" if number % 2 else "QZXCATEGORY"
    if column == "TEXT":
        words = " ".join(f"qzxword{number}-{position}" for position in range(30))
        return f'QZXHEADER OF IT:\n"Qzxquoted" [**Known lastname QZXNAME**] on [**2177-3-6**]\n{words}\nQzxend.'
    fixed = {**DATES, **TIMES, **OTHERS}
    return fixed.get(column, f"QZX{column}{number}")


def tables():
    """The rows of all tables, headers first."""
    return {
        table: [COLUMNS[table], *([cell(column, n) for column in COLUMNS[table]] for n in range(STAYS))]
        for table in TABLES
    }


def packed(rows):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def write(folder, contents):
    folder.mkdir()
    for table, rows in contents.items():
        (folder / f"{table}.csv.gz").write_bytes(gzip.compress(packed(rows)))


def marked_stays(count):
    """`stays` with a mark in every id and every text."""
    table = stays(count)
    return table.assign(
        hadm_id="qzxH" + table["hadm_id"],
        subject_id="qzxS" + table["subject_id"],
        text="QZXNAME OF IT:\nQzxword. " + table["text"],
    )
