"""The stage `domain.cohort`: stays with their readmission label and split, and the counts of every step.

Writes `cohort.parquet`, a row for each stay that a readmission can follow; `stays.parquet`, those that end in death as
well, for other outcomes, under the same splits; `members.parquet`, the admissions that a stay is made of;
`characteristics.parquet`, demographics and diagnoses of the stays; `flow.csv`, the counts of every step.

Admissions are joined into stays, each with the unplanned admission that follows it; exclusions come after that.
"""

from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow as pa

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from bertrelay.files import write_json
from bertrelay.progress import log
from bertrelay.report import write_report
from bertrelay.stage import Metrics, StageContext, run_alone
from domain.clinical.report import flow_report
from domain.clinical.settings import FLOW, LATEST, PER_SUBJECT, READMISSION, CohortSettings
from domain.clinical.sources.form import ORDER, Discharge, Hospital
from domain.clinical.sources.opening import open_hospital
from domain.clinical.stage_files import (
    CHARACTERISTICS,
    COHORT,
    COHORT_FACTS,
    MEMBERS,
    SPLITS,
    STAY,
    STAYS,
    Flow,
    write_parquet,
)
from domain.sampling import split_of, unit_hash

CHARACTERISTIC_COLUMNS = [
    *("hadm_id", "sex", "age", "insurance", "race"),
    *("admission_type", "died_in_hospital", "length_of_stay_days"),
]


def write_characteristics(
    folder: Path, stays: pd.DataFrame, members: pd.DataFrame, hospital: Hospital, rejects: Rejects
) -> None:
    """Writes `characteristics.parquet`, a row for each of the stays in their order.

    Columns: hadm_id, sex, age (years, 91 for all over 89), insurance, race, admission_type, died_in_hospital,
    length_of_stay_days, diagnoses (a list of {code, version}, most important first; null where there is no table).
    """
    table = pa.Table.from_pandas(stays[CHARACTERISTIC_COLUMNS], preserve_index=False)
    kind = pa.list_(pa.struct([("code", pa.string()), ("version", pa.int8())]))
    codes_of = hospital.codes(pd.Series(range(len(members)), index=members["hadm_id"]), rejects)
    if codes_of is None:
        codes = pa.nulls(len(stays), kind)
    else:
        positions = pd.Series(range(len(stays)), index=stays["hadm_id"]).reindex(members[STAY])
        # The codes of each stay once: by admission, and by `seq_num`.
        codes_of = codes_of.assign(stay=positions.to_numpy()[codes_of["admission"]])
        codes_of = codes_of.sort_values(["stay", "admission", "seq_num"], kind="stable")
        of_stays = codes_of.drop_duplicates(["stay", "code", "version"])
        ends = of_stays["stay"].value_counts().reindex(range(len(stays)), fill_value=0).cumsum()
        offsets = pa.array([0, *ends], pa.int32())
        structs = pa.Table.from_pandas(of_stays[["code", "version"]], preserve_index=False).to_struct_array()
        codes = pa.ListArray.from_arrays(offsets, structs.combine_chunks()).cast(kind)
    write_parquet(folder / CHARACTERISTICS, table.append_column("diagnoses", codes))


OF_EVERY_STAY = ("subject_id", "hadm_id", "admitted_at", "discharged_at", "next_stay_at")
COLUMNS = [*OF_EVERY_STAY, "next_admission_at", "gap_days", "readmitted", "split"]
STAY_COLUMNS = [*OF_EVERY_STAY, "died_at", "died_in_hospital", "length_of_stay_days", "split"]


class CohortStays(NamedTuple):
    """Stays, and the admissions that they are made of.

    all: stays of any end, deaths in hospital included, by subject and time.
    cohort: those of them that a return can follow; both with `next_stay_at` (the subject's next, planned or not),
        `next_admission_at` (the next unplanned one), `gap_days` and `readmitted`.
    members: (hadm_id, stay_hadm_id) of the admissions.
    """

    all: pd.DataFrame
    cohort: pd.DataFrame
    members: pd.DataFrame


def write_cohort(settings: CohortSettings, folder: Path) -> Metrics:
    """Runs the stage outside of a recipe: writes into `folder`."""
    return run_alone(run, settings, folder, sensitive=True)


