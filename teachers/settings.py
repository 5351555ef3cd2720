"""The settings of the teachers' stages; free of torch."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from bertrelay.data.tables import Table
from bertrelay.encoder_settings import Base, PoolingMode
from bertrelay.settings import InputFile, MaxTokens, ModelSource, Positive, Settings, refuse_idle
from bertrelay.training.settings import TrainingSettings

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

COLUMNS: dict[str, list[str | int]] = {
    "softmax": ["premise", "hypothesis", "label"],
    "cosine": ["sentence1", "sentence2", "score"],
    "triplet": ["anchor", "positive", "negative"],
}
"""What each objective reads when a table does not name its columns."""

OWN_KEYS = {"softmax": ["concatenation", "head"], "cosine": ["score_range"], "triplet": ["margin"]}
"""The settings that one objective alone looks at."""


def _one_of_the_seven(parts: list[Part]) -> list[Part]:
    if tuple(parts) not in CONCATENATIONS:
        known = "; ".join(", ".join(each) for each in CONCATENATIONS)
        raise ValueError(f"expected one of {known}; found {', '.join(parts)}")
    return parts


def _lowest_first(scores: list[float]) -> list[float]:
    if scores[0] >= scores[1]:
        raise ValueError(f"expected the lowest score first, found {scores}")
    return scores


Concatenation = Annotated[list[Part], AfterValidator(_one_of_the_seven)]
ScoreRange = Annotated[list[float], Field(min_length=2, max_length=2), AfterValidator(_lowest_first)]


class StsTable(Table):
    """Pairs with a gold similarity: sentence, sentence, score.

    second: a row-aligned table of the same shape from which the second sentence is read instead, for pairs across
    two languages that stand in a file each.
    """

    second: InputFile | None = None


class TrainSettings(TrainingSettings):
    """A teacher: what it starts from, what it learns from, and how. Defaults are those of the SBERT paper.

    base: a model to start from, or the size of a new one.
    objective: `softmax` over a linear map of the pair, `cosine` regression, or `triplet` distances.
    train: tables with the columns in `COLUMNS`, or with others that they name.
    dev: the same kind of tables, scored by the objective's own measure: accuracy, Spearman, accuracy of triplets.
    dev_sts: STS sets by name, scored by Spearman of cosine; where given, their mean chooses the best weights.
    pooling: the base's own when absent, else mean.
    concatenation: what the linear map of the softmax objective sees: one of `CONCATENATIONS`.
    linear: a linear layer of equal size after the pooling, kept with the model.
    dropout: on the sentence vectors, while training.
    margin: of the triplet objective, in Euclidean distance.
    score_range: the lowest and highest gold score, which become cosine 0 and 1.
    head: the softmax head of an earlier training to go on with, `@stage/head`.
    max_tokens: the longest input, special tokens included; the base's own when absent.
    max_rejects: the share of records that may be unusable.
    """

    base: Base
    objective: Literal["softmax", "cosine", "triplet"]
    train: Annotated[list[Table], Field(min_length=1)]
    dev: list[Table] = []
    dev_sts: dict[str, StsTable] = {}
    batch_items: Positive | None = 16
    pooling: Annotated[list[PoolingMode], Field(min_length=1)] | None = None
    concatenation: Concatenation = ["u", "v", "|u-v|"]
    linear: bool = False
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    margin: Annotated[float, Field(gt=0)] = 1.0
    score_range: ScoreRange = [0.0, 5.0]
    head: InputFile | None = None
    max_tokens: MaxTokens | None = None
    max_rejects: Annotated[float, Field(ge=0, le=1)] = 0.01

    @model_validator(mode="after")
    def _nothing_idle(self) -> Self:
        for objective, keys in OWN_KEYS.items():
            if self.objective != objective:
                because = f"only the {objective} objective looks at it, and the objective is {self.objective}"
                refuse_idle(self, *keys, because=because)
        if not (self.dev or self.dev_sts):
            refuse_idle(self, "evaluate_every", "patience", because="there is no dev data, neither `dev` nor `dev_sts`")
        return self


class EvaluateSettings(Settings):
    """An encoder scored on STS sets without training: Spearman of cosine."""

    model: ModelSource
    sts: Annotated[dict[str, StsTable], Field(min_length=1)]
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    max_rejects: Annotated[float, Field(ge=0, le=1)] = 0.01
