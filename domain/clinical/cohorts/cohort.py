"""The stage `domain.cohort`: who came back unplanned, who is in which split, and how that came about.

Writes `cohort.parquet`, a row for each stay that a return can follow; `stays.parquet`, those that end in death as well,
for what else can be asked of a stay, under the same splits; `members.parquet`, the admissions that a stay is made of;
`characteristics.parquet`, what else is known of the stays; `flow.csv`, the counts of every step.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from bertrelay.stage import Metrics, StageContext, run_alone
from domain.clinical.cohorts.admissions import read_admissions
from domain.clinical.cohorts.characteristics import write_characteristics
from domain.clinical.cohorts.cohort_settings import CohortSettings
from domain.clinical.cohorts.flow import Flow
from domain.clinical.cohorts.huang import huang_stays
from domain.clinical.cohorts.mimic import version_of
from domain.clinical.cohorts.splits import SPLITS, balanced, split_of
from domain.clinical.cohorts.stays import STAY, FoundStays, default_stays
from domain.clinical.cohorts.tables import HOSPITAL, Version, tables_of
from domain.clinical.parquet import write_parquet

if TYPE_CHECKING:
    import pandas as pd

COHORT, STAYS, MEMBERS, FLOW = "cohort.parquet", "stays.parquet", "members.parquet", "flow.csv"
COLUMNS = [
    "subject_id",
    "hadm_id",
    "admitted_at",
    "discharged_at",
    "next_stay_at",
    "next_admission_at",
    "gap_days",
    "readmitted",
    "split",
]
STAY_COLUMNS = [
    "subject_id",
    "hadm_id",
    "admitted_at",
    "discharged_at",
    "next_stay_at",
    "died_at",
    "died_in_hospital",
    "length_of_stay_days",
    "split",
]


def write_cohort(settings: CohortSettings, folder: Path) -> Metrics:
    """The stage outside of a recipe: writes into `folder`."""
    return run_alone(run, settings, folder, sensitive=True)


def run(settings: CohortSettings, context: StageContext) -> Metrics:
    """Makes the cohort of a folder of MIMIC's tables; counts of admissions and subjects, and the share that returned.

    Raises RequestError for missing or damaged tables and for an empty cohort, WorkError for too many unusable rows.
    """
    if not context.process_group.is_main:
        return {}
    tables, flow = tables_of(settings.mimic, HOSPITAL), Flow()
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        admissions = read_admissions(tables, rejects, flow)
        rejects.check()  # before an empty cohort is told, whose cause they may be
        stays, cohort, members = make_cohort(admissions, settings, version_of(tables["patients"]), flow)
        members = members[members[STAY].isin(stays["hadm_id"])]
        write_characteristics(context.output, stays, members, tables.get("diagnoses_icd"), rejects)
    write_parquet(context.output / COHORT, cohort[COLUMNS])
    write_parquet(context.output / STAYS, stays[STAY_COLUMNS])
    write_parquet(context.output / MEMBERS, members)
    flow.write(context.output / FLOW)
    return _metrics(cohort)


def make_cohort(admissions: "pd.DataFrame", settings: CohortSettings, version: Version, flow: Flow) -> FoundStays:
    """The stays and those of the cohort, with split and length, and (hadm_id, stay_hadm_id) of all admissions.

    Raises RequestError when no stay is left in the cohort.
    """
    if settings.rules == "huang2019":
        found = huang_stays(admissions, version, flow)
    else:
        found = default_stays(admissions, settings, version, flow)
    if found.cohort.empty:
        raise RequestError(
            f"the cohort is empty. What was left after each step: {flow.told()}. "
            "Look at the step that leaves nothing, and at the setting behind it; `minimum_age` needs the table of "
            "patients to be of the same release."
        )
    stays, cohort = (_with_split_and_length(each, settings) for each in (found.all, found.cohort))
    if settings.balance_train:
        cohort = flow.count("with as many of either label in train", balanced(cohort, settings.split_key))
    for split in SPLITS:
        part = flow.count(split, cohort[cohort["split"] == split])
        flow.count(f"{split}, readmitted", part[part["readmitted"]])
    return FoundStays(stays, cohort, found.members)


def _with_split_and_length(stays: "pd.DataFrame", settings: CohortSettings) -> "pd.DataFrame":
    subjects, shares = stays["subject_id"], (settings.validation_share, settings.test_share)
    splits = {subject: split_of(subject, settings.split_key, *shares) for subject in subjects.unique()}
    days = (stays["discharged_at"] - stays["admitted_at"]).dt.total_seconds() / 86_400
    return stays.assign(split=subjects.map(splits), length_of_stay_days=days)


def _metrics(cohort: "pd.DataFrame") -> Metrics:
    """Counts and shares by split; the share of a split without admissions is not known."""
    found: Metrics = {"admissions": len(cohort), "subjects": cohort["subject_id"].nunique()}
    for split in SPLITS:
        part = cohort[cohort["split"] == split]
        found[f"admissions/{split}"] = len(part)
        found[f"subjects/{split}"] = part["subject_id"].nunique()
        found[f"readmitted_share/{split}"] = float(part["readmitted"].mean()) if len(part) else None
    return found
