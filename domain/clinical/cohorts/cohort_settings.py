"""The settings of a cohort; free of torch and pandas."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from bertrelay.settings import Settings, refuse_idle
from domain.clinical.cohorts.tables import HospitalTables

Discharge = Literal["acute-care-transfer", "against-medical-advice", "hospice"]
Share = Annotated[float, Field(ge=0, lt=1)]
OUR_RULES = (
    "window_days",
    "planned_types",
    "observation_stays",
    "overlapping_stays",
    "transfer_hours",
    "deaths_in_window",
    "excluded_discharges",
    "minimum_age",
)


class CohortSettings(Settings):
    """Which stays of a hospital are looked at, which of them an unplanned admission followed, and how they are split.

    mimic: a folder with the tables of MIMIC-III or MIMIC-IV.
    rules: `huang2019` gives the labels of the published code of Huang, Altosaar & Ranganath (2019), and takes none of
        the settings from `window_days` to `minimum_age`.
    window_days: a stay is positive when the next unplanned one begins at most so many days after its discharge.
    planned_types: admission types that are no return. When not given: ELECTIVE, and in MIMIC-IV SURGICAL SAME DAY
        ADMISSION as well.
    observation_stays: those of MIMIC-IV under AMBULATORY, DIRECT and EU OBSERVATION; excluded, they are neither looked
        at nor a return. OBSERVATION ADMIT is an admission.
    overlapping_stays: joined, admissions that overlap or touch are one stay under the first one's hadm_id.
    transfer_hours: how long after a discharge an admission still continues the same stay.
    excluded_discharges: which index stays are left out by how they ended: transferred to another acute care facility,
        against medical advice, to hospice. CMS's measure of unplanned readmission leaves out the first two.
    deaths_in_window: whether stays are kept whose subject died at home within the window and did not return.
    minimum_age: at admission, in years; 0 keeps those of unknown age as well.
    split_key: another key gives another split. Subjects that are added later move nobody.
    balance_train: leaves out stays of the more frequent label from train; validation and test stay as they are.
    max_rejects: the share of rows that may be unusable.
    """

    mimic: HospitalTables
    rules: Literal["default", "huang2019"] = "default"
    window_days: Annotated[float, Field(gt=0)] = 30.0
    planned_types: list[str] | None = None
    observation_stays: Literal["kept", "excluded"] = "kept"
    overlapping_stays: Literal["joined", "separate"] = "joined"
    transfer_hours: Annotated[float, Field(ge=0)] = 0.0
    deaths_in_window: Literal["kept", "excluded"] = "kept"
    excluded_discharges: list[Discharge] = []
    minimum_age: Annotated[int, Field(ge=0)] = 18
    split_key: str = "bertrelay"
    validation_share: Share = 0.1
    test_share: Share = 0.1
    balance_train: bool = False
    max_rejects: Annotated[float, Field(ge=0, le=1)] = 0.01

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.validation_share + self.test_share >= 1:
            raise ValueError(
                "validation_share and test_share: expected less than 1 together, so that something is left to train "
                f"on, found {self.validation_share} and {self.test_share}"
            )
        if self.rules == "huang2019":
            refuse_idle(self, *OUR_RULES, because='the rules "huang2019" settle it')
        if self.overlapping_stays == "separate":
            refuse_idle(self, "transfer_hours", because="no stays are joined")
        return self
