"""The outcomes that can be predicted from notes, what `outcome.json` in a model folder holds, and options of scoring.

Imports neither torch nor pandas.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from bertrelay.settings import BatchTokens, MaxRejects, Positive, Precision, Settings

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
    """Chunks of an admission's text."""

    max_tokens: Annotated[int, Field(ge=8)] = 512
    """Longest chunk, special tokens included."""
    overlap: Annotated[int, Field(ge=0)] = 0
    """Most tokens that a chunk repeats of the one before it; it begins with a sentence where it can."""
    max_chunks: Positive | None = None
    """Most chunks of an admission; those after them are left out and counted. All when absent."""

    @model_validator(mode="after")
    def _overlap_leaves_room(self) -> Self:
        if self.overlap > self.max_tokens // 2:
            raise ValueError(
                f"overlap: expected at most half of max_tokens, {self.max_tokens // 2}, found {self.overlap}"
            )
        return self


class OutcomeModelSettings(Settings):
    """Content of `outcome.json` in a model folder: all that scoring needs beside the network."""

    task: OutcomeName = READMISSION.name
    """Outcome that the network predicts."""
    labels: list[str] = Field(default_factory=lambda: list(READMISSION.labels))
    """Names of the network's classes, in their order."""
    input: Input | None = None
    """Notes of a stay that it was trained on; None where the stage of its notes did not name them."""
    radiology: bool = False
    """Discharge summaries had the radiology reports of the stay before them."""
    cut: str | None = None
    """End of these texts, in words; None where the stage of its notes did not name it."""
    subwords_per_word: Annotated[float, Field(ge=1)] | None = None
    """Median of the train admissions; None where it was not measured."""
    window_days: Annotated[float, Field(gt=0)] | None = None
    """Window of a readmission; None where the cohort does not name it."""
    prevalence: Annotated[float, Field(ge=0, le=1)] | None = None
    """Fraction of validation admissions with the outcome of a binary task; None of another task."""
    pooling: PoolingName = "cls"
    """Token vectors of a chunk that the head reads."""
    chunking: ChunkSettings = ChunkSettings()
    """Chunks of the text of an admission."""
    aggregation: AggregationName = "max_and_mean"
    """Probability of an admission from those of its chunks."""
    c: Annotated[float, Field(gt=0)] = PAPERS_C
    """The c of `max_and_mean`."""
    slope: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Factor, of a binary task, that with `intercept` turns the log-odds of P into those of `calibrated`."""
    intercept: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    """Number added to the log-odds of P times `slope`."""
    threshold: float | None = None
    """P of a binary task from which on an alarm is raised; None where no threshold had enough evidence."""
    alarm_precision: Annotated[float, Field(gt=0, lt=1)] = 0.8
    """Precision that was required of the threshold."""
    alarms: Annotated[int, Field(ge=0)] | None = None
    """Validation admissions that reached the threshold; None without one."""
    alarms_right: Annotated[int, Field(ge=0)] | None = None
    """Those of `alarms` for which the outcome was true; None without a threshold."""

    @property
    def outcome(self) -> PatientOutcome:
        return OUTCOMES[self.task]

    @property
    def description(self) -> str:
        """What its probabilities are of, for readers."""
        days = "the days that its cohort counts" if self.window_days is None else f"{self.window_days:g} days"
        return self.outcome.description.format(days=days)


class ScoreOptions(Settings):
    """Options of reading notes and writing probabilities."""

    id_column: str = "hadm_id"
    """Column of the admission, by name, or by position from 0 in a file without a header."""
    text_column: str = "text"
    """Column of the note, by name, or by position from 0 in a file without a header."""
    header: bool = True
    """A CSV or TSV begins with the names of its columns."""
    cleaned: bool = False
    """The notes are cleaned already, as a recipe's notes.parquet is."""
    max_rejects: MaxRejects = 0.01
    """Fraction of the rows of NOTES that may be unusable; those of other kinds of notes do not count."""
    with_text: bool = False
    """Write the text of each top chunk; without, OUT has no text."""
    precision: Precision = "auto"
    batch_tokens: BatchTokens = None
