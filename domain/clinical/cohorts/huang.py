"""The labels of the published code of Huang, Altosaar & Ranganath (2019), as it gives them and not as one would wish.

Differences from the default rules: nothing is joined, 30.0 days are too late, and whoever comes before the discharge
has come back.
"""

from typing import TYPE_CHECKING

from bertrelay.progress import log
from domain.clinical.cohorts.discharges import count_discharges
from domain.clinical.cohorts.flow import Flow
from domain.clinical.cohorts.stays import NEWBORN, STAY, FoundStays, next_begins, with_return
from domain.clinical.cohorts.stays import PLANNED as PLANNED_BY_DEFAULT
from domain.clinical.cohorts.tables import Version

if TYPE_CHECKING:
    import pandas as pd

PLANNED = ("ELECTIVE",)
WINDOW_DAYS = 30


def huang_stays(admissions: "pd.DataFrame", version: Version, flow: Flow) -> FoundStays:
    """The stays as `default_stays` gives them.

    The next admission's time is blanked when that is elective and filled back from later ones of the subject; fewer
    than 30 days make a positive, negative ones too. Newborns, then rows with a time of death, are left out after that.
    """
    others = [kind for kind in PLANNED_BY_DEFAULT[version] if kind not in PLANNED]
    if others:
        count = int(admissions["admission_type"].isin(others).sum())
        log(
            f"rules huang2019: planned types differ in MIMIC-{version}. They take {' and '.join(PLANNED)} alone for "
            f"planned, as the published code for MIMIC-III does; {count:,} admissions as {' or '.join(others)}, which "
            "the default rules take for planned too, count as unplanned returns"
        )
    stays = with_return(admissions.assign(next_stay_at=next_begins(admissions)), PLANNED)
    stays["readmitted"] = stays["gap_days"] < WINDOW_DAYS
    stays = flow.keep("not newborn", stays, stays["admission_type"] != NEWBORN)
    cohort = flow.keep("without a time of death", stays, stays["deathtime"].isna())
    count_discharges(cohort, WINDOW_DAYS, flow)
    return FoundStays(stays, cohort, stays[["hadm_id"]].assign(**{STAY: stays["hadm_id"]}))
