"""Admissions of MIMIC-III and MIMIC-IV, and their diagnoses, in one form."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from bertrelay.data.records import Rejects, log_copies
from bertrelay.progress import log
from domain.clinical.mimic import FAULT, ROW, Version, columns_of, read_blocks, read_table, version_of
from domain.clinical.stage_files import Flow

OLDEST, AFTER_OLDEST = 89, 91
ADMISSION_COLUMNS = (
    *("subject_id", "hadm_id", "admittime", "dischtime", "deathtime"),
    *("admission_type", "discharge_location", "insurance", "hospital_expire_flag"),
)
PATIENT_COLUMNS: dict[Version, tuple[str, ...]] = {
    "III": ("subject_id", "gender", "dob", "dod"),
    "IV": ("subject_id", "gender", "anchor_age", "anchor_year", "dod"),
}
ORDER = ["subject_id", "admitted_at", "discharged_at", "hadm_id"]


DEATH_LOCATIONS = ("DEAD/EXPIRED", "DIED")
"""Of `discharge_location`, in MIMIC-III and MIMIC-IV."""
ESSENTIAL = ("subject_id", "admittime")
"""Columns that make an admission a return and a limit to text, even if others of its row are wrong."""


def read_admissions(tables: Mapping[str, Path], rejects: Rejects, flow: Flow) -> pd.DataFrame:
    """Reads every admission with a subject and a beginning, sorted by subject and time; counts the other rows.

    Columns: subject_id, hadm_id, admitted_at, discharged_at (null of an open one), died_at (in hospital, else null),
    died_in_hospital, day_of_death (wherever), admission_type and discharge_location (upper case), insurance, race, sex,
    age (whole years, 91 for all over 89, null where unknown); has_own_id, false where the hadm_id is missing or an
    earlier row's, and stands for nothing; is_whole, false where something else is wrong.
    """
    admissions = _read_admissions(tables["admissions"], rejects, flow)
    file = tables["patients"]
    columns = PATIENT_COLUMNS[version_of(file)]
    patients = read_table(file, columns, rejects, lenient=columns[1:])
    patients = _without(patients, patients["subject_id"] == "", "without subject_id", file, rejects)
    patients = _without_copies(patients, file)
    _list_faults(patients, patients[FAULT], file, rejects)
    is_copy = patients.duplicated("subject_id")
    patients = _without(patients, is_copy, "a subject_id that an earlier row has", file, rejects)
    patients = patients.drop(columns=[ROW, FAULT]).rename(columns={"gender": "sex", "dod": "day_of_death"})
    admissions = admissions.merge(patients, on="subject_id", how="left", validate="many_to_one", indicator="listed")
    unlisted = int((admissions["listed"] == "left_only").sum())
    if unlisted:
        log(
            f"{unlisted:,} of {len(admissions):,} admissions are of subjects that {file.name} does not list, "
            "and so without an age: see that both tables are whole and of one release"
        )
    admissions["age"] = _age(admissions)
    _count_contradictions(admissions, flow)
    return admissions.drop(columns="hospital_expire_flag").sort_values(ORDER, ignore_index=True)


def _read_admissions(file: Path, rejects: Rejects, flow: Flow) -> pd.DataFrame:
    """Reads the table of admissions, with deaths in hospital by time, flag or discharge location."""
    race = "race" if "race" in columns_of(file) else "ethnicity"
    columns = (*ADMISSION_COLUMNS, race)
    admissions = read_table(file, columns, rejects, lenient=set(columns) - set(ESSENTIAL))
    flow.count("rows of the table of admissions that can be read", admissions)
    for column in ESSENTIAL:
        missing = admissions[column].isna() | (admissions[column] == "")
        admissions = _without(admissions, missing, f"without {column}", file, rejects)
    admissions = flow.count("with a subject and a beginning", admissions)
    copies = _without_copies(admissions, file)
    is_same = copies.duplicated(["subject_id", "hadm_id", "admittime"]) & (copies["hadm_id"].fillna("") != "")
    copies = _without(copies, is_same, "an earlier row's admission, otherwise described", file, rejects)
    if len(copies) < len(admissions):
        admissions = flow.count("without copies of an earlier row", copies)
    admissions = admissions.rename(columns={"admittime": "admitted_at", "dischtime": "discharged_at", race: "race"})
    has_id = admissions["hadm_id"].fillna("") != ""
    is_again = has_id & admissions.duplicated("hadm_id")
    faults = admissions[FAULT].mask(~has_id, "without hadm_id").mask(is_again, "a hadm_id that an earlier row has")
    _list_faults(admissions, faults, file, rejects)
    # What stands for a missing id sorts behind an admission of the same times with one, so that their stay has an id.
    ids = admissions["hadm_id"].where(has_id & ~is_again, "\uffff" + admissions[ROW].astype(str))
    admissions = admissions.assign(hadm_id=ids, has_own_id=has_id & ~is_again, is_whole=admissions[FAULT] == "")
    for column in ("admission_type", "discharge_location"):
        admissions[column] = admissions[column].str.strip().str.upper()
    dead = admissions["deathtime"].notna() | (admissions["hospital_expire_flag"] == "1")
    admissions["died_in_hospital"] = dead | admissions["discharge_location"].isin(DEATH_LOCATIONS)
    ends = admissions["discharged_at"].fillna(admissions["deathtime"].where(admissions["is_whole"]))
    death = admissions["deathtime"].fillna(ends)  # a few deaths have the flag or the location alone
    admissions = admissions.assign(discharged_at=ends, died_at=death.where(admissions["died_in_hospital"]))
    return admissions.drop(columns=[ROW, FAULT])


def _list_faults(table: pd.DataFrame, faults: "pd.Series[str]", file: Path, rejects: Rejects) -> None:
    """Lists the rows with a fault, whose other columns are used."""
    for row, fault in zip(table.loc[faults != "", ROW], faults[faults != ""], strict=True):
        rejects.used(-1)  # as which it was counted when it was read
        rejects.add(str(file), row, fault)


def _without_copies(table: pd.DataFrame, file: Path) -> pd.DataFrame:
    """Drops rows that equal an earlier one in all columns that are read; logs their number."""
    is_copy = table.duplicated(table.columns.drop(ROW).tolist())
    log_copies(int(is_copy.sum()), len(table), f"rows of {file.name}", "in all columns that are read")
    return table[~is_copy]


def _count_contradictions(admissions: pd.DataFrame, flow: Flow) -> None:
    """Counts contradictions of time, flag, discharge location and date of death, and admissions after a death."""
    flag, location = admissions["hospital_expire_flag"], admissions["discharge_location"].fillna("")
    is_timed, is_placed, is_dead = admissions["deathtime"].notna(), location.isin(DEATH_LOCATIONS), flag == "1"
    days = {name: admissions[name].dt.floor("D") for name in ("admitted_at", "discharged_at", "died_at")}
    outside = (admissions["deathtime"].dt.floor("D") < days["admitted_at"]) | (
        admissions["deathtime"].dt.floor("D") > days["discharged_at"]
    )
    signs = (is_timed | is_dead) & ~is_placed & (location != "") | (is_timed | is_placed) & (flag == "0")
    another_day = (days["died_at"] - admissions["day_of_death"]).abs() > pd.Timedelta(days=1)
    survived = ~admissions["died_in_hospital"] & (admissions["day_of_death"] < days["discharged_at"])
    for what, is_so in {
        "dead by the discharge location alone": is_placed & ~is_timed & ~is_dead,
        "where time, flag and location contradict each other on a death": signs | outside,
        "where they contradict the date of death": another_day | survived,
        "admitted after the date of death": admissions["day_of_death"] < days["admitted_at"],
    }.items():
        contradicting = flow.count(f"of these, {what}", admissions[is_so])
        if len(contradicting):
            log(f"admissions {what}: {len(contradicting):,} of {len(admissions):,}")


def _without(table: pd.DataFrame, wrong: "pd.Series[bool]", reason: str, file: Path, rejects: Rejects) -> pd.DataFrame:
    """Drops the `wrong` rows and counts them."""
    for row in table.loc[wrong, ROW].tolist():
        rejects.used(-1)  # as which it was counted when it was read
        rejects.add(str(file), row, reason)
    return table[~wrong]


def _age(admissions: pd.DataFrame) -> "pd.Series[float]":
    """Computes the age at admission in years from the table of patients; null where it is unknown.

    All over 89 become 91, as in MIMIC-IV; MIMIC-III sets their birth 300 years before the first admission.
    """
    admitted = admissions["admitted_at"].dt
    age: pd.Series[float]
    if "dob" in admissions:
        born = admissions["dob"].dt
        before_birthday = (admitted.month < born.month) | ((admitted.month == born.month) & (admitted.day < born.day))
        age = admitted.year - born.year - before_birthday.astype(int)
    else:
        anchors = admissions[["anchor_age", "anchor_year"]].apply(pd.to_numeric, errors="coerce")
        age = anchors["anchor_age"] + admitted.year - anchors["anchor_year"]
    return age.where(age >= 0).mask(age > OLDEST, AFTER_OLDEST)


def read_codes(file: Path, admissions: "pd.Series[int]", rejects: Rejects) -> pd.DataFrame:
    """Reads the diagnoses of some admissions: admission, seq_num, code and version, in the order of the file.

    Codes are text: `0389` is not `389`. MIMIC-III has ICD-9 only.
    admissions: the number of each admission, by hadm_id.
    """
    columns = ["icd_code", "icd_version"] if "icd_version" in columns_of(file) else ["icd9_code"]
    blocks = []
    for rows in read_blocks(file, ["hadm_id", "seq_num", *columns], rejects.add):
        rows = rows.assign(
            admission=admissions.reindex(rows["hadm_id"]).to_numpy(),
            code=rows[columns[0]].str.strip(),
            version=pd.to_numeric(rows[columns[1]], errors="coerce") if columns[1:] else 9,
            seq_num=pd.to_numeric(rows["seq_num"], errors="coerce"),
        )
        wrong = (rows["code"] == "") | rows["version"].isna()
        rejects.used(int((~wrong).sum()))
        for row in rows.loc[wrong, ROW].tolist():
            rejects.add(str(file), row, "without a code or its version")
        is_used = ~wrong & rows["admission"].notna()
        blocks.append(rows.loc[is_used, ["admission", "seq_num", "code", "version"]].astype({"admission": "int64"}))
    return pd.concat(blocks)
