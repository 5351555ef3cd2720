"""The settings of learning who comes back, and of telling it; free of torch."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from bertrelay.settings import InputFile, ModelSource, Positive, Settings, refuse_idle
from bertrelay.training_settings import TrainingSettings
from domain.clinical.notes.chunk_settings import ChunkSettings

AggregationName = Literal["max_and_mean", "max", "mean"]


class ReadmissionSettings(TrainingSettings):
    """A BERT that learns from notes who comes back unplanned, chunk by chunk, and is judged admission by admission.

    base: any BERT: a model of the hub, a folder that a pretraining wrote, a sentence encoder.
    notes, cohort: the folders that their stages wrote, as in `@notes` and `@cohort`.
    chunking: how the text of an admission is cut.
    aggregation: of the chunks' probabilities: `max_and_mean` is (P_max + P_mean · n/c) / (1 + n/c).
    c: of `max_and_mean`; "chosen" takes the one with the highest validation AUROC.
    share_weight: an admission weighs as much as any other in training, shared among its chunks; else each chunk does.
    dropout: before the head; that of the base when left out.
    control: `shuffled_labels` deals out the labels of train and validation anew. What is learnt from them is nothing,
        so an AUROC other than 0.5 on the test admissions tells of a leak.
    risk: a table with `hadm_id` and `true_risk`, which only a made-up hospital has; it gives `best_auroc`.
    """

    base: ModelSource
    notes: InputFile
    cohort: InputFile
    chunking: ChunkSettings = ChunkSettings()
    aggregation: AggregationName = "max_and_mean"
    c: Annotated[float, Field(gt=0)] | Literal["chosen"] = 2.0
    share_weight: bool = True
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    control: Literal["none", "shuffled_labels"] = "none"
    risk: InputFile | None = None
    epochs: Positive = 3
    batch_items: Positive | None = 32

    @model_validator(mode="after")
    def _nothing_idle(self) -> Self:
        if self.aggregation != "max_and_mean":
            refuse_idle(self, "c", because=f"the aggregation is {self.aggregation!r}")
        return self


class ReadmissionModelSettings(Settings):
    """What `readmission.json` in a model folder says: all that scoring needs beside the network.

    temperature: what the log-odds of P are divided by, so that it is a good probability.
    threshold: P from which on an alarm had a precision of 0.8 on the validation admissions; None where none had.
    """

    task: Literal["readmission"] = "readmission"
    chunking: ChunkSettings = ChunkSettings()
    aggregation: AggregationName = "max_and_mean"
    c: Annotated[float, Field(gt=0)] = 2.0
    temperature: Annotated[float, Field(gt=0)] = 1.0
    threshold: float | None = None