def run(settings: CohortSettings, context: StageContext) -> Metrics:
    """Writes the cohort of a hospital; returns counts of admissions and subjects, and the fraction that returned.

    Raises RequestError for missing or damaged tables and for an empty cohort, WorkError for too many unusable rows.
    """
    if not context.process_group.is_main:
        return {}
    flow = Flow(READMISSION.labels[0])
    hospital = open_hospital(settings.mimic, settings.source, settings.planned_types)
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        admissions = hospital.admissions(rejects, flow.count)
        rejects.check()  # before an empty cohort is reported, whose cause they may be
        stays, cohort, members = make_cohort(admissions, settings, flow)
        members = members[members[STAY].isin(stays["hadm_id"])]
        write_characteristics(context.output, stays, members, hospital, rejects)
    write_parquet(context.output / COHORT, cohort[COLUMNS])
    write_parquet(context.output / STAYS, stays[STAY_COLUMNS])
    write_parquet(context.output / MEMBERS, members)
    flow.write(context.output / FLOW)
    write_report(flow_report(context.output), context)
    window = float(HUANG_WINDOW_DAYS) if settings.rules == "huang2019" else settings.window_days
    facts = {"window_days": window, "deaths_counted": settings.deaths_in_window == "counted"}
    write_json(context.output / COHORT_FACTS, facts)
    log(f"cohort: {len(cohort):,} index stays; left out by each step: {flow.exclusions() or 'none'}")
    metrics: Metrics = {"admissions": len(cohort), "subjects": cohort["subject_id"].nunique()}
    for split in SPLITS:
        part = cohort[cohort["split"] == split]
        metrics[f"admissions/{split}"] = len(part)
        metrics[f"subjects/{split}"] = part["subject_id"].nunique()
        metrics[f"readmitted_share/{split}"] = float(part["readmitted"].mean()) if len(part) else None
    return metrics


def make_cohort(admissions: pd.DataFrame, settings: CohortSettings, flow: Flow) -> CohortStays:
    """Selects the stays and the cohort, with their split and length.

    Raises RequestError when no stay is left in the cohort.
    """
    if settings.rules == "huang2019":
        followed, window_days = huang_stays(admissions, flow), float(HUANG_WINDOW_DAYS)
    else:
        followed, window_days = default_stays(admissions, settings, flow), settings.window_days
    indexed = followed_up(followed.cohort, admissions, settings.data_end, window_days, flow)
    if indexed.empty:
        left = "; ".join(f"{step.admissions:,} {step.step}" for step in flow.steps)
        raise RequestError(
            f"the cohort is empty. What was left after each step: {left}. "
            "Look at the step that leaves nothing, and at the setting behind it; `minimum_age` needs the table of "
            "patients to be of the same release."
        )
    stays, cohort = (_with_split_and_length(table, settings) for table in (followed.all, indexed))
    if settings.balance_train:  # keeps those with the smallest keyed hashes
        hashes = cohort["hadm_id"].map(lambda hadm_id: unit_hash(hadm_id, settings.split_key))
        train = cohort["split"] == "train"
        fewest = int(cohort.loc[train, "readmitted"].value_counts().reindex([True, False], fill_value=0).min())
        rank = hashes.groupby([cohort["split"], cohort["readmitted"]]).rank(method="first")
        cohort = flow.keep("with as many of either label in train", cohort, ~train | (rank <= fewest))
    for split in SPLITS:
        part = flow.count(split, cohort[cohort["split"] == split])
        flow.count(f"{split}, readmitted", part[part["readmitted"]])
    return CohortStays(stays, cohort, followed.members)


def _with_split_and_length(stays: pd.DataFrame, settings: CohortSettings) -> pd.DataFrame:
    subjects, shares = stays["subject_id"], {"test": settings.test_share, "validation": settings.validation_share}
    splits = {subject: split_of(subject, settings.split_key, shares) for subject in subjects.unique()}
    days = (stays["discharged_at"] - stays["admitted_at"]).dt.total_seconds() / 86_400
    whole_days = (stays["discharged_at"].dt.floor("D") - stays["admitted_at"].dt.floor("D")).dt.days
    days = days.mask(stays["is_by_day"], whole_days)
    return stays.assign(split=subjects.map(splits), length_of_stay_days=days)


DISCHARGES: dict[Discharge, str] = {
    "acute-care-transfer": "transferred to another acute care facility",
    "against-medical-advice": "discharged against medical advice",
    "hospice": "discharged to hospice",
}
"""Names in the flow table."""


