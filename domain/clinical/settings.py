"""Settings of the clinical stages, the outcomes that can be predicted, and the description of a model.

Imports neither torch nor pandas.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from bertrelay.settings import (
    BatchTokens,
    InputFile,
    MaxRejects,
    ModelSource,
    Positive,
    Precision,
    PredictorSource,
    Settings,
    UsedWith,
    refuse_idle,
)
from bertrelay.training.settings import TrainingSettings
from domain.clinical.sources.form import Discharge
from domain.clinical.sources.mimic_tables import (
    HOSPITAL,
    NOTES,
    HospitalTables,
    NoteTables,
    note_version,
    table_problems,
)
from domain.clinical.sources.settings import HospitalSource
from domain.clinical.sources.standards import AnyNotes, AnyStays

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Input = Literal["discharge", "early"]
"""Which notes of a stay: discharge summaries, or those of its first hours."""
Kind = Literal["binary", "multi-class", "multi-label"]
OutcomeName = Literal["readmission", "mortality", "length-of-stay", "diagnoses"]


@dataclass(frozen=True)
class PatientOutcome:
    """A clinical outcome, as it is predicted from the notes of a stay.

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


Share = Annotated[float, Field(ge=0, lt=1)]
BY_DEFAULT_RULES = UsedWith(rules="default")


LATEST, PER_SUBJECT = "latest", "per-subject"


def _as_text(value: object) -> object:
    """A day of TOML, which needs no quotes, as text."""
    return value.isoformat() if isinstance(value, date) else value


def _day_or_latest(value: str) -> str:
    try:
        return value if value in (LATEST, PER_SUBJECT) else date.fromisoformat(value).isoformat()
    except ValueError:
        raise ValueError(f'expected "{LATEST}", "{PER_SUBJECT}" or a day as in "2019-12-31", found {value!r}') from None


class CohortSettings(Settings):
    """Index stays of a hospital, the unplanned admissions that follow them, and their split by subject."""

    mimic: HospitalTables | None = None
    """Folder with the tables of MIMIC-III or MIMIC-IV."""
    source: AnyStays | None = None
    """A hospital's stays in another form, in place of `mimic`: its own table, or OMOP's."""
    rules: Literal["default", "huang2019"] = "default"
    """`huang2019` gives the labels of the published code of Huang, Altosaar & Ranganath (2019), and fixes the settings
    from `window_days` to `minimum_age`."""
    window_days: Annotated[float, Field(gt=0), BY_DEFAULT_RULES] = 30.0
    """A stay is positive when the next unplanned one begins at most this many days after its discharge."""
    returns: Annotated[Literal["any-unplanned", "next"], BY_DEFAULT_RULES] = "any-unplanned"
    """`any-unplanned` looks for the first unplanned stay after a discharge, past planned ones; `next` only at the very
    next stay, so that a planned one ends the window, as in CMS's measure."""
    planned_types: Annotated[list[str] | None, BY_DEFAULT_RULES, UsedWith("mimic")] = None
    """Admission types that are no readmission. When absent: ELECTIVE, and in MIMIC-IV SURGICAL SAME DAY ADMISSION as
    well."""
    observation_stays: Annotated[Literal["kept", "excluded"], BY_DEFAULT_RULES] = "kept"
    """Stays of MIMIC-IV under AMBULATORY, DIRECT and EU OBSERVATION; excluded, they are neither index stays nor
    readmissions. OBSERVATION ADMIT is an admission."""
    overlapping_stays: Annotated[Literal["joined", "separate"], BY_DEFAULT_RULES] = "joined"
    """Joined, admissions that overlap or touch are one stay under the first one's hadm_id."""
    transfer_hours: Annotated[float, Field(ge=0), BY_DEFAULT_RULES, UsedWith(overlapping_stays="joined")] = 0.0
    """Hours after a discharge in which an admission still continues the same stay."""
    deaths_in_window: Annotated[Literal["kept", "excluded", "counted"], BY_DEFAULT_RULES] = "kept"
    """Stays whose subject died at home within the window without a readmission: `kept` as not readmitted, `excluded`,
    or `counted` as readmitted, so that the outcome is a return or a death."""
    excluded_discharges: Annotated[list[Discharge], BY_DEFAULT_RULES] = []
    """Index stays to leave out by their end: transferred to another acute care facility, against medical advice, to
    hospice. CMS's measure of unplanned readmission leaves out the first two."""
    minimum_age: Annotated[int, Field(ge=0), BY_DEFAULT_RULES] = 18
    """Lowest age at admission, in years; 0 keeps stays of unknown age as well."""
    data_end: Annotated[
        str | None, BeforeValidator(_as_text), AfterValidator(lambda value: value and _day_or_latest(value))
    ] = None
    """Last day of the data; `latest`, for the latest time in the table of admissions; or `per-subject`, by the column
    `followed_until` of a source. Index stays whose window ends later are left out, as a return would not be seen.
    MIMIC's dates are shifted for each subject, so that its data have no such day; when absent, all stays are kept."""
    split_key: str = "bertrelay"
    """Key of the split by subject; another key gives another split. Subjects that are added later move nobody."""
    validation_share: Share = 0.1
    """Fraction of the subjects in the validation split."""
    test_share: Share = 0.1
    """Fraction of the subjects in the test split."""
    balance_train: bool = False
    """Leave out stays of the more frequent label from train; validation and test stay as they are."""
    max_rejects: MaxRejects = 0.01
    """Fraction of rows that may be unusable: of all rows of the tables together, diagnoses too; rows that a step of the
    flow leaves out are usable."""

    def input_problems(self) -> Iterator[tuple[str, str]]:
        return table_problems("mimic", self.mimic, HOSPITAL) if self.mimic else _source_problems(self.source)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_source(self.mimic, self.source)
        if self.source is not None:
            if self.rules == "huang2019":
                raise ValueError('rules: expected "default" with `source`, as huang2019 reads columns of MIMIC')
            if self.minimum_age and not (self.source.has("age") or self.source.has("born")):
                raise ValueError(
                    "minimum_age: the source has no ages; name columns.age or columns.born, or set minimum_age = 0, "
                    "which keeps stays of any age"
                )
            if self.deaths_in_window != "kept" and not self.source.has("died_at"):
                raise ValueError("deaths_in_window: the source has no times of death; name its columns.died_at")
        if self.data_end == PER_SUBJECT and not (self.source and self.source.has("followed_until")):
            raise ValueError(f'data_end: "{PER_SUBJECT}" needs a source with columns.followed_until')
        if self.validation_share + self.test_share >= 1:
            raise ValueError(
                "validation_share and test_share: expected less than 1 together, so that something is left to train "
                f"on, found {self.validation_share} and {self.test_share}"
            )
        return self


