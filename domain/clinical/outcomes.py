"""The outcomes that can be predicted from notes, what `outcome.json` in a model folder holds, and options of scoring.

Imports neither torch nor pandas.
"""

from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from bertrelay.settings import Positive, Precision, Settings

Input = Literal["discharge", "early"]
"""Which notes of a stay: discharge summaries, or those of its first hours."""
Kind = Literal["binary", "multi-class", "multi-label"]
OutcomeName = Literal["readmission", "mortality", "length-of-stay", "diagnoses"]


@dataclass(frozen=True)
class PatientOutcome:
    """What becomes of a patient.

    description: what its probabilities are of, for readers; of readmissions with `{days}`.
    kind: decides the metrics. Binary, one label that is true or not: AUROC, AUPRC, recall at a precision, calibration.
        Multi-class, exactly one label is true: macro AUROC, one against the rest, and accuracy. Multi-label, any may be
        true: macro and micro AUROC.
    labels: their names; empty where they are chosen on the train split.
    early_only: whether it is predicted from early notes alone, of all stays, deaths in hospital among them, since a
        discharge summary would leak it. Else it is predicted for the stays of the cohort.
    """

    name: OutcomeName
    description: str
    kind: Kind
    labels: tuple[str, ...]
    early_only: bool = True


READMISSION = PatientOutcome(
    "readmission", "that an unplanned admission begins within {days} of discharge", "binary", ("readmitted",), False
)
MORTALITY = PatientOutcome("mortality", "that the patient dies in hospital", "binary", ("died_in_hospital",))
LENGTH_OF_STAY = PatientOutcome(
    "length-of-stay", "of how long the stay lasts", "multi-class", ("under_3_days", "3_to_7_days", "over_7_days")
)
DIAGNOSES = PatientOutcome("diagnoses", "of the diagnoses that the stay is coded with", "multi-label", ())
OUTCOMES = {outcome.name: outcome for outcome in (READMISSION, MORTALITY, LENGTH_OF_STAY, DIAGNOSES)}


def in_words(label: str) -> str:
    """`died in hospital` for `died_in_hospital`."""
    return label.replace("_", " ")


SCORES = "scores.parquet"
CURVES = "curves.json"
SLICES = "slices.json"
FLOW = "flow.csv"
NOTES_ABOUT = "notes.json"
CONFUSION = "confusion.json"
"""Files that an evaluation writes beside the model."""

AggregationName = Literal["max_and_mean", "max", "mean"]
PoolingName = Literal["cls", "mean"]
PAPERS_C = 2.0
"""Of Huang, Altosaar & Ranganath (2019)."""


class ChunkSettings(Settings):
    """Chunks of an admission's text.

    max_tokens: of a chunk at most, special tokens included.
    overlap: tokens at most that a chunk repeats of the one before it; it begins with a sentence where it can.
    max_chunks: of an admission at most; those after them are left out and counted. None keeps all.
    """

    max_tokens: Annotated[int, Field(ge=8)] = 512
    overlap: Annotated[int, Field(ge=0)] = 0
    max_chunks: Positive | None = None

    @model_validator(mode="after")
    def _overlap_leaves_room(self) -> Self:
        if self.overlap > self.max_tokens // 2:
            raise ValueError(
                f"overlap: expected at most half of max_tokens, {self.max_tokens // 2}, found {self.overlap}"
            )
        return self


class OutcomeModelSettings(Settings):
    """What `outcome.json` in a model folder holds: all that scoring needs beside the network.

    labels: what the network's classes are called, in their order.
    pooling: what of a chunk the head reads; the first token in older models.
    input: the notes of a stay that it was trained on; None where they, or an older stage, did not name them.
    radiology: whether discharge summaries had the radiology reports of the stay before them.
    cut: where these texts end, in words; None in older models.
    subwords_per_word: the median of the train admissions; None in older models.
    window_days: of a readmission; None where the cohort does not name it.
    prevalence: of a binary task, the share of validation admissions with the outcome; None in older models.
    slope, intercept: of a binary task, what turns the log-odds of P into those of `calibrated`. A `temperature`, which
        older models have in their place, is read as a slope of 1 / temperature.
    threshold: of a binary task, P from which on an alarm is raised; None where no threshold had enough evidence.
    alarm_precision: what was required of it. alarms, alarms_right: how many validation admissions reached it, and for
        how many of these the outcome was true; None where there is no threshold, and in older models.
    """

    task: OutcomeName = READMISSION.name
    labels: list[str] = Field(default_factory=lambda: list(READMISSION.labels))
    input: Input | None = None
    radiology: bool = False
    cut: str | None = None
    subwords_per_word: Annotated[float, Field(ge=1)] | None = None
    window_days: Annotated[float, Field(gt=0)] | None = None
    prevalence: Annotated[float, Field(ge=0, le=1)] | None = None
    pooling: PoolingName = "cls"
    chunking: ChunkSettings = ChunkSettings()
    aggregation: AggregationName = "max_and_mean"
    c: Annotated[float, Field(gt=0)] = PAPERS_C
    slope: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    intercept: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    threshold: float | None = None
    alarm_precision: Annotated[float, Field(gt=0, lt=1)] = 0.8
    alarms: Annotated[int, Field(ge=0)] | None = None
    alarms_right: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_slope(cls, given: Any) -> Any:
        """The slope of a temperature; what is no temperature stays, and is refused as an unknown key."""
        temperature = given.get("temperature") if isinstance(given, dict) and "slope" not in given else None
        if not isinstance(temperature, (int, float)) or not 0 < temperature < inf:
            return given
        others = {name: value for name, value in given.items() if name != "temperature"}
        return {"slope": 1 / temperature, "intercept": 0.0, **others}

    @property
    def outcome(self) -> PatientOutcome:
        return OUTCOMES[self.task]

    @property
    def description(self) -> str:
        """What its probabilities are of, for readers."""
        days = "the days that its cohort counts" if self.window_days is None else f"{self.window_days:g} days"
        return self.outcome.description.format(days=days)


class ScoreOptions(Settings):
    """How notes are read and probabilities written.

    id_column: column of the admission, by name, or by position from 0 in a file without a header.
    text_column: column of the note, likewise.
    header: whether a CSV or TSV begins with the names of its columns.
    cleaned: the notes are cleaned already, as a recipe's notes.parquet is.
    max_rejects: share of the rows of NOTES that may be unusable; those of other kinds of notes are in neither.
    with_text: write the text of each top chunk; without, OUT has no text.
    batch_tokens: the most tokens in a batch, padding included; chosen by the device when absent.
    """

    id_column: str = "hadm_id"
    text_column: str = "text"
    header: bool = True
    cleaned: bool = False
    max_rejects: Annotated[float, Field(ge=0, le=1)] = 0.01
    with_text: bool = False
    precision: Precision = "auto"
    batch_tokens: Positive | None = None
