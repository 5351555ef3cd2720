"""Settings of the clinical stages; imports neither torch nor pandas."""

from collections.abc import Iterator
from datetime import date
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from bertrelay.settings import WHEN_SET, InputFile, ModelSource, Positive, Settings, refuse_idle
from bertrelay.training.settings import TrainingSettings
from domain.clinical.mimic import HOSPITAL, NOTES, HospitalTables, NoteTables, note_version, table_problems
from domain.clinical.outcomes import OUTCOMES, PAPERS_C, AggregationName, ChunkSettings, Input, PoolingName

Discharge = Literal["acute-care-transfer", "against-medical-advice", "hospice"]
Share = Annotated[float, Field(ge=0, lt=1)]
OUR_RULES = (
    *("window_days", "planned_types", "observation_stays", "overlapping_stays"),
    *("transfer_hours", "deaths_in_window", "excluded_discharges", "minimum_age"),
)


LATEST = "latest"


def _as_text(value: object) -> object:
    """A day of TOML, which needs no quotes, as text."""
    return value.isoformat() if isinstance(value, date) else value


def _day_or_latest(value: str) -> str:
    try:
        return value if value == LATEST else date.fromisoformat(value).isoformat()
    except ValueError:
        raise ValueError(f'expected "{LATEST}" or a day as in "2019-12-31", found {value!r}') from None


class CohortSettings(Settings):
    """Which stays of a hospital are index stays, which of them an unplanned admission followed, and how they are split.

    mimic: a folder with the tables of MIMIC-III or MIMIC-IV.
    rules: `huang2019` gives the labels of the published code of Huang, Altosaar & Ranganath (2019), and takes none of
        the settings from `window_days` to `minimum_age`.
    window_days: a stay is positive when the next unplanned one begins at most so many days after its discharge.
    planned_types: admission types that are no readmission. When not given: ELECTIVE, and in MIMIC-IV SURGICAL SAME DAY
        ADMISSION as well.
    observation_stays: those of MIMIC-IV under AMBULATORY, DIRECT and EU OBSERVATION; excluded, they are neither index
        stays nor readmissions. OBSERVATION ADMIT is an admission.
    overlapping_stays: joined, admissions that overlap or touch are one stay under the first one's hadm_id.
    transfer_hours: how long after a discharge an admission still continues the same stay.
    excluded_discharges: which index stays are left out by how they ended: transferred to another acute care facility,
        against medical advice, to hospice. CMS's measure of unplanned readmission leaves out the first two.
    deaths_in_window: whether stays are kept whose subject died at home within the window without a readmission.
    minimum_age: at admission, in years; 0 keeps those of unknown age as well.
    data_end: the last day of the data, or `latest`, for the latest time in the table of admissions: index stays whose
        window ends later are left out, as a return would not be seen. MIMIC's dates are shifted for each subject, so
        that its data have no such day; not given, all stays are kept.
    split_key: another key gives another split. Subjects that are added later move nobody.
    balance_train: leaves out stays of the more frequent label from train; validation and test stay as they are.
    max_rejects: the share of rows that may be unusable: of all rows of the tables together, diagnoses too; what a step
        of the flow leaves out is usable.
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
    data_end: Annotated[
        str | None, BeforeValidator(_as_text), AfterValidator(lambda value: value and _day_or_latest(value)), WHEN_SET
    ] = None
    split_key: str = "bertrelay"
    validation_share: Share = 0.1
    test_share: Share = 0.1
    balance_train: bool = False
    max_rejects: Annotated[float, Field(ge=0, le=1)] = 0.01

    def input_problems(self) -> Iterator[tuple[str, str]]:
        return table_problems("mimic", self.mimic, HOSPITAL)

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
    stays: `cohort`, those that a readmission can follow; or `all`, deaths in hospital among them, as the other outcomes
        need. Of who dies, notes are early only where death came after the cut-off.
    hours: the cut-off of early notes, counted from the admission.
    cut: where the text of a discharge ends. `hours-or-return` reads until `after_discharge_hours`, and nothing from the
        subject's next admission on: who is back before the summary is written has no text, so that who has one depends
        on the outcome. `discharge` is the same cut for all stays, whatever happens later: the discharge.
    after_discharge_hours: of `hours-or-return`, how long after the discharge a summary or addendum still counts. With
        either cut, of a note that is dated by its day alone the last such day counts whole.
    radiology: whether radiology reports of the stay are put before its discharge summaries.
    max_rejects: the share of rows that may be unusable: of all rows of the tables of notes; what has a reason in
        the flow is usable.
    """

    mimic: NoteTables
    cohort: InputFile
    input: Input = "discharge"
    stays: Literal["cohort", "all"] = "cohort"
    hours: Positive = 48
    cut: Annotated[Literal["hours-or-return", "discharge"], WHEN_SET] = "hours-or-return"
    after_discharge_hours: Annotated[float, Field(ge=0, le=1e9)] = 48.0
    radiology: bool = False
    max_rejects: Annotated[float, Field(ge=0, le=1)] = 0.01

    def input_problems(self) -> Iterator[tuple[str, str]]:
        return table_problems("mimic", self.mimic, NOTES)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.input == "discharge":
            refuse_idle(self, "hours", because="only early notes have a cut-off")
            refuse_idle(
                self, "stays", because="a discharge summary reveals who died; only early notes are of all stays"
            )
        else:
            refuse_idle(self, "cut", "after_discharge_hours", because="early notes end before the discharge")
            refuse_idle(self, "radiology", because="early notes have their radiology reports among them")
            if isinstance(self.mimic, dict) and note_version(self.mimic) == "IV":
                raise ValueError(NOT_IN_IV)
        if self.cut == "discharge":
            refuse_idle(self, "after_discharge_hours", because='the cut is the discharge (cut = "discharge")')
        return self