def check_source(mimic: object, source: object) -> None:
    """Raises ValueError unless exactly one of them is set."""
    if (mimic is None) == (source is None):
        count = "neither" if mimic is None else "both"
        raise ValueError(f"expected either `mimic`, a folder, or `source`, a hospital's own table, found {count}")


def _source_problems(source: HospitalSource | None) -> Iterator[tuple[str, str]]:
    """Yields the problems of a source's files, under its keys."""
    return ((f"source.{key}", text) for key, text in (source.input_problems() if source else ()))


NOT_IN_IV = (
    'input: "early" asks for notes from the first hours of a stay, and MIMIC-IV has discharge summaries and radiology '
    'reports only. Set input = "discharge", or give MIMIC-III.'
)


class NotesSettings(Settings):
    """The notes of each stay of a cohort, as one text."""

    mimic: NoteTables | None = None
    """Folder with the notes of MIMIC-III or MIMIC-IV."""
    source: AnyNotes | None = None
    """A hospital's notes in another form, in place of `mimic`: its own table, or OMOP's."""
    cohort: InputFile
    """Folder that the cohort's stage wrote, as in `@cohort`."""
    input: Input = "discharge"
    """`discharge`, the discharge summaries of a stay with their addenda; or `early`, all else that was written before
    hour `hours` of it, for stays that were open then. MIMIC-IV has discharge summaries only."""
    stays: Annotated[Literal["cohort", "all"], UsedWith(input="early")] = "cohort"
    """`cohort`, those that a readmission can follow; or `all`, deaths in hospital among them, as the other outcomes
    need. Of who dies, notes are early only where death came after the cut-off."""
    hours: Annotated[Positive, UsedWith(input="early")] = 48
    """Cut-off of early notes in hours from the admission."""
    cut: Annotated[Literal["hours-or-return", "discharge"], UsedWith(input="discharge")] = "hours-or-return"
    """End of the text of a discharge. `hours-or-return` reads until `after_discharge_hours`, and nothing from the
    subject's next admission on: who is back before the summary is written has no text, so that having one depends on
    the outcome. `discharge` is the same cut for all stays, whatever happens later: the discharge."""
    after_discharge_hours: Annotated[
        float, Field(ge=0, le=1e9), UsedWith(input="discharge"), UsedWith(cut="hours-or-return")
    ] = 48.0
    """Hours after the discharge in which a summary or addendum still counts. With either cut, of a note that is dated
    by its day only the last such day counts whole."""
    radiology: Annotated[bool, UsedWith(input="discharge")] = False
    """Put radiology reports of the stay before its discharge summaries."""
    notes_without_stay: Literal["left-out", "by-time"] = "left-out"
    """Notes without the id of a stay; `by-time` counts them to the subject's stay in which they were charted."""
    max_rejects: MaxRejects = 0.01
    """Fraction of rows that may be unusable: of all rows of the tables of notes; rows with a reason in the flow are
    usable."""

    def input_problems(self) -> Iterator[tuple[str, str]]:
        return table_problems("mimic", self.mimic, NOTES) if self.mimic else _source_problems(self.source)

    @model_validator(mode="after")
    def _early_notes_exist(self) -> Self:
        check_source(self.mimic, self.source)
        if self.input == "early" and self.source and not self.source.has("note_type"):
            raise ValueError(
                'input: "early" needs a source with columns.note_type, else all notes are discharge summaries'
            )
        if self.source and not self.source.has("hadm_id") and self.notes_without_stay != "by-time":
            raise ValueError(
                "notes_without_stay: the notes of this source have no ids of stays; name their column in "
                'source.visit, or set notes_without_stay = "by-time"'
            )
        if self.radiology and self.source and not self.source.map.radiology:
            raise ValueError("radiology: the source has no map.radiology, the note types of radiology reports")
        if self.input == "early" and isinstance(self.mimic, dict) and note_version(self.mimic) == "IV":
            raise ValueError(NOT_IN_IV)
        return self