def count_discharges(stays: pd.DataFrame, window_days: float, flow: Flow) -> None:
    """Counts the index stays by their kind of discharge, and those whose subject died within the window."""
    for discharge, name in DISCHARGES.items():
        flow.count(f"of these, {name}", stays[stays["left_as"] == discharge])
    dead = flow.count(f"of these, died within {window_days:g} days", stays[died_within(stays, window_days)])
    flow.count(f"of these, died within {window_days:g} days and not readmitted", dead[~dead["readmitted"]])


def died_within(stays: pd.DataFrame, window_days: float) -> "pd.Series[bool]":
    """Marks the stays whose subject died, anywhere, at most `window_days` after the discharge."""
    return stays["day_of_death"] <= stays["discharged_at"] + pd.Timedelta(days=window_days)


def default_stays(admissions: pd.DataFrame, settings: CohortSettings, flow: Flow) -> CohortStays:
    """Joins admissions into stays by the default rules, and links each stay to the admission that follows it.

    Exclusions come after the links, which they would break. The stays of a subject, with `window_days` 30:

        admission               discharged   next unplanned admission   gap_days   readmitted
        1  day 0, emergency     day 4        3                          21         yes
        2  day 10, elective     day 12       3                          13         yes
        3  day 25, emergency    day 60       none                                  no

    With `returns` "next", 1 has none: 2, which is planned, comes before 3.
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
    ends_window = counted & (~stays["is_planned"] | (settings.returns == "next"))
    stays = with_return(stays, _first_after_discharge(stays, stays[ends_window]))
    stays["readmitted"] = stays["gap_days"] <= settings.window_days
    if settings.observation_stays == "excluded":
        stays = flow.keep("not under observation alone", stays, counted)
    stays = _without_faults(stays, flow)
    stays = flow.keep("not newborn", stays, ~stays["is_newborn"])
    stays = flow.keep("not discharged before the admission", stays, stays["discharged_at"] >= stays["admitted_at"])
    if settings.minimum_age:
        is_old_enough = stays["age"] >= settings.minimum_age
        stays = flow.keep(f"at least {settings.minimum_age} years old", stays, is_old_enough)
    return CohortStays(stays, _index_stays(stays, settings, flow), _members(numbered))


def _without_faults(stays: pd.DataFrame, flow: Flow) -> pd.DataFrame:
    """Keeps the stays with an id, an end and no fault; the others count only as returns and as limits to text."""
    stays = flow.keep("with a hadm_id of their own, and nothing wrong", stays, stays["has_own_id"] & stays["is_whole"])
    return flow.keep("not open (without a discharge)", stays, ~stays["is_open"], has_outcome=False)


def _members(numbered: pd.DataFrame) -> pd.DataFrame:
    return numbered.loc[numbered["has_own_id"], ["hadm_id", STAY]]


def _index_stays(stays: pd.DataFrame, settings: CohortSettings, flow: Flow) -> pd.DataFrame:
    """Keeps the stays that a readmission can follow."""
    stays = flow.keep("discharged alive", stays, ~stays["died_in_hospital"])
    count_discharges(stays, settings.window_days, flow)
    for discharge in settings.excluded_discharges:
        stays = flow.keep(f"not {DISCHARGES[discharge]}", stays, stays["left_as"] != discharge)
    if settings.deaths_in_window == "excluded":
        is_kept = ~died_within(stays, settings.window_days) | stays["readmitted"]
        stays = flow.keep(f"alive or back within {settings.window_days:g} days", stays, is_kept)
    if settings.deaths_in_window == "counted":
        stays = stays.assign(readmitted=stays["readmitted"] | died_within(stays, settings.window_days))
        flow.count("of these, readmitted or dead within the window", stays[stays["readmitted"]])
    return stays


def _first_after_discharge(stays: pd.DataFrame, others: pd.DataFrame) -> "pd.Series[pd.Timestamp]":
    """Finds the admission time of the subject's first of `others` after the discharge, for each of `stays`.

    Null where that one is planned.
    """
    later = stays["admitted_at"] + pd.Timedelta(seconds=1)  # than the stay itself, which may end as it begins
    ends = pd.DataFrame(
        {"at": stays["discharged_at"].fillna(later).clip(lower=later), "subject_id": stays["subject_id"]}
    )
    begins = others[["subject_id", "admitted_at", "is_planned"]].sort_values("admitted_at")
    ordered = ends.sort_values("at")
    matches = pd.merge_asof(ordered, begins, left_on="at", right_on="admitted_at", by="subject_id", direction="forward")
    following = matches["admitted_at"].mask(matches["is_planned"].eq(True))
    return following.set_axis(ordered.index).reindex(stays.index)


def with_return(stays: pd.DataFrame, following: "pd.Series[pd.Timestamp]") -> pd.DataFrame:
    """Adds `next_admission_at`, the times of `following`, and `gap_days`, the days from the discharge until then."""
    gap_days = (following - stays["discharged_at"]).dt.total_seconds() / 86_400
    return stays.assign(next_admission_at=following, gap_days=gap_days)


def _numbered(admissions: pd.DataFrame, within_hours: float | None) -> pd.DataFrame:
    """Adds `stay_hadm_id`, the first admission of a stay; with `within_hours` None each admission is a stay.

    An admission that begins before the latest discharge so far, or at most `within_hours` after it, continues the stay.
    """
    if within_hours is None:
        return admissions.assign(**{STAY: admissions["hadm_id"]})
    ends = admissions[["admitted_at", "discharged_at"]].max(axis=1)  # a discharge before the admission ends nothing
    latest_end = ends.groupby(admissions["subject_id"]).cummax().groupby(admissions["subject_id"]).shift()
    begins = ~(admissions["admitted_at"] <= latest_end + pd.Timedelta(hours=within_hours))
    return admissions.assign(**{STAY: admissions["hadm_id"].where(begins).ffill()})


def _joined(numbered: pd.DataFrame) -> pd.DataFrame:
    """Makes a row for each stay: its first admission, with the last discharge and the next stay of the subject.

    A stay has the death of any of its admissions, and is an observation stay where all of them are. Rows are sorted by
    subject and time.
    """
    first = numbered.drop_duplicates(STAY).set_index(STAY)
    stays = numbered.assign(is_open=numbered["discharged_at"].isna()).groupby(STAY, sort=False)
    last = numbered.sort_values("discharged_at", kind="stable").drop_duplicates(STAY, keep="last").set_index(STAY)
    joined = first.assign(
        left_as=last["left_as"],
        discharged_at=stays["discharged_at"].max(),
        died_in_hospital=stays["died_in_hospital"].any(),
        died_at=stays["died_at"].max(),
        observation_alone=stays["is_observation"].all(),
        is_whole=stays["is_whole"].all(),
        is_by_day=stays["is_by_day"].any(),
        is_open=stays["is_open"].any(),
    )
    joined = joined.sort_values(ORDER, ignore_index=True)
    return joined.assign(next_stay_at=joined["admitted_at"].groupby(joined["subject_id"]).shift(-1))


UNSHIFTED = 2100
"""Year from which on dates are taken for shifted ones: MIMIC shifts those of each subject by another time."""


def followed_up(
    cohort: pd.DataFrame, admissions: pd.DataFrame, data_end: str | None, window_days: float, flow: Flow
) -> pd.DataFrame:
    """Keeps the index stays whose whole window the data cover, with and without a return.

    data_end: the last day of the data, `latest` for the latest time in the table of admissions, `per-subject` for the
        latest `followed_until` of each subject, without which a stay is left out; None keeps all.
    """
    latest = admissions[["admitted_at", "discharged_at", "died_at"]].max().max()
    is_shifted = latest.year >= UNSHIFTED
    end = latest if data_end in (None, LATEST, PER_SUBJECT) else pd.Timestamp(data_end) + pd.Timedelta(days=1)
    if data_end == PER_SUBJECT:
        end = cohort["subject_id"].map(admissions.groupby("subject_id")["followed_until"].max())
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


def huang_stays(admissions: pd.DataFrame, flow: Flow) -> CohortStays:
    """Selects stays by the published code of Huang, Altosaar & Ranganath (2019), as `default_stays` does.

    The time of an elective next admission is blanked and filled back from later ones of the subject; fewer than 30
    days, negative ones included, make a positive. Newborns, then rows with a time of death, are left out after that.
    """
    others = admissions[admissions["is_planned"] & ~admissions["admission_type"].isin(HUANG_PLANNED)]
    if len(others):
        log(
            f"rules huang2019: as in the published code for MIMIC-III, only {' and '.join(HUANG_PLANNED)} is planned; "
            f"{len(others):,} admissions as {' or '.join(sorted(set(others['admission_type'])))}, planned by the "
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
    stays = flow.keep("not newborn", stays, ~stays["is_newborn"])
    cohort = flow.keep("without a time of death", stays, stays["deathtime"].isna())
    count_discharges(cohort, HUANG_WINDOW_DAYS, flow)
    return CohortStays(stays, cohort, stays[["hadm_id"]].assign(**{STAY: stays["hadm_id"]}))
