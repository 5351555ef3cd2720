"""Admissions of MIMIC-III and MIMIC-IV in one form, joined into stays, and the unplanned admission after each stay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from bertrelay.data.records import Rejects
from bertrelay.files import write_text
from bertrelay.progress import log
from domain.clinical.mimic import FAULT, ROW, Version, columns_of, read_table, version_of
from domain.clinical.records import log_copies
from domain.clinical.settings import LATEST, CohortSettings, Discharge, in_words


class FlowStep(NamedTuple):
    """A row of `flow.csv`; what is not counted is None."""

    step: str
    admissions: int
    subjects: int
    left_out: int | None = None
    with_outcome: int | None = None


@dataclass
class Flow:
    """Steps in their order, each with its counts; once stays are joined, an admission is such a stay.

    outcome: the column that says which of the stays that a step leaves out have the outcome; None counts none.
    """

    outcome: str | None = None
    steps: list[FlowStep] = field(default_factory=list)

    def count(self, step: str, stays: pd.DataFrame) -> pd.DataFrame:
        """Counts what is left after `step`, and returns it."""
        self.steps.append(FlowStep(step, len(stays), stays["subject_id"].nunique()))
        return stays

    def keep(
        self, step: str, stays: pd.DataFrame, is_kept: "pd.Series[bool]", has_outcome: bool = True
    ) -> pd.DataFrame:
        """Counts and returns the stays that `step` keeps; counts the others, and those of them with the outcome.

        has_outcome: whether the outcome of what is left out is known.
        """
        kept, others = stays[is_kept], stays[~is_kept]
        known = has_outcome and self.outcome in stays
        with_outcome = int(others[self.outcome].eq(True).sum()) if known else None
        self.steps.append(FlowStep(step, len(kept), kept["subject_id"].nunique(), len(others), with_outcome))
        return kept

    def exclusions(self) -> str:
        """`"not newborn" 812 (0 readmitted)` of each step that leaves something out."""
        listed = []
        for each in self.steps:
            if each.left_out:
                what = "" if each.with_outcome is None else f" ({each.with_outcome:,} {in_words(self.outcome or '')})"
                listed.append(f'"{each.step}" {each.left_out:,}{what}')
        return "; ".join(listed)

    def write(self, path: Path) -> None:
        """Writes the table as CSV."""
        columns = ["step", "admissions", "subjects", "left_out", f"left_out_{self.outcome or 'with_outcome'}"]
        write_text(path, pd.DataFrame(self.steps, columns=columns, dtype=object).to_csv(index=False))


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
"""What makes an admission a return and a limit to text, whatever else is wrong with its row."""


def read_admissions(tables: Mapping[str, Path], rejects: Rejects, flow: Flow) -> pd.DataFrame:
    """Every admission with a subject and a beginning, by subject and time; what cannot be used is counted.

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
    again = patients.duplicated("subject_id")
    patients = _without(patients, again, "a subject_id that an earlier row has", file, rejects)
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
    """The table of admissions alone, with deaths in hospital by time, flag or discharge location."""
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
    own_ids = admissions["hadm_id"].where(has_id & ~is_again, "\uffff" + admissions[ROW].astype(str))
    admissions = admissions.assign(hadm_id=own_ids, has_own_id=has_id & ~is_again, is_whole=admissions[FAULT] == "")
    for column in ("admission_type", "discharge_location"):
        admissions[column] = admissions[column].str.strip().str.upper()
    dead = admissions["deathtime"].notna() | (admissions["hospital_expire_flag"] == "1")
    admissions["died_in_hospital"] = dead | admissions["discharge_location"].isin(DEATH_LOCATIONS)
    ends = admissions["discharged_at"].fillna(admissions["deathtime"].where(admissions["is_whole"]))
    death = admissions["deathtime"].fillna(ends)  # a few deaths have the flag or the location alone
    admissions = admissions.assign(discharged_at=ends, died_at=death.where(admissions["died_in_hospital"]))
    return admissions.drop(columns=[ROW, FAULT])


def _list_faults(table: pd.DataFrame, faults: "pd.Series[str]", file: Path, rejects: Rejects) -> None:
    """Lists the rows with a fault, of which the rest counts all the same."""
    for row, fault in zip(table.loc[faults != "", ROW], faults[faults != ""], strict=True):
        rejects.used(-1)  # as which it was counted when it was read
        rejects.add(str(file), row, fault)


