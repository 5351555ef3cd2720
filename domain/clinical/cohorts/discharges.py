"""How index stays end, in the terms of CMS's measure of unplanned readmission: counted, and left out where asked for.

The measure's index admissions are of patients discharged alive, neither against medical advice nor by a transfer to
another acute care facility. It does not name discharges to hospice, of whom few return and many die.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from domain.clinical.cohorts.cohort_settings import Discharge
from domain.clinical.cohorts.flow import Flow

if TYPE_CHECKING:
    import pandas as pd

DISCHARGES: dict[Discharge, tuple[str, tuple[str, ...]]] = {
    "acute-care-transfer": (
        "transferred to another acute care facility",
        ("SHORT TERM HOSPITAL", "DISC-TRAN CANCER/CHLDRN H", "ACUTE HOSPITAL"),
    ),
    "against-medical-advice": ("discharged against medical advice", ("LEFT AGAINST MEDICAL ADVI", "AGAINST ADVICE")),
    "hospice": ("discharged to hospice", ("HOSPICE-HOME", "HOSPICE-MEDICAL FACILITY", "HOSPICE")),
}
"""What each is called in the flow table, and what `discharge_location` has for it in MIMIC-III and MIMIC-IV."""


def count_discharges(stays: "pd.DataFrame", window_days: float, flow: Flow) -> None:
    """Counts the index stays that ended so, and those whose subject died within the window."""
    for name, locations in DISCHARGES.values():
        flow.count(f"of these, {name}", stays[stays["discharge_location"].isin(locations)])
    dead = flow.count(f"of these, died within {window_days:g} days", stays[died_within(stays, window_days)])
    flow.count(f"of these, died within {window_days:g} days and not readmitted", dead[~dead["readmitted"]])


def without_discharges(stays: "pd.DataFrame", excluded: Sequence[Discharge], flow: Flow) -> "pd.DataFrame":
    """The stays without those that ended as `excluded` says."""
    for discharge in excluded:
        name, locations = DISCHARGES[discharge]
        stays = flow.keep(f"not {name}", stays, ~stays["discharge_location"].isin(locations))
    return stays


def died_within(stays: "pd.DataFrame", window_days: float) -> "pd.Series[bool]":
    """Whether the subject died, wherever, at most so many days after the discharge."""
    import pandas as pd

    return stays["day_of_death"] <= stays["discharged_at"] + pd.Timedelta(days=window_days)
