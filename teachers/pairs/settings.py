"""Settings of networks that score pairs of sentences: training and reranking; free of torch."""

from typing import Annotated, Literal

from pydantic import Field

from bertrelay.data.tables import Table
from bertrelay.settings import BatchTokens, ModelSource, Positive, Precision, ScorerSource, Settings
from teachers.settings import LabelledTraining, ScoreRange, StsSets


class PairSettings(LabelledTraining):
    """The training of a network that scores the likeness of two sentences, from 0 to 1."""

    base: ModelSource
    """BERT to start from, also that of a sentence encoder."""
    train: Annotated[list[Table], Field(min_length=1)]
    """Tables of sentence1, sentence2 and score, or with the `columns` that they name."""
    dev: list[Table] = []
    """Held-out tables of the same kind; Spearman on them selects the best weights."""
    test: StsSets = {}
    """STS sets by name, scored after the training."""
    score_range: ScoreRange = [0.0, 5.0]
    """Lowest and highest gold score."""


class CrossEncoderSettings(PairSettings):
    """The training of a cross-encoder, a BERT that reads both sentences at once."""

    max_tokens: Annotated[int, Field(ge=8, lt=2**31)] | None = None
    """Longest pair, special tokens included; when absent as many as the base has positions, and 256 at most."""


class RerankOptions(Settings):
    """Options of scoring pairs."""

    top: Positive | None = None
    """Candidates to write of each query in the answers of a search; all of them when absent."""
    precision: Precision = "auto"
    batch_tokens: BatchTokens = None


class RerankSettings(RerankOptions):
    """Pairs of sentences scored from 0 to 1, in `scores.<output>`; candidates of queries ranked by their scores."""

    model: ScorerSource
    """Cross-encoder or poly-encoder."""
    pairs: Table
    """Table with the columns sentence1 and sentence2, or two that it names; or the answers of a search."""
    output: Literal["jsonl", "csv", "tsv", "parquet"] = "jsonl"
    """Format of the file, which has a row for each pair or candidate."""