def _without_copies(table: pd.DataFrame, file: Path) -> pd.DataFrame:
    """The table without rows that are equal to an earlier one in all columns that are read; logs how many."""
    is_copy = table.duplicated(table.columns.drop(ROW).tolist())
    log_copies(int(is_copy.sum()), len(table), f"rows of {file.name}", "in all columns that are read")
    return table[~is_copy]


def _count_contradictions(admissions: pd.DataFrame, flow: Flow) -> None:
    """Counts where time, flag, discharge location and date of death contradict each other, and what follows a death."""
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
        found = flow.count(f"of these, {what}", admissions[is_so])
        if len(found):
            log(f"admissions {what}: {len(found):,} of {len(admissions):,}")


def _without(table: pd.DataFrame, wrong: "pd.Series[bool]", reason: str, file: Path, rejects: Rejects) -> pd.DataFrame:
    """The table without its `wrong` rows, which are counted."""
    for row in table.loc[wrong, ROW].tolist():
        rejects.used(-1)  # as which it was counted when it was read
        rejects.add(str(file), row, reason)
    return table[~wrong]


def _age(admissions: pd.DataFrame) -> "pd.Series[float]":
    """Years at admission, as the table of patients has it; null where it is unknown.

    Over 89 becomes 91, as MIMIC-IV has it; MIMIC-III sets such a birth 300 years before the first admission.
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


DISCHARGES: dict[Discharge, tuple[str, tuple[str, ...]]] = {
    "acute-care-transfer": (
        "transferred to another acute care facility",
        ("SHORT TERM HOSPITAL", "DISC-TRAN CANCER/CHLDRN H", "ACUTE HOSPITAL"),
    ),
    "against-medical-advice": ("discharged against medical advice", ("LEFT AGAINST MEDICAL ADVI", "AGAINST ADVICE")),
    "hospice": ("discharged to hospice", ("HOSPICE-HOME", "HOSPICE-MEDICAL FACILITY", "HOSPICE")),
}
"""What each is called in the flow table, and what `discharge_location` has for it in MIMIC-III and MIMIC-IV."""


def count_discharges(stays: pd.DataFrame, window_days: float, flow: Flow) -> None:
    """Counts the index stays that ended so, and those whose subject died within the window."""
    for name, locations in DISCHARGES.values():
        flow.count(f"of these, {name}", stays[stays["discharge_location"].isin(locations)])
    dead = flow.count(f"of these, died within {window_days:g} days", stays[died_within(stays, window_days)])
    flow.count(f"of these, died within {window_days:g} days and not readmitted", dead[~dead["readmitted"]])


def died_within(stays: pd.DataFrame, window_days: float) -> "pd.Series[bool]":
    """Whether the subject died, wherever, at most so many days after the discharge."""
    return stays["day_of_death"] <= stays["discharged_at"] + pd.Timedelta(days=window_days)


STAY = "stay_hadm_id"
NEWBORN = "NEWBORN"
PLANNED: dict[Version, tuple[str, ...]] = {"III": ("ELECTIVE",), "IV": ("ELECTIVE", "SURGICAL SAME DAY ADMISSION")}
OBSERVATION = ("AMBULATORY OBSERVATION", "DIRECT OBSERVATION", "EU OBSERVATION")


class FoundStays(NamedTuple):
    """Stays, and the admissions that each is made of.

    all: whatever their end, deaths in hospital among them, by subject and time.
    cohort: those of them that a return can follow; both with `next_stay_at` (the subject's next, planned or not),
        `next_admission_at` (the next unplanned one), `gap_days` and `readmitted`.
    members: (hadm_id, stay_hadm_id) of the admissions.
    """

    all: pd.DataFrame
    cohort: pd.DataFrame
    members: pd.DataFrame


def default_stays(admissions: pd.DataFrame, settings: CohortSettings, version: Version, flow: Flow) -> FoundStays:
    """The stays with what followed them.

    What is no index stay is left out after the next admission was found: left out before, it would break the links.
    """
    # Organ donors' accounts begin when their subject has died in hospital already, and have that death a second time.
    # Death on arrival is a readmission, so that only deaths of earlier admissions count.
    subjects = admissions["subject_id"]
    earlier_death = admissions["died_at"].groupby(subjects).shift()
    first_death = earlier_death.groupby(subjects).cummin().groupby(subjects).ffill()
    is_living = ~(admissions["admitted_at"] >= first_death)
    living = flow.keep("not after the subject's death (organ donors)", admissions, is_living)
    is_joined = settings.overlapping_stays == "joined"
    numbered = _numbered(living, settings.transfer_hours if is_joined else None)
    stays = _joined(numbered)
    if is_joined:
        flow.count("joined with those they overlap or touch", stays)
    counted = ~stays["observation_alone"] | (settings.observation_stays == "kept")
    planned: Sequence[str] = PLANNED[version]
    if settings.planned_types is not None:
        planned = [name.strip().upper() for name in settings.planned_types]
        unmet = sorted(set(planned).difference(stays.loc[counted, "admission_type"]))
        if unmet:
            log(f"planned_types: no stay begins as {' or '.join(unmet)}; see that each is written as in the table")
    unplanned = stays[counted & ~stays["admission_type"].isin(planned)]
    stays = with_return(stays, _first_after_discharge(stays, unplanned))
    stays["readmitted"] = stays["gap_days"] <= settings.window_days
    if settings.observation_stays == "excluded":
        stays = flow.keep("not under observation alone", stays, counted)
    stays = _without_faults(stays, flow)
    stays = flow.keep("not newborn", stays, stays["admission_type"] != NEWBORN)
    stays = flow.keep("not discharged before the admission", stays, stays["discharged_at"] >= stays["admitted_at"])
    if settings.minimum_age:
        is_old_enough = stays["age"] >= settings.minimum_age
        stays = flow.keep(f"at least {settings.minimum_age} years old", stays, is_old_enough)
    return FoundStays(stays, _index_stays(stays, settings, flow), _members(numbered))


def _without_faults(stays: pd.DataFrame, flow: Flow) -> pd.DataFrame:
    """The stays with an id, an end and no fault; the others were returns and limits to text alone."""
    stays = flow.keep("with a hadm_id of their own, and nothing wrong", stays, stays["has_own_id"] & stays["is_whole"])
    return flow.keep("not open (without a discharge)", stays, ~stays["is_open"], has_outcome=False)


def _members(numbered: pd.DataFrame) -> pd.DataFrame:
    return numbered.loc[numbered["has_own_id"], ["hadm_id", STAY]]


def _index_stays(stays: pd.DataFrame, settings: CohortSettings, flow: Flow) -> pd.DataFrame:
    """Those of the stays that a readmission can follow."""
    stays = flow.keep("discharged alive", stays, ~stays["died_in_hospital"])
    count_discharges(stays, settings.window_days, flow)
    for discharge in settings.excluded_discharges:
        name, locations = DISCHARGES[discharge]
        stays = flow.keep(f"not {name}", stays, ~stays["discharge_location"].isin(locations))
    if settings.deaths_in_window == "excluded":
        is_kept = ~died_within(stays, settings.window_days) | stays["readmitted"]
        stays = flow.keep(f"alive or back within {settings.window_days:g} days", stays, is_kept)
    return stays


def _first_after_discharge(stays: pd.DataFrame, unplanned: pd.DataFrame) -> "pd.Series[pd.Timestamp]":
    """The admission time of the subject's first unplanned stay after the discharge of each of `stays`."""
    later = stays["admitted_at"] + pd.Timedelta(seconds=1)  # than the stay itself, which may end as it begins
    ends = pd.DataFrame(
        {"at": stays["discharged_at"].fillna(later).clip(lower=later), "subject_id": stays["subject_id"]}
    )
    begins = unplanned[["subject_id", "admitted_at"]].sort_values("admitted_at")
    ordered = ends.sort_values("at")
    found = pd.merge_asof(ordered, begins, left_on="at", right_on="admitted_at", by="subject_id", direction="forward")
    return found.set_index(ordered.index)["admitted_at"].reindex(stays.index)


def with_return(stays: pd.DataFrame, following: "pd.Series[pd.Timestamp]") -> pd.DataFrame:
    """The stays with `next_admission_at`, when that which follows begins, and `gap_days` until then."""
    gap_days = (following - stays["discharged_at"]).dt.total_seconds() / 86_400
    return stays.assign(next_admission_at=following, gap_days=gap_days)


def _numbered(admissions: pd.DataFrame, within_hours: float | None) -> pd.DataFrame:
    """The admissions with `stay_hadm_id`, the first admission of the stay they belong to; None joins nothing.

    One that begins before the latest discharge so far, or at most `within_hours` after it, continues that stay.
    """
    if within_hours is None:
        return admissions.assign(**{STAY: admissions["hadm_id"]})
    ends = admissions[["admitted_at", "discharged_at"]].max(axis=1)  # a discharge before the admission ends nothing
    latest_end = ends.groupby(admissions["subject_id"]).cummax().groupby(admissions["subject_id"]).shift()
    begins = ~(admissions["admitted_at"] <= latest_end + pd.Timedelta(hours=within_hours))
    return admissions.assign(**{STAY: admissions["hadm_id"].where(begins).ffill()})


def _joined(numbered: pd.DataFrame) -> pd.DataFrame:
    """One row for each stay: its first admission, with the last discharge, where that led, and what begins after it.

    Death is that of any admission, and observation is what all of them are. Rows are sorted by subject and time.
    """
    first = numbered.drop_duplicates(STAY).set_index(STAY)
    is_observation, is_open = numbered["admission_type"].isin(OBSERVATION), numbered["discharged_at"].isna()
    stays = numbered.assign(is_observation=is_observation, is_open=is_open).groupby(STAY, sort=False)
    last = numbered.sort_values("discharged_at", kind="stable").drop_duplicates(STAY, keep="last").set_index(STAY)
    joined = first.assign(
        discharge_location=last["discharge_location"],
        discharged_at=stays["discharged_at"].max(),
        died_in_hospital=stays["died_in_hospital"].any(),
        died_at=stays["died_at"].max(),
        observation_alone=stays["is_observation"].all(),
        is_whole=stays["is_whole"].all(),
        is_open=stays["is_open"].any(),
    )
    joined = joined.sort_values(ORDER, ignore_index=True)
    return joined.assign(next_stay_at=joined["admitted_at"].groupby(joined["subject_id"]).shift(-1))


UNSHIFTED = 2100
"""Before this year dates are not shifted as MIMIC's are, each subject's by another time."""


def followed_up(
    cohort: pd.DataFrame, admissions: pd.DataFrame, data_end: str | None, window_days: float, flow: Flow
) -> pd.DataFrame:
    """The index stays whose whole window the data have, whether somebody came back or not.

    data_end: the last day of the data, `latest` for the latest time in the table of admissions; None keeps all.
    """
    latest = admissions[["admitted_at", "discharged_at", "died_at"]].max().max()
    is_shifted = latest.year >= UNSHIFTED
    end = latest if data_end in (None, LATEST) else pd.Timestamp(data_end) + pd.Timedelta(days=1)
    is_whole = cohort["discharged_at"] + pd.Timedelta(days=window_days) <= end
    if data_end is not None and is_shifted:
        log(
            f"data_end: the dates of these tables go to {latest.year}; where each subject's are shifted by another "
            "time, as MIMIC's are, they have no end in common, and those left out are not those nobody followed up"
        )
    if data_end is not None:
        return flow.keep(f"with all {window_days:g} days before the end of the data", cohort, is_whole)
    if not is_shifted and not is_whole.all():
        log(
            f"{(~is_whole).sum():,} of {len(cohort):,} index stays end less than {window_days:g} days before the latest"
            ' time in the table of admissions, so that later returns are not seen; data_end = "latest" leaves them out'
        )
    return cohort


HUANG_PLANNED = ("ELECTIVE",)
HUANG_WINDOW_DAYS = 30


def huang_stays(admissions: pd.DataFrame, version: Version, flow: Flow) -> FoundStays:
    """The stays as `default_stays` gives them.

    The next admission's time is blanked when that is elective and filled back from later ones of the subject; fewer
    than 30 days make a positive, negative ones too. Newborns, then rows with a time of death, are left out after that.
    """
    others = [kind for kind in PLANNED[version] if kind not in HUANG_PLANNED]
    if others:
        count = int(admissions["admission_type"].isin(others).sum())
        log(
            f"rules huang2019: planned types differ in MIMIC-{version}. As in the published code for MIMIC-III, only "
            f"{' and '.join(HUANG_PLANNED)} is planned; {count:,} admissions as {' or '.join(others)}, planned by the "
            "default rules, count as unplanned returns"
        )
    subjects = admissions["subject_id"]
    next_stay = admissions["admitted_at"].groupby(subjects).shift(-1)
    unplanned = admissions["admitted_at"].mask(admissions["admission_type"].isin(HUANG_PLANNED))
    following = unplanned.groupby(subjects).shift(-1).groupby(subjects).bfill()
    is_open = admissions["discharged_at"].isna()
    stays = with_return(admissions.assign(next_stay_at=next_stay, is_open=is_open), following)
    stays["readmitted"] = stays["gap_days"] < HUANG_WINDOW_DAYS
    stays = _without_faults(stays, flow)
    stays = flow.keep("not newborn", stays, stays["admission_type"] != NEWBORN)
    cohort = flow.keep("without a time of death", stays, stays["deathtime"].isna())
    count_discharges(cohort, HUANG_WINDOW_DAYS, flow)
    return FoundStays(stays, cohort, stays[["hadm_id"]].assign(**{STAY: stays["hadm_id"]}))
