"""Settings of the training of English sentence encoders; free of torch."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from bertrelay.data.by_language import sets_by_language
from bertrelay.data.tables import Table
from bertrelay.model.settings import Base, PoolingMode
from bertrelay.settings import (
    EncoderSource,
    InputFile,
    MaxRejects,
    MaxTokens,
    Positive,
    UsedWith,
)
from bertrelay.training.settings import TrainingSettings
from teachers.objectives import OBJECTIVES, ObjectiveName, objectives_with

Part = Literal["u", "v", "|u-v|", "u*v"]

CONCATENATIONS: tuple[tuple[Part, ...], ...] = (
    ("u", "v"),
    ("|u-v|",),
    ("u*v",),
    ("|u-v|", "u*v"),
    ("u", "v", "u*v"),
    ("u", "v", "|u-v|"),
    ("u", "v", "|u-v|", "u*v"),
)
"""The seven of Reimers & Gurevych 2019, table 6."""


def _one_of_the_seven(parts: list[Part]) -> list[Part]:
    if tuple(parts) not in CONCATENATIONS:
        allowed = "; ".join(", ".join(concatenation) for concatenation in CONCATENATIONS)
        raise ValueError(f"expected one of {allowed}; found {', '.join(parts)}")
    return parts


def _lowest_first(scores: list[float]) -> list[float]:
    if scores[0] >= scores[1]:
        raise ValueError(f"expected the lowest score first, found {scores}")
    return scores


Concatenation = Annotated[list[Part], AfterValidator(_one_of_the_seven)]
ScoreRange = Annotated[list[float], Field(min_length=2, max_length=2), AfterValidator(_lowest_first)]
Poolings = Annotated[list[PoolingMode], Field(min_length=1)]


OBJECTIVES_DESCRIBED = " ".join(f"`{name}`: {objective.summary}." for name, objective in OBJECTIVES.items())


class StsTable(Table):
    """Pairs with a gold similarity: sentence, sentence, score."""

    second: InputFile | None = None
    """Row-aligned table of the same shape from which the second sentence is read instead, for pairs across two
    languages, one file each."""
    scores: InputFile | None = None
    """Row-aligned file with only the score, a line each, such as `STS.gs.track5.en-en.txt` of SemEval."""
    where: dict[str, str | int] | None = None
    """Column to value, such as `{ lang = "en-de" }`: rows with other values are left out."""
    reversed: bool = False
    """A high score means that the sentences differ, as `Overall` of SemEval-2022 does."""

    @model_validator(mode="after")
    def _one_way_to_read(self) -> Self:
        if len(ways := [name for name in ("second", "scores", "where") if getattr(self, name)]) > 1:
            raise ValueError(
                f"{' and '.join(ways)}: expected one of them, as rows are aligned or chosen, found several"
            )
        return self


StsSets = Annotated[dict[str, StsTable], BeforeValidator(sets_by_language)]
"""STS sets by name; one with `{language}` in its name and its texts stands for one in each of its `languages`."""


class LabelledTraining(TrainingSettings):
    """Settings that all trainings on labelled sentences share."""

    train: Annotated[list[Table], Field(min_length=1)]
    """Tables with the columns of the objective, or with the `columns` that they name."""
    dev: list[Table] = []
    """Held-out tables of the same kind; the score on them chooses the best weights."""
    batch_items: Positive | None = 16
    evaluate_every: Annotated[Positive | None, UsedWith("dev")] = None
    patience: Annotated[Positive | None, UsedWith("dev")] = None
    max_rejects: MaxRejects = 0.01
    max_swapped: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Fraction of examples whose columns may seem to be swapped: sentences without a letter, and classes that are as
    many as sentences."""


class ObjectiveSettings(LabelledTraining):
    """The training of any encoder by an objective. Defaults are those of the SBERT paper."""

    objective: Annotated[ObjectiveName, Field(description=OBJECTIVES_DESCRIBED)]
    dev: list[Table] = []
    """Tables of the same kind, scored by the objective's metric."""
    dev_sts: StsSets = {}
    """STS sets by name, scored by Spearman of cosine; where there are any, their mean chooses the best weights."""
    evaluate_every: Annotated[Positive | None, UsedWith("dev", "dev_sts")] = None
    patience: Annotated[Positive | None, UsedWith("dev", "dev_sts")] = None
    concatenation: Annotated[Concatenation, UsedWith(objective=objectives_with("concatenation"))] = ["u", "v", "|u-v|"]
    """Input of the linear map of the softmax objective, one of [u, v], [|u-v|], [u*v], [|u-v|, u*v], [u, v, u*v], [u,
    v, |u-v|] and [u, v, |u-v|, u*v]."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout on the sentence vectors while training."""
    margin: Annotated[float, Field(gt=0), UsedWith(objective=objectives_with("margin"))] = 1.0
    """Margin in Euclidean distance."""
    score_range: Annotated[ScoreRange, UsedWith(objective=objectives_with("score_range"))] = [0.0, 5.0]
    """Lowest and highest gold score, which become cosine 0 and 1."""
    temperature: Annotated[float, Field(gt=0), UsedWith(objective=objectives_with("temperature"))] = 0.05
    """Divisor of the similarities."""
    guide: Annotated[EncoderSource | None, UsedWith(objective=objectives_with("guide"))] = None
    """Model that excludes the negatives nearer to the anchor than the positive by its vectors (GISTEmbed)."""
    dimensions: Annotated[list[Positive], UsedWith(objective=objectives_with("dimensions"))] = []
    """Matryoshka: the loss is its mean over vectors cut to these dimensions, and whole ones."""
    head: Annotated[InputFile | None, UsedWith(objective=objectives_with("head"))] = None
    """Softmax head of an earlier training, `@stage/head`."""

    @model_validator(mode="after")
    def _vectors_in_halves(self) -> Self:
        odd = [dimension for dimension in self.dimensions if dimension % 2]
        if OBJECTIVES[self.objective].needs_even_dimensions and odd:
            raise ValueError(
                f"dimensions: {self.objective} takes vectors in two halves; expected even numbers, found {odd}"
            )
        return self


class TrainSettings(ObjectiveSettings):
    """The training of a sentence encoder by an objective. Defaults are those of the SBERT paper."""

    base: Base
    """A model to start from, or the size of a new one."""
    pooling: Poolings | None = None
    """Pooling of the token vectors; that of the base when absent, else mean."""
    linear: bool = False
    """Add a linear layer of equal size after the pooling, which stays in the model."""
    max_tokens: MaxTokens | None = None
    """Longest input, special tokens included; that of the base when absent."""
