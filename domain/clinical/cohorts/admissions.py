"""The admissions of a hospital with what is known of their subjects, in one form for MIMIC-III and MIMIC-IV."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bertrelay.data.records import Rejects
from bertrelay.progress import log
from domain.clinical.cohorts.flow import Flow
from domain.clinical.cohorts.mimic import ROW, columns_of, read_table, version_of
from domain.clinical.cohorts.tables import Version

if TYPE_CHECKING:
    import pandas as pd

OLDEST, AFTER_OLDEST = 89, 91
ADMISSION_COLUMNS = (
    "subject_id",
    "hadm_id",
    "admittime",
    "dischtime",
    "deathtime",
    "admission_type",
    "discharge_location",
    "insurance",
    "hospital_expire_flag",
)
PATIENT_COLUMNS: dict[Version, tuple[str, ...]] = {
    "III": ("subject_id", "gender", "dob", "dod"),
    "IV": ("subject_id", "gender", "anchor_age", "anchor_year", "dod"),
}
ORDER = ["subject_id", "admitted_at", "discharged_at", "hadm_id"]


def read_admissions(tables: Mapping[str, Path], rejects: Rejects, flow: Flow) -> "pd.DataFrame":
    """Every usable admission, by subject and time; what cannot be used is counted.

    Columns: subject_id, hadm_id, admitted_at, discharged_at, died_at (in hospital, else null), died_in_hospital,
    day_of_death (wherever), admission_type and discharge_location (upper case), insurance, race, sex, age (whole
    years, 91 for all over 89, null where unknown).
    """
    admissions = _admissions(tables["admissions"], rejects, flow)
    patients = _patients(tables["patients"], rejects)
    found = admissions.merge(patients, on="subject_id", how="left", validate="many_to_one", indicator="listed")
    strangers = int((found["listed"] == "left_only").sum())
    if strangers:
        log(
            f"{strangers:,} of {len(found):,} admissions are of subjects that {tables['patients'].name} does not list, "
            "and so without an age: see that both tables are whole and of one release"
        )
    found["age"] = _capped(_age(found))
    return found.sort_values(ORDER, ignore_index=True)


def _admissions(file: Path, rejects: Rejects, flow: Flow) -> "pd.DataFrame":
    race = "race" if "race" in columns_of(file) else "ethnicity"
    found = read_table(file, (*ADMISSION_COLUMNS, race), rejects).rename(
        columns={"admittime": "admitted_at", "dischtime": "discharged_at", race: "race"}
    )
    flow.count("rows of the table of admissions that can be read", found)
    for column in ("subject_id", "hadm_id"):
        found = _without(found, found[column] == "", f"without {column}", file, rejects)
    for column, name in (("admitted_at", "admittime"), ("discharged_at", "dischtime")):
        found = _without(found, found[column].isna(), f"without {name}", file, rejects)
    found = _without(found, found.duplicated("hadm_id"), "a hadm_id that an earlier row has", file, rejects)
    flow.count("with ids, times and a hadm_id of their own", found)
    for column in ("admission_type", "discharge_location"):
        found[column] = found[column].str.strip().str.upper()
    found["died_in_hospital"] = found["deathtime"].notna() | (found["hospital_expire_flag"] == "1")
    death = found["deathtime"].fillna(found["discharged_at"])  # of a few who died, only the flag tells
    found["died_at"] = death.where(found["died_in_hospital"])
    return found.drop(columns=["hospital_expire_flag", ROW])


def _patients(file: Path, rejects: Rejects) -> "pd.DataFrame":
    found = read_table(file, PATIENT_COLUMNS[version_of(file)], rejects)
    found = _without(found, found["subject_id"] == "", "without subject_id", file, rejects)
    found = _without(found, found.duplicated("subject_id"), "a subject_id that an earlier row has", file, rejects)
    return found.drop(columns=ROW).rename(columns={"gender": "sex", "dod": "day_of_death"})


def _without(
    table: "pd.DataFrame", wrong: "pd.Series[bool]", reason: str, file: Path, rejects: Rejects
) -> "pd.DataFrame":
    """The table without its `wrong` rows, which are counted."""
    for row in table.loc[wrong, ROW].tolist():
        rejects.add(str(file), row, reason)
    return table[~wrong]


def _age(found: "pd.DataFrame") -> "pd.Series[float]":
    """Years at admission, as the table of patients has it; null where it does not tell."""
    import pandas as pd

    admitted = found["admitted_at"].dt
    age: pd.Series[float]
    if "dob" in found:
        born = found["dob"].dt
        before_birthday = (admitted.month < born.month) | ((admitted.month == born.month) & (admitted.day < born.day))
        age = admitted.year - born.year - before_birthday.astype(int)
    else:
        anchor_age, anchor_year = (
            pd.to_numeric(found[name], errors="coerce") for name in ("anchor_age", "anchor_year")
        )
        age = anchor_age + admitted.year - anchor_year
    return age


def _capped(age: "pd.Series[float]") -> "pd.Series[float]":
    """Over 89 becomes 91, as MIMIC-IV has it; MIMIC-III sets such a birth 300 years before the first admission."""
    return age.where(age >= 0).mask(age > OLDEST, AFTER_OLDEST)
