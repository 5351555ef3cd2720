"""The source MIMIC: admissions, diagnoses and notes of MIMIC-III and MIMIC-IV."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from bertrelay.progress import log
from domain.clinical.sources.form import (
    ADDENDUM,
    FAULT,
    ORDER,
    OTHER,
    REPORT,
    ROW,
    Count,
    Discharge,
    Reject,
)
from domain.clinical.sources.mimic_tables import (
    IDS,
    Version,
    columns_of,
    note_version,
    read_blocks,
    read_table,
    version_of,
)
from domain.clinical.sources.rows import (
    LAST_SECOND,
    age_at,
    identified,
    list_faults,
    top_coded,
    without,
    without_copies,
)

ADMISSION_COLUMNS = (
    *("subject_id", "hadm_id", "admittime", "dischtime", "deathtime"),
    *("admission_type", "discharge_location", "insurance", "hospital_expire_flag"),
)
PATIENT_COLUMNS: dict[Version, tuple[str, ...]] = {
    "III": ("subject_id", "gender", "dob", "dod"),
    "IV": ("subject_id", "gender", "anchor_age", "anchor_year", "dod"),
}


DEATH_LOCATIONS = ("DEAD/EXPIRED", "DIED")
"""Of `discharge_location`, in MIMIC-III and MIMIC-IV."""
ESSENTIAL = ("subject_id", "admittime")
"""Columns that make an admission a return and a limit to text, even if others of its row are wrong."""
DISCHARGES: dict[Discharge, tuple[str, ...]] = {
    "acute-care-transfer": ("SHORT TERM HOSPITAL", "DISC-TRAN CANCER/CHLDRN H", "ACUTE HOSPITAL"),
    "against-medical-advice": ("LEFT AGAINST MEDICAL ADVI", "AGAINST ADVICE"),
    "hospice": ("HOSPICE-HOME", "HOSPICE-MEDICAL FACILITY", "HOSPICE"),
}
"""Values of `discharge_location` in MIMIC-III and MIMIC-IV."""
NEWBORN = "NEWBORN"
PLANNED: dict[Version, tuple[str, ...]] = {"III": ("ELECTIVE",), "IV": ("ELECTIVE", "SURGICAL SAME DAY ADMISSION")}
OBSERVATION = ("AMBULATORY OBSERVATION", "DIRECT OBSERVATION", "EU OBSERVATION")
NOTE_COLUMNS = {
    "noteevents": (*IDS, "chartdate", "charttime", "storetime", "category", "description", "iserror", "text"),
    "discharge": (*IDS, "note_type", "charttime", "storetime", "text"),
    "radiology": (*IDS, "note_type", "charttime", "storetime", "text"),
}


class MimicHospital:
    """The tables of admissions, patients and diagnoses.

    planned_types: admission types that are planned; None for those of the version.
    """

    def __init__(self, tables: Mapping[str, Path], planned_types: list[str] | None = None) -> None:
        self._tables, self._planned_types = tables, planned_types

    def admissions(self, rejects: Rejects, count: Count) -> pd.DataFrame:
        """Reads the admissions, with deaths in hospital by time, flag or location, and their column deathtime."""
        admissions = read_admissions(self._tables, rejects, count)
        version, kinds = version_of(self._tables["patients"]), admissions["admission_type"]
        planned = PLANNED[version]
        if self._planned_types is not None:
            planned = tuple(name.strip().upper() for name in self._planned_types)
            if unmet := sorted(set(planned).difference(kinds)):
                log(f"planned_types: no admission is {' or '.join(unmet)}; see that each is written as in the table")
        left_as = pd.Series(None, admissions.index, dtype=object)
        for name, locations in DISCHARGES.items():
            left_as = left_as.mask(admissions["discharge_location"].isin(locations), name)
        return admissions.assign(
            is_planned=kinds.isin(planned),
            is_observation=kinds.isin(OBSERVATION),
            is_newborn=kinds == NEWBORN,
            left_as=left_as,
            is_by_day=False,
        )

    def codes(self, admissions: "pd.Series[int]", rejects: Rejects) -> pd.DataFrame | None:
        """Reads the table of diagnoses, where it exists."""
        if "diagnoses_icd" not in self._tables:
            log("there is no table diagnoses_icd: characteristics come without diagnoses")
            return None
        return read_codes(self._tables["diagnoses_icd"], admissions, rejects)


def read_admissions(tables: Mapping[str, Path], rejects: Rejects, count: Count) -> pd.DataFrame:
    """Reads every admission with a subject and a beginning, in the columns of MIMIC and the form, sorted."""
    admissions = _read_admissions(tables["admissions"], rejects, count)
    file = tables["patients"]
    columns = PATIENT_COLUMNS[version_of(file)]
    patients = read_table(file, columns, rejects, lenient=columns[1:])
    patients = without(patients, patients["subject_id"] == "", "without subject_id", file, rejects)
    patients = without_copies(patients, file)
    list_faults(patients, patients[FAULT], file, rejects)
    is_copy = patients.duplicated("subject_id")
    patients = without(patients, is_copy, "a subject_id that an earlier row has", file, rejects)
    patients = patients.drop(columns=[ROW, FAULT]).rename(columns={"gender": "sex", "dod": "day_of_death"})
    admissions = admissions.merge(patients, on="subject_id", how="left", validate="many_to_one", indicator="listed")
    unlisted = int((admissions["listed"] == "left_only").sum())
    if unlisted:
        log(
            f"{unlisted:,} of {len(admissions):,} admissions are of subjects that {file.name} does not list, "
            "and so without an age: see that both tables are whole and of one release"
        )
    admissions["age"] = _age(admissions)
    _count_contradictions(admissions, count)
    return admissions.drop(columns="hospital_expire_flag").sort_values(ORDER, ignore_index=True)


def _read_admissions(file: Path, rejects: Rejects, count: Count) -> pd.DataFrame:
    """Reads the table of admissions, with deaths in hospital by time, flag or discharge location."""
    race = "race" if "race" in columns_of(file) else "ethnicity"
    columns = (*ADMISSION_COLUMNS, race)
    admissions = read_table(file, columns, rejects, lenient=set(columns) - set(ESSENTIAL))
    count("rows of the table of admissions that can be read", admissions)
    admissions = identified(admissions, "admittime", file, rejects, count)
    admissions = admissions.rename(columns={"admittime": "admitted_at", "dischtime": "discharged_at", race: "race"})
    for column in ("admission_type", "discharge_location"):
        admissions[column] = admissions[column].str.strip().str.upper()
    dead = admissions["deathtime"].notna() | (admissions["hospital_expire_flag"] == "1")
    admissions["died_in_hospital"] = dead | admissions["discharge_location"].isin(DEATH_LOCATIONS)
    ends = admissions["discharged_at"].fillna(admissions["deathtime"].where(admissions["is_whole"]))
    death = admissions["deathtime"].fillna(ends)  # a few deaths have the flag or the location alone
    admissions = admissions.assign(discharged_at=ends, died_at=death.where(admissions["died_in_hospital"]))
    return admissions.drop(columns=[ROW, FAULT])


def _count_contradictions(admissions: pd.DataFrame, count: Count) -> None:
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
        contradicting = count(f"of these, {what}", admissions[is_so])
        if len(contradicting):
            log(f"admissions {what}: {len(contradicting):,} of {len(admissions):,}")


def _age(admissions: pd.DataFrame) -> "pd.Series[float]":
    """Computes the age at admission in years from the table of patients; null where it is unknown.

    All over 89 become 91, as in MIMIC-IV; MIMIC-III sets their birth 300 years before the first admission.
    """
    if "dob" in admissions:
        return top_coded(age_at(admissions["admitted_at"], admissions["dob"]))
    anchors = admissions[["anchor_age", "anchor_year"]].apply(pd.to_numeric, errors="coerce")
    return top_coded(anchors["anchor_age"] + admissions["admitted_at"].dt.year - anchors["anchor_year"])


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


class MimicNotes:
    """The tables of notes. radiology: of MIMIC-IV, read its table of radiology reports as well."""

    def __init__(self, tables: Mapping[str, Path], *, radiology: bool) -> None:
        self.files, self._radiology = tables, radiology
        self.has_early = note_version(tables) == "III"

    def tables(self) -> list[str]:
        """Names the tables of notes. Raises RequestError where that of radiology is missing."""
        if self.has_early:
            return ["noteevents"]
        if self._radiology and "radiology" not in self.files:
            raise RequestError("radiology: there is no table radiology.csv[.gz]. Fetch it, or leave it out.")
        return ["discharge", *["radiology"] * self._radiology]

    def blocks(self, table: str, reject: Reject) -> Iterator[pd.DataFrame]:
        """Streams a table of notes in the form of all sources."""
        for rows in read_blocks(self.files[table], NOTE_COLUMNS[table], reject):
            kinds, is_radiology = _kinds(rows, table)
            charted, written, by_day = _times(rows, table)
            yield rows[[*IDS, ROW, "text"]].assign(
                kind=kinds,
                is_radiology=is_radiology,
                is_error=_equals(rows, "iserror", "1"),
                is_unmapped=False,
                charted=charted,
                written=written,
                by_day=by_day,
                is_stored=rows["storetime"].notna(),
            )

    def unmapped_types(self) -> list[tuple[str, int]]:
        """Returns nothing: the types of MIMIC's notes are known."""
        return []

    def not_carried(self) -> list[str]:
        """Returns nothing: docs describe what MIMIC does not have."""
        return []

    def registered(self) -> frozenset[str] | None:
        """Reads every hadm_id of the table of admissions, where it exists."""
        if "admissions" not in self.files:
            return None
        blocks = read_blocks(self.files["admissions"], ("hadm_id",), lambda *_: None)  # the cohort's stage logged them
        return frozenset(hadm_id for block in blocks for hadm_id in block["hadm_id"])


