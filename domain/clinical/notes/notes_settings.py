"""The settings of the notes of a cohort; free of torch and pandas."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from bertrelay.settings import InputFile, Positive, Settings, refuse_idle
from domain.clinical.cohorts.tables import NoteTables, note_version

Input = Literal["discharge", "early"]

NOT_IN_IV = (
    'input: "early" asks for notes from the first hours of a stay, and MIMIC-IV has discharge summaries and radiology '
    'reports only. Set input = "discharge", or give MIMIC-III.'
)


class NotesSettings(Settings):
    """The notes of each stay of a cohort, as one text.

    mimic: a folder with the notes of MIMIC-III or MIMIC-IV.
    cohort: the folder that the cohort's stage wrote, as in `@cohort`.
    input: `discharge`, the discharge summaries of a stay with their addenda; or `early`, all else that was written
        before hour `hours` of it, for stays that were open then. MIMIC-IV has discharge summaries only.
    stays: `cohort`, those that a return can follow; or `all`, deaths in hospital among them, as what else is asked of
        early notes needs. Of who dies, notes are early only where death came after the cut-off.
    hours: the cut-off of early notes, counted from the admission.
    after_discharge_hours: how long after the discharge a summary or addendum still counts; 0 for a prediction at the
        discharge. Of a note that is dated by its day alone, the last such day counts whole. What was written after
        the subject's next admission began never counts.
    radiology: whether radiology reports of the stay stand before its discharge summaries.
    max_rejects: the share of rows that may be unusable.
    """

    mimic: NoteTables
    cohort: InputFile
    input: Input = "discharge"
    stays: Literal["cohort", "all"] = "cohort"
    hours: Positive = 48
    after_discharge_hours: Annotated[float, Field(ge=0, le=1e9)] = 48.0
    radiology: bool = False
    max_rejects: Annotated[float, Field(ge=0, le=1)] = 0.01

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.input == "discharge":
            refuse_idle(self, "hours", because="only early notes have a cut-off")
            refuse_idle(self, "stays", because="a discharge summary tells who died; only early notes are of all stays")
        else:
            refuse_idle(self, "after_discharge_hours", because="early notes end before the discharge")
            refuse_idle(self, "radiology", because="early notes have their radiology reports among them")
            if isinstance(self.mimic, dict) and note_version(self.mimic) == "IV":
                raise ValueError(NOT_IN_IV)
        return self
