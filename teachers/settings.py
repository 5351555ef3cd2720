"""The settings of the teachers' stages; free of torch."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from bertrelay.data.tables import StsTable, Table
from bertrelay.model.settings import Base, PoolingMode
from bertrelay.settings import (
    RUN_ONLY,
    WHEN_SET,
    EncoderSource,
    InputFile,
    MaxTokens,
    ModelSource,
    Positive,
    Precision,
    ScorerSource,
    Settings,
    refuse_idle,
)
from bertrelay.training.settings import TrainingSettings

Objective = Literal["softmax", "cosine", "triplet", "contrastive", "cosent", "angle"]
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
    "contrastive": ["anchor", "positive"],
    "cosent": ["sentence1", "sentence2", "score"],
    "angle": ["sentence1", "sentence2", "score"],
}
"""What each objective reads when a table does not name its columns; contrastive also `negative`, or `negative_1`, …"""

SCORED: tuple[Objective, ...] = ("cosine", "cosent", "angle")
IN_BATCH: tuple[Objective, ...] = ("contrastive", "cosent", "angle")
"""The objectives that compare the items of a batch."""
USED_BY: dict[str, tuple[Objective, ...]] = {
    "concatenation": ("softmax",),
    "head": ("softmax",),
    "score_range": SCORED,
    "margin": ("triplet",),
    "temperature": IN_BATCH,
    "guide": ("contrastive",),
    "dimensions": ("contrastive", *SCORED),
}
"""The settings that some objectives alone look at."""


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
Poolings = Annotated[list[PoolingMode], Field(min_length=1)]
MaxRejects = Annotated[float, Field(ge=0, le=1)]


def common_values(settings: Settings, kind: type[Settings]) -> dict[str, Any]:
    """The values of `settings` under the keys that settings of `kind` have too."""
    return {key: getattr(settings, key) for key in type(settings).model_fields if key in kind.model_fields}


class LabelledTraining(TrainingSettings):
    """What all trainings on labelled sentences share.

    train: tables with the columns of the objective in `COLUMNS`, or with others that they name.
    dev: the same kind of tables; the score on them chooses the best weights.
    max_swapped: the share of examples whose columns may seem to be swapped: sentences without a letter, and classes
        that are as many as sentences.
    """

    train: Annotated[list[Table], Field(min_length=1)]
    dev: list[Table] = []
    batch_items: Positive | None = 16
    max_rejects: MaxRejects = 0.01
    max_swapped: Annotated[float, Field(ge=0, le=1), WHEN_SET] = 0.2

    @property
    def has_dev(self) -> bool:
        return bool(self.dev)

    @model_validator(mode="after")
    def _dev_data_where_it_is_used(self) -> Self:
        if not self.has_dev:
            refuse_idle(self, "evaluate_every", "patience", because="there is no dev data")
        return self


class TrainSettings(LabelledTraining):
    """A teacher: what it starts from, what it learns from, and how. Defaults are those of the SBERT paper.

    base: a model to start from, or the size of a new one.
    objective: `softmax` over a linear map of the pair, `cosine` regression, `triplet` distances; `contrastive`, the
        positive among all positives and negatives of the batch (MultipleNegativesRanking), where a table may have any
        number of columns of hard negatives; `cosent` and `angle`, the order of the pairs of a batch by gold score.
    dev: the same kind of tables, scored by the objective's own measure: accuracy, Spearman, accuracy of triplets, or
        for `contrastive` how often the positive is the nearest of all positives.
    dev_sts: STS sets by name, scored by Spearman of cosine; where given, their mean chooses the best weights.
    pooling: the base's own when absent, else mean.
    concatenation: what the linear map of the softmax objective sees, one of [u, v], [|u-v|], [u*v], [|u-v|, u*v],
        [u, v, u*v], [u, v, |u-v|] and [u, v, |u-v|, u*v].
    linear: a linear layer of equal size after the pooling, kept with the model.
    dropout: on the sentence vectors, while training.
    margin: of the triplet objective, in Euclidean distance.
    score_range: the lowest and highest gold score, which become cosine 0 and 1.
    temperature: similarities are divided by it.
    guide: a model that excludes negatives which it finds nearer to the anchor than the positive (GISTEmbed).
    dimensions: Matryoshka: the loss is the mean of it over vectors cut to these dimensions, and whole ones.
    head: the softmax head of an earlier training, `@stage/head`.
    max_tokens: the longest input, special tokens included; the base's own when absent.
    """

    base: Base
    objective: Objective
    dev_sts: dict[str, StsTable] = {}
    pooling: Poolings | None = None
    concatenation: Concatenation = ["u", "v", "|u-v|"]
    linear: bool = False
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    margin: Annotated[float, Field(gt=0)] = 1.0
    score_range: ScoreRange = [0.0, 5.0]
    temperature: Annotated[float, Field(gt=0)] = 0.05
    guide: EncoderSource | None = None
    dimensions: Annotated[list[Positive], WHEN_SET] = []
    head: InputFile | None = None
    max_tokens: MaxTokens | None = None

    @property
    def has_dev(self) -> bool:
        return bool(self.dev or self.dev_sts)

    @model_validator(mode="after")
    def _keys_of_the_objective(self) -> Self:
        for key, objectives in USED_BY.items():
            if self.objective not in objectives:
                of = " or ".join(objectives)
                because = f"only the {of} objective uses it, and the objective is {self.objective}"
                refuse_idle(self, key, because=because)
        return self

    @model_validator(mode="after")
    def _halves_of_angle(self) -> Self:
        odd = [dimension for dimension in self.dimensions if dimension % 2]
        if self.objective == "angle" and odd:
            raise ValueError(f"dimensions: angle takes vectors in two halves; expected even numbers, found {odd}")
        return self


class StsSettings(Settings):
    """An encoder scored on STS sets without training: Spearman of cosine.

    dimensions: score vectors cut to these dimensions too.
    """

    model: EncoderSource
    sts: Annotated[dict[str, StsTable], Field(min_length=1)]
    dimensions: Annotated[list[Positive], WHEN_SET] = []
    precision: Precision = "auto"
    max_rejects: MaxRejects = 0.01


class PairSettings(LabelledTraining):
    """A network that scores how alike two sentences are, from 0 to 1.

    base: the BERT it starts from; a sentence encoder's is taken out of it.
    train, dev: tables of sentence1, sentence2 and score, or with other columns that they name; dev chooses the best
        weights by Spearman.
    test: STS sets by name, scored after the training.
    score_range: the lowest and highest gold score.
    """

    base: ModelSource
    test: dict[str, StsTable] = {}
    score_range: ScoreRange = [0.0, 5.0]


class CrossEncoderSettings(PairSettings):
    """A BERT that reads both sentences at once.

    max_tokens: the longest pair, special tokens included; as many as the base has positions, and 256 at most.
    both_orders: each pair is trained on as (a, b) and as (b, a), and a score is the mean of both: for likeness, which
        knows no order. Training and scoring take twice as long. sentence-transformers scores (a, b) alone.
    """

    max_tokens: Annotated[int, Field(ge=8, lt=2**31)] | None = None
    both_orders: bool = False


class PolyEncoderSettings(PairSettings):
    """For comparison with the papers: a poly-encoder, whose base may be any encoder of one pooling, not projected.

    codes: how many learned ones attend to the first sentence.
    """

    codes: Annotated[int, Field(ge=1, le=65_536)] = 64


class BiLstmSettings(LabelledTraining):
    """For comparison with the papers: InferSent's encoder, which learns labelled pairs.

    Defaults are near those of its paper, but for the optimiser.

    glove: a text file of word vectors; those of the words in train and dev are kept with the model.
    train, dev: tables of premise, hypothesis and label, or with other columns that they name.
    hidden: units of each direction; a sentence vector has twice as many.
    concatenation: what the linear map of the softmax objective sees.
    """

    glove: InputFile
    hidden: Annotated[int, Field(ge=1, le=65_536)] = 2_048
    concatenation: Concatenation = ["u", "v", "|u-v|", "u*v"]
    batch_items: Positive | None = 64
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3


class RerankOptions(Settings):
    """How pairs are scored.

    top: ranks the candidates of each query, which are in consecutive rows, and keeps so many; answers of a search
        are ranked without it too.
    batch_tokens: the most tokens in a batch, padding included; chosen by the device when absent.
    """

    top: Positive | None = None
    precision: Precision = "auto"
    batch_tokens: Annotated[Positive | None, RUN_ONLY] = None


class RerankSettings(RerankOptions):
    """Pairs of sentences scored from 0 to 1, in `scores.<output>`; candidates of queries ranked by their scores.

    model: a cross-encoder or a poly-encoder.
    pairs: a table with the columns sentence1 and sentence2, or two that it names; or the answers of a search.
    output: `txt` has a score in each line; the others a row for each pair or candidate.
    """

    model: ScorerSource
    pairs: Table
    output: Literal["jsonl", "csv", "tsv", "parquet", "txt"] = "jsonl"