NEAR = 0.8
LEAST_NEAR = 0.7  # texts that are less alike are not surely found


class AuditSettings(Settings):
    """Which files are checked for what their splits share; all of them together.

    files: Parquet with a column `split`, and `subject_id`, `hadm_id` and `text` as far as they have them.
    near: texts that share so much of their runs of five words are near-duplicates.
    leaks: stop the run at a leak, or only report it.
    """

    files: Annotated[list[InputFile], Field(min_length=1)]
    near: Annotated[float, Field(ge=LEAST_NEAR, le=1)] = NEAR
    leaks: Literal["stop", "tell"] = "stop"


GROUPS = 50
OF_BINARY_TASKS = ("alarm_precision", "minimum_alarms", "permutations")


class LearningSettings(TrainingSettings):
    """A BERT that is trained on notes, chunk by chunk, and evaluated admission by admission.

    base: any BERT: a model of the hub, a folder that a pretraining wrote, a sentence encoder.
    notes, cohort: the folders that their stages wrote, as in `@notes` and `@cohort`.
    chunking: how the text of an admission is cut.
    aggregation: of the chunks' probabilities: `max_and_mean` is (P_max + P_mean · n/c) / (1 + n/c).
    c: of `max_and_mean`; "chosen" takes the one with the highest validation AUROC.
    share_weight: an admission weighs as much as any other in training, shared among its chunks; else each chunk does.
    pooling: what of a chunk the head reads: the first token, as in BERT, or the mean of all tokens, from which a small
        network learns faster.
    dropout: in every layer and before the head; that of the base when left out.
    alarm_precision: of a binary task, the precision that alarms are to have with 95 % confidence.
    minimum_alarms: of a binary task, how many validation alarms the threshold rests on at least.
    permutations: of a binary task, how often the TF-IDF baseline is fitted to permuted labels of train; 0
        leaves that out.
    control: `shuffled_labels` permutes the labels of train and of validation over subjects, once. The AUROC of a single
        permutation varies around 0.5 by more than its interval over test subjects.
    """

    base: ModelSource
    notes: InputFile
    cohort: InputFile
    chunking: ChunkSettings = ChunkSettings()
    aggregation: AggregationName = "max_and_mean"
    c: Annotated[float, Field(gt=0)] | Literal["chosen"] = PAPERS_C
    share_weight: bool = True
    pooling: Annotated[PoolingName, WHEN_SET] = "cls"
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    alarm_precision: Annotated[float, Field(gt=0, lt=1)] = 0.8
    minimum_alarms: Positive = 20
    permutations: Annotated[int, Field(ge=20)] | Literal[0] = 20
    control: Literal["none", "shuffled_labels"] = "none"
    epochs: Positive = 3
    batch_items: Positive | None = 32

    @model_validator(mode="after")
    def _nothing_idle(self) -> Self:
        if self.aggregation != "max_and_mean":
            refuse_idle(self, "c", because=f"the aggregation is {self.aggregation!r}")
        return self


class ReadmissionSettings(LearningSettings):
    """30-day readmission.

    risk: a table with `hadm_id` and `true_risk`, which only a made-up hospital has; it gives `best_auroc`.
    """

    risk: InputFile | None = None


class OutcomeSettings(LearningSettings):
    """Other outcomes, predicted from the first hours' notes of a stay: discharge summaries leak them.

    notes: of `input = "early"` and `stays = "all"`.
    task: `mortality` in hospital; `length-of-stay`, under 3 days, 3 to 7, over 7, for which notes of the first 72 hours
        are too late; `diagnoses`, by groups of ICD codes.
    groups: of diagnoses, the commonest of the train split, at least ten stays each.
    """

    task: Literal["mortality", "length-of-stay", "diagnoses"]
    groups: Positive = GROUPS

    @model_validator(mode="after")
    def _settings_are_of_the_task(self) -> Self:
        if self.task != "diagnoses":
            refuse_idle(self, "groups", because=f"the task is {self.task!r}")
        if OUTCOMES[self.task].kind != "binary":
            refuse_idle(self, *OF_BINARY_TASKS, because=f"the task is {self.task!r}")
        return self
