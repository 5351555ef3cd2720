"""The settings of learning what becomes of a patient, and of telling it; free of torch."""

from math import inf
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from bertrelay.settings import WHEN_SET, InputFile, ModelSource, Positive, Settings, refuse_idle
from bertrelay.training.settings import TrainingSettings
from domain.clinical.notes.chunk_settings import ChunkSettings
from domain.clinical.notes.notes_settings import Input
from domain.clinical.outcomes.outcome import OUTCOMES, READMISSION, Outcome, OutcomeName

AggregationName = Literal["max_and_mean", "max", "mean"]
PoolingName = Literal["cls", "mean"]
GROUPS = 50
OF_BINARY_TASKS = ("alarm_precision", "minimum_alarms", "permutations")
PAPERS_C = 2.0
"""Of Huang, Altosaar & Ranganath (2019)."""


class LearningSettings(TrainingSettings):
    """A BERT that learns from notes, chunk by chunk, and is judged admission by admission, whatever it is to tell.

    base: any BERT: a model of the hub, a folder that a pretraining wrote, a sentence encoder.
    notes, cohort: the folders that their stages wrote, as in `@notes` and `@cohort`.
    chunking: how the text of an admission is cut.
    aggregation: of the chunks' probabilities: `max_and_mean` is (P_max + P_mean · n/c) / (1 + n/c).
    c: of `max_and_mean`; "chosen" takes the one with the highest validation AUROC.
    share_weight: an admission weighs as much as any other in training, shared among its chunks; else each chunk does.
    pooling: what of a chunk the head reads: the first token, as in BERT, or the mean of all tokens, from which a small
        network learns sooner.
    dropout: in every layer and before the head; that of the base when left out.
    alarm_precision: of a binary task, the precision that alarms are to have with 95 % confidence.
    minimum_alarms: of a binary task, how many validation alarms the threshold rests on at least.
    permutations: of a binary task, how often the TF-IDF baseline is fitted to permuted labels of train.
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
    permutations: Annotated[int, Field(ge=20)] = 20
    control: Literal["none", "shuffled_labels"] = "none"
    epochs: Positive = 3
    batch_items: Positive | None = 32

    @model_validator(mode="after")
    def _nothing_idle(self) -> Self:
        if self.aggregation != "max_and_mean":
            refuse_idle(self, "c", because=f"the aggregation is {self.aggregation!r}")
        return self


class ReadmissionSettings(LearningSettings):
    """Who comes back unplanned.

    risk: a table with `hadm_id` and `true_risk`, which only a made-up hospital has; it gives `best_auroc`.
    """

    risk: InputFile | None = None


class OutcomeSettings(LearningSettings):
    """What becomes of a patient, told from the first hours' notes of a stay: discharge summaries give it away.

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


class OutcomeModelSettings(Settings):
    """What `outcome.json` in a model folder says: all that scoring needs beside the network.

    labels: what the network's classes are called, in their order.
    pooling: what of a chunk the head reads; the first token in older models.
    input: the notes of a stay that it learnt from; None where they, or the older stage that wrote this, did not say.
    slope, intercept: of a binary task, what turns the log-odds of P into those of `calibrated`. A `temperature`, which
        older models have in their place, is read as a slope of 1 / temperature.
    threshold: of a binary task, P from which on an alarm is raised; None where no threshold had the evidence asked for.
    alarm_precision: what was asked of it. alarms, alarms_right: of the validation admissions, how many reached it, and
        for how many of these the outcome was true; None where there is no threshold, and in older models.
    """

    task: OutcomeName = READMISSION.name
    labels: list[str] = list(READMISSION.labels)
    input: Input | None = None
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
    def outcome(self) -> Outcome:
        return OUTCOMES[self.task]