NEAR = 0.8
LEAST_NEAR = 0.7  # texts that are less alike are not surely found


class AuditSettings(Settings):
    """A check of files, all of them together, for texts, subjects and admissions that their splits share."""

    files: Annotated[list[InputFile], Field(min_length=1)]
    """Parquet with a column `split`, and `subject_id`, `hadm_id` and `text` as far as they have them."""
    near: Annotated[float, Field(ge=LEAST_NEAR, le=1)] = NEAR
    """Fraction of their runs of five words that near-duplicate texts share."""
    leaks: Literal["stop", "report"] = "stop"
    """Stop the run at a leak, or only report it."""


GROUPS = 50
OF_BINARY_TASKS = ("alarm_precision", "minimum_alarms", "permutations")


class LearningSettings(TrainingSettings):
    """A BERT that is trained on notes, chunk by chunk, and evaluated admission by admission."""

    base: ModelSource
    """Any BERT: a model of the hub, a folder that a pretraining wrote, a sentence encoder."""
    notes: InputFile
    """Folder that the stage of the notes wrote, as in `@notes`."""
    cohort: InputFile
    """Folder that the stage of the cohort wrote, as in `@cohort`."""
    chunking: ChunkSettings = ChunkSettings()
    """Chunks of the text of an admission: `max_tokens`, `overlap`, `max_chunks`."""
    aggregation: AggregationName = "max_and_mean"
    """Probability of an admission from those of its chunks: `max_and_mean` is (largest + mean · n/c) / (1 + n/c), of n
    chunks."""
    c: Annotated[Annotated[float, Field(gt=0)] | Literal["chosen"], UsedWith(aggregation="max_and_mean")] = PAPERS_C
    """The c of `max_and_mean`; "chosen" takes the one with the highest validation AUROC."""
    share_weight: bool = True
    """Weigh all admissions alike in training, each one's weight shared among its chunks; else all chunks alike."""
    pooling: PoolingName = "cls"
    """Token vectors of a chunk that the head reads: the first token, as in BERT, or the mean of all tokens, from which
    a small network learns faster."""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Dropout in every layer and before the head; that of the base when absent."""
    alarm_precision: Annotated[float, Field(gt=0, lt=1)] = 0.8
    """Precision that alarms of a binary task are to have with 95 % confidence."""
    minimum_alarms: Positive = 20
    """Fewest validation alarms of a binary task on which the threshold rests."""
    permutations: Annotated[int, Field(ge=20)] | Literal[0] = 20
    """Fits of the TF-IDF baseline of a binary task to permuted labels of train; 0 leaves them out."""
    control: Literal["none", "shuffled_labels"] = "none"
    """`shuffled_labels` permutes the labels of train and of validation over subjects, once. The AUROC of a single
    permutation varies around 0.5 by more than its interval over test subjects."""
    epochs: Positive = 3
    batch_items: Positive | None = 32


class ReadmissionSettings(LearningSettings):
    """30-day readmission."""

    risk: InputFile | None = None
    """Table with `hadm_id` and `true_risk`, which only a synthetic hospital has; it gives `best_auroc`."""


class OutcomeSettings(LearningSettings):
    """Other outcomes, predicted from the first hours' notes of a stay: discharge summaries leak them."""

    notes: InputFile
    """Folder that the stage of the notes wrote with `input = "early"` and `stays = "all"`, as in `@notes`."""
    task: Literal["mortality", "length-of-stay", "diagnoses"]
    """`mortality` in hospital; `length-of-stay`, under 3 days, 3 to 7, over 7, for which notes of the first 72 hours
    are too late; `diagnoses`, by groups of ICD codes."""
    groups: Annotated[Positive, UsedWith(task="diagnoses")] = GROUPS
    """Number of groups of diagnoses, the commonest of the train split, at least ten stays each."""

    @model_validator(mode="after")
    def _settings_are_of_the_task(self) -> Self:
        if OUTCOMES[self.task].kind != "binary":
            refuse_idle(self, *OF_BINARY_TASKS, because=f"the task is {self.task!r}")
        return self


