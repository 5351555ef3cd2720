"""Admissions made into stays, and the unplanned admission that followed each of them: the default rules."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from bertrelay.progress import log
from domain.clinical.cohorts.admissions import ORDER
from domain.clinical.cohorts.cohort_settings import CohortSettings
from domain.clinical.cohorts.discharges import count_discharges, died_within, without_discharges
from domain.clinical.cohorts.flow import Flow
from domain.clinical.cohorts.tables import Version

if TYPE_CHECKING:
    import pandas as pd

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

    all: "pd.DataFrame"
    cohort: "pd.DataFrame"
    members: "pd.DataFrame"


def default_stays(admissions: "pd.DataFrame", settings: CohortSettings, version: Version, flow: Flow) -> FoundStays:
    """The stays with what followed them.

    What is no index stay is left out after the next admission was found: left out before, it would break the links.
    """
    living = flow.keep("not after the subject's death (organ donors)", admissions, ~_after_death(admissions))
    numbered = _numbered(living, settings.transfer_hours if settings.overlapping_stays == "joined" else None)
    members = numbered[["hadm_id", STAY]]
    stays = _joined(numbered)
    if settings.overlapping_stays == "joined":
        flow.count("joined with those they overlap or touch", stays)
    if settings.observation_stays == "excluded":
        stays = flow.keep("not under observation alone", stays, ~stays["observation_alone"])
    stays = with_return(stays, _planned_types(stays, settings.planned_types, version))
    stays["readmitted"] = stays["gap_days"] <= settings.window_days
    stays = _usable(stays, settings, flow)
    return FoundStays(stays, _index_stays(stays, settings, flow), members)


def _planned_types(stays: "pd.DataFrame", asked: Sequence[str] | None, version: Version) -> Sequence[str]:
    """The types that are no return; those that are asked for and never occur are told, as they may be misspelt."""
    if asked is None:
        return PLANNED[version]
    names = [name.strip().upper() for name in asked]
    unmet = sorted(set(names).difference(stays["admission_type"]))
    if unmet:
        log(f"planned_types: no stay begins as {' or '.join(unmet)}; see that each is written as in the table")
    return names


def next_begins(stays: "pd.DataFrame") -> "pd.Series[pd.Timestamp]":
    """When the subject's next stay begins, planned or not, of stays in their order."""
    return stays["admitted_at"].groupby(stays["subject_id"]).shift(-1)


def with_return(stays: "pd.DataFrame", planned: Sequence[str]) -> "pd.DataFrame":
    """The stays with `next_admission_at`, when the subject's next unplanned one begins, and `gap_days` until then."""
    unplanned = stays["admitted_at"].mask(stays["admission_type"].isin(planned))
    following = unplanned.groupby(stays["subject_id"]).shift(-1).groupby(stays["subject_id"]).bfill()
    gap_days = (following - stays["discharged_at"]).dt.total_seconds() / 86_400
    return stays.assign(next_admission_at=following, gap_days=gap_days)


def _after_death(admissions: "pd.DataFrame") -> "pd.Series[bool]":
    """Whether an admission begins when its subject has died in hospital already, as organ donors' accounts do.

    Their deaths stand in the table twice. Who is dead on arrival has come back, and only earlier admissions count.
    """
    subjects = admissions["subject_id"]
    earlier_death = admissions["died_at"].groupby(subjects).shift()
    first_death = earlier_death.groupby(subjects).cummin().groupby(subjects).ffill()
    return admissions["admitted_at"] >= first_death


def _numbered(admissions: "pd.DataFrame", within_hours: float | None) -> "pd.DataFrame":
    """The admissions with `stay_hadm_id`, the first admission of the stay they belong to; None joins nothing.

    One that begins before the latest discharge so far, or at most `within_hours` after it, goes on with that stay.
    """
    import pandas as pd

    if within_hours is None:
        return admissions.assign(**{STAY: admissions["hadm_id"]})
    ends = admissions[["admitted_at", "discharged_at"]].max(axis=1)  # a discharge before the admission ends nothing
    latest_end = ends.groupby(admissions["subject_id"]).cummax().groupby(admissions["subject_id"]).shift()
    begins = ~(admissions["admitted_at"] <= latest_end + pd.Timedelta(hours=within_hours))
    return admissions.assign(**{STAY: admissions["hadm_id"].where(begins).ffill()})


def _joined(numbered: "pd.DataFrame") -> "pd.DataFrame":
    """One row for each stay: its first admission, with the last discharge, where that led, and what begins after it.

    Death is that of any admission, and observation is what all of them are.

    Rows stand by subject and time.
    """
    first = numbered.drop_duplicates(STAY).set_index(STAY)
    stays = numbered.assign(is_observation=numbered["admission_type"].isin(OBSERVATION)).groupby(STAY, sort=False)
    last = numbered.sort_values("discharged_at", kind="stable").drop_duplicates(STAY, keep="last").set_index(STAY)
    joined = first.assign(
        discharge_location=last["discharge_location"],
        discharged_at=stays["discharged_at"].max(),
        died_in_hospital=stays["died_in_hospital"].any(),
        died_at=stays["died_at"].max(),
        observation_alone=stays["is_observation"].all(),
    )
    joined = joined.sort_values(ORDER, ignore_index=True)
    return joined.assign(next_stay_at=next_begins(joined))


def _usable(stays: "pd.DataFrame", settings: CohortSettings, flow: Flow) -> "pd.DataFrame":
    """The stays that anything can be asked of."""
    stays = flow.keep("not newborn", stays, stays["admission_type"] != NEWBORN)
    stays = flow.keep("not discharged before the admission", stays, stays["discharged_at"] >= stays["admitted_at"])
    if settings.minimum_age:
        old_enough = stays["age"] >= settings.minimum_age
        stays = flow.keep(f"at least {settings.minimum_age} years old", stays, old_enough)
    return stays


def _index_stays(stays: "pd.DataFrame", settings: CohortSettings, flow: Flow) -> "pd.DataFrame":
    """Those of the stays that a return can follow."""
    stays = flow.keep("discharged alive", stays, ~stays["died_in_hospital"])
    count_discharges(stays, settings.window_days, flow)
    stays = without_discharges(stays, settings.excluded_discharges, flow)
    if settings.deaths_in_window == "excluded":
        kept = ~died_within(stays, settings.window_days) | stays["readmitted"]
        stays = flow.keep(f"alive or back within {settings.window_days:g} days", stays, kept)
    return stays
