"""The settings of the baselines that are trained; free of torch."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from bertrelay.data.tables import Table
from bertrelay.settings import RUN_ONLY, InputFile, ModelSource, Positive, Settings, refuse_idle
from bertrelay.training.settings import TrainingSettings
from teachers.settings import Concatenation, ScoreRange, StsTable


class PairSettings(TrainingSettings):
    """A network that says how alike two sentences are, from 0 to 1.

    base: the BERT it starts from; a sentence encoder's is taken out of it.
    train, dev: tables of sentence1, sentence2 and score, or with other columns that they name; dev chooses the best
        weights by Spearman.
    test: STS sets by name, scored after the training.
    score_range: the lowest and highest gold score.
    """

    base: ModelSource
    train: Annotated[list[Table], Field(min_length=1)]
    dev: list[Table] = []
    test: dict[str, StsTable] = {}
    score_range: ScoreRange = [0.0, 5.0]
    batch_items: Positive | None = 16
    max_rejects: Annotated[float, Field(ge=0, le=1)] = 0.01

    @model_validator(mode="after")
    def _nothing_idle(self) -> Self:
        if not self.dev:
            refuse_idle(self, "evaluate_every", "patience", because="there is no dev data in `dev`")
        return self


def _not_gated(gated: bool) -> bool:
    if gated:
        raise ValueError(
            "expected no gated cross-encoder, which is no longer supported: from the same start an ordinary one comes "
            "level with the bi-encoder. Leave `gated` out"
        )
    return gated


class CrossEncoderSettings(PairSettings):
    """A BERT that reads both sentences at once.

    max_tokens: the longest pair, special tokens included; as many as the base has positions, and 256 at most.
    gated: no longer supported; false alone is accepted.
    both_orders: each pair is learnt from as (a, b) and as (b, a), and a score is the mean of both: for likeness, which
        knows no order. Training and scoring take twice as long.
    """

    max_tokens: Annotated[int, Field(ge=8, lt=2**31)] | None = None
    gated: Annotated[bool, AfterValidator(_not_gated)] = False  # in the fingerprints of earlier runs
    both_orders: bool = False


class PolyEncoderSettings(PairSettings):
    """A poly-encoder, whose base may be any encoder of one pooling without a projection.

    codes: how many learnt ones look at the first sentence.
    """

    codes: Annotated[int, Field(ge=1, le=65_536)] = 64


class BiLstmSettings(TrainingSettings):
    """InferSent's encoder, which learns labelled pairs; defaults are near those of its paper, but for the optimiser.

    glove: a text file of word vectors; those of the words in train and dev are kept with the model.
    train, dev: tables of premise, hypothesis and label, or with other columns that they name.
    hidden: figures of each direction; a sentence vector has twice as many.
    concatenation: what the linear map of the softmax objective sees.
    """

    glove: InputFile
    train: Annotated[list[Table], Field(min_length=1)]
    dev: list[Table] = []
    hidden: Annotated[int, Field(ge=1, le=65_536)] = 2_048
    concatenation: Concatenation = ["u", "v", "|u-v|", "u*v"]
    batch_items: Positive | None = 64
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    max_rejects: Annotated[float, Field(ge=0, le=1)] = 0.01

    @model_validator(mode="after")
    def _nothing_idle(self) -> Self:
        if not self.dev:
            refuse_idle(self, "evaluate_every", "patience", because="there is no dev data in `dev`")
        return self


class RerankSettings(Settings):
    """Pairs of sentences scored from 0 to 1, in `scores.<output>`; candidates of queries ranked by their scores.

    model: a cross-encoder or a poly-encoder.
    pairs: a table with the columns sentence1 and sentence2, or two that it names; or the answers of a search.
    top: ranks the candidates of each query, which stand one below the other, and keeps so many; answers of a search
        are ranked without it too.
    output: `txt` has a score in each line; the others a row for each pair or candidate.
    batch_tokens: the most tokens in a batch, padding included; chosen by the device when absent.
    """

    model: ModelSource
    pairs: Table
    top: Positive | None = None
    output: Literal["jsonl", "csv", "parquet", "txt"] = "jsonl"
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    batch_tokens: Annotated[Positive | None, RUN_ONLY] = None