class OutcomeEvaluateSettings(Settings):
    """A trained model evaluated on other labelled notes, such as another hospital's (external validation)."""

    model: PredictorSource
    """Model of `domain.readmission` or `domain.outcome`: a folder, `@stage/model`, `package:name/path` or a hub id."""
    notes: InputFile
    """Folder that the stage of the notes wrote, as in `@notes`: of the kind of notes that the model was trained on."""
    cohort: InputFile
    """Folder that the stage of the cohort wrote, as in `@cohort`."""
    split: Literal["by-subject", "cohort"] = "by-subject"
    """Split into the admissions that recalibrate a binary model and choose a threshold for it (validation), and those
    that evaluate it (test). `by-subject` divides all of the cohort by a keyed hash of the subject; `cohort` takes the
    cohort's own splits and leaves out train, as for the hospital that the model was trained on."""
    validation_share: Annotated[Share, UsedWith(split="by-subject")] = 0.5
    """Fraction of the subjects in validation; with 0 nothing is recalibrated, and all admissions evaluate the model."""
    split_key: Annotated[str, UsedWith(split="by-subject")] = "bertrelay"
    """Key of the split by subject; another key gives another split."""
    alarm_precision: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Precision that alarms at the new threshold of a binary model are to have with 95 % confidence; that of the model
    when absent."""
    minimum_alarms: Positive = 20
    """Fewest validation alarms on which the new threshold rests."""
    save: bool = False
    """Write `model/`, the model with its new calibration and threshold, for notes of this hospital."""
    precision: Precision = "auto"
    batch_tokens: BatchTokens = None

    @model_validator(mode="after")
    def _something_to_save(self) -> Self:
        if self.split == "by-subject" and not self.validation_share:
            refuse_idle(self, "save", "alarm_precision", "minimum_alarms", because="validation_share is 0")
        return self


class ModelDescription(Settings):
    """A trained outcome model but for its network: task, notes, chunks, aggregation, calibration and alarm threshold.

    The content of `outcome.json` in its folder.
    """

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
    deaths_counted: bool | None = None
    """A death within the window counts as a readmission; None where the cohort does not name it."""
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
    """Factor, of a binary task, that with `intercept` turns the log-odds of the probability into those of
    `calibrated`."""
    intercept: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    """Number added to the log-odds of the probability times `slope`."""
    threshold: float | None = None
    """Probability of a binary task from which on an alarm is raised; None where no threshold had enough evidence."""
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
    def is_binary(self) -> bool:
        """One label, which is true or not; only such a model is calibrated and raises alarms."""
        return self.outcome.kind == "binary"

    def calibrate(self, probability: "Floats") -> "Floats":
        """The calibrated probability of a binary task, in the shape of `probability`."""
        from domain.clinical.calibration import calibrated

        return calibrated(probability, self.slope, self.intercept)

    @property
    def meaning(self) -> str:
        """Words that follow `the probability`, for readers: `that the patient dies in hospital`."""
        days = "the days that its cohort counts" if self.window_days is None else f"{self.window_days:g} days"
        death = ", or the patient dies in that time" if self.deaths_counted else ""
        return self.outcome.description.format(days=days) + death


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
