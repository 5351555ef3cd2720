"""The settings of the stage that makes a model smaller; free of torch."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from bertrelay.data.tables import Table
from bertrelay.settings import ModelSource, Positive, Settings
from students.sources import ParallelSource
from teachers.settings import StsTable


class ShrinkSettings(Settings):
    """A smaller model, in `model/`, and size, speed and scores of both.

    corpus: text in the languages the model is for; of a table all the columns that are named, else `text`.
    trim_vocabulary: leave out the pieces that the corpus does not use. Changes no vector of the corpus.
    layers: keep so many layers, evenly spread, the first and the last among them.
    dimensions: so many dimensions of a vector, along which those of the corpus are longest.
    sts, parallel: test sets for `sts/…` and `translation_accuracy/…`, before and after; none of them is trained on.
    max_rejects: the share of records that may be unusable.

    Fewer layers or dimensions give other vectors. `students.distill` can start from such a model, and teach it again.
    """

    model: ModelSource
    corpus: Annotated[list[Table], Field(min_length=1)]
    trim_vocabulary: bool = True
    layers: Positive | None = None
    dimensions: Positive | None = None
    sts: dict[str, StsTable] = {}
    parallel: list[ParallelSource] = []
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    max_rejects: Annotated[float, Field(ge=0, le=1)] = 0.01

    @model_validator(mode="after")
    def _something_to_do(self) -> Self:
        if not (self.trim_vocabulary or self.layers or self.dimensions):
            raise ValueError("expected trim_vocabulary, layers or dimensions: without any the model stays as it is")
        return self