def _kinds(rows: pd.DataFrame, table: str) -> tuple["pd.Series[int]", "pd.Series[bool]"]:
    """Returns the kind of each note, and marks the radiology reports."""
    if table == "noteevents":
        is_radiology, is_report = _equals(rows, "category", "radiology"), _equals(rows, "category", "discharge summary")
        is_addendum = _equals(rows, "description", "addendum")
    else:
        is_radiology = pd.Series(table == "radiology", rows.index)
        is_report, is_addendum = ~is_radiology, _equals(rows, "note_type", "ad")
    kinds = pd.Series(OTHER, rows.index).mask(is_report, REPORT).mask(is_report & is_addendum, ADDENDUM)
    return kinds, is_radiology


def _equals(rows: pd.DataFrame, column: str, value: str) -> "pd.Series[bool]":
    """Marks the rows whose `column` is `value`, in any case and with any space around it; none without the column."""
    return rows[column].str.strip().str.lower() == value if column in rows else pd.Series(False, rows.index)


def _times(
    rows: pd.DataFrame, table: str
) -> tuple["pd.Series[pd.Timestamp]", "pd.Series[pd.Timestamp]", "pd.Series[bool]"]:
    """Returns the times at which notes were charted and written, and marks those that have only a date.

    Written is the later of chart and store time: a note describes the first, and could be read from the second on.
    """
    charted, stored = rows["charttime"], rows["storetime"]
    if table == "noteevents":
        days, has_day_alone = rows["chartdate"], charted.isna()
        begins, charted = charted.fillna(days), charted.fillna(days + LAST_SECOND)
    else:  # MIMIC-IV charts its discharge notes at midnight of their day
        days, begins = charted.dt.floor("D"), charted
        has_day_alone = (charted == days) & (table == "discharge")
    by_day = has_day_alone & days.notna() & ~(stored >= days)  # else the store time says when on that day
    written = pd.concat([begins, stored], axis=1).max(axis=1).mask(by_day, days + LAST_SECOND)
    return charted, written, by_day
