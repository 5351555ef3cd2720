"""The labels of the published code of Huang, Altosaar & Ranganath (2019), as it gives them and not as one would wish.

Differences from the default rules: nothing is joined, 30.0 days are too late, and whoever comes before the discharge
has come back.
"""

from typing import TYPE_CHECKING

from domain.clinical.cohorts.flow import Flow
from domain.clinical.cohorts.stays import NEWBORN, STAY, FoundStays, with_return

if TYPE_CHECKING:
    import pandas as pd

PLANNED = ("ELECTIVE",)
WINDOW_DAYS = 30


def huang_stays(admissions: "pd.DataFrame", flow: Flow) -> FoundStays:
    """The stays as `default_stays` gives them.

    The next admission's time is blanked when that is elective and filled back from later ones of the subject; fewer
    than 30 days make a positive, negative ones too. Newborns, then rows with a time of death, are left out after that.
    """
    stays = with_return(admissions, PLANNED)
    stays["readmitted"] = stays["gap_days"] < WINDOW_DAYS
    stays = flow.keep("not newborn", stays, stays["admission_type"] != NEWBORN)
    cohort = flow.keep("without a time of death", stays, stays["deathtime"].isna())
    return FoundStays(stays, cohort, stays[["hadm_id"]].assign(**{STAY: stays["hadm_id"]}))
