"""The settings of mining translations and hard negatives; free of torch."""

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from bertrelay.data.tables import Column, Table
from bertrelay.settings import (
    BatchTokens,
    EncoderSource,
    MaxRejects,
    Positive,
    Precision,
    Seed,
    Settings,
    UsedWith,
)
from students.searching.settings import IndexKind

Method = Literal["auto", "exact", "approximate"]
MinedFormat = Literal["tsv", "csv", "jsonl", "parquet"]
MINED_SUFFIXES = tuple(f".{name}" for name in get_args(MinedFormat))

NEIGHBOURS = 4
"""Nearest neighbours of a sentence with which a margin compares: the k of Artetxe & Schwenk (2019)."""

EXACT_PAIRS = 10**11
"""Most pairs of which `auto` compares all: some minutes' work, and a graph would take longer. Memory sets no limit."""


class MineOptions(Settings):
    """Options of mining pairs."""

    k: Positive = NEIGHBOURS
    """Number of nearest neighbours of a sentence with which its margin compares."""
    threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Drop pairs with a lower margin; 1 is as near as to the neighbours."""
    method: Method = "auto"
    """exact compares all with all; approximate goes through a graph (HNSW); auto is exact up to 10¹¹ pairs."""
    precision: Precision = "auto"
    batch_tokens: BatchTokens = None


class MineSettings(MineOptions):
    """The sentences of two tables that translate one another."""

    model: EncoderSource
    """Encoder: a model folder, `@stage/model`, `package:name/path` or a hub id."""
    source: Table
    """A column of text: `columns`, else `text`, or the whole line of plain lines."""
    target: Table
    """A column of text, as in `source`."""
    gold: Table | None = None
    """True pairs, in columns `source_line` and `target_line`, for precision, recall and F1; the threshold of the
    highest F1 is taken when `threshold` is absent. Lines count from 1, a header included."""
    id_column: Annotated[Column | None, UsedWith("gold")] = None
    """Column of identifiers in source and target, by which `gold` names sentences, as in BUCC; its columns are then
    `source_id` and `target_id`, or the first two of a file without a header."""
    output: MinedFormat = "tsv"
    """Format of the file `mined`."""
    max_rejects: MaxRejects = 0.01


class MiningPart(Settings):
    """Sentences in two languages and the pairs among them that translate one another, as in `MineSettings`."""

    source: Table
    """A column of text: `columns`, else `text`, or the whole line of plain lines."""
    target: Table
    """A column of text, as in `source`."""
    gold: Table
    """True pairs, in columns `source_line` and `target_line`; lines count from 1, a header included."""


class MiningTest(Settings):
    """Bitext mining as in BUCC: the threshold of the highest F1 on `train` is applied to `test`."""

    train: MiningPart
    """Sentences and gold pairs that choose the threshold."""
    test: MiningPart
    """Sentences and gold pairs that are scored."""
    id_column: Column | None = None
    """Column of identifiers in source and target, by which `gold` names sentences; by lines when absent."""


Score = Annotated[float, Field(ge=-1, le=1)]
WINDOW = 10
"""Candidates considered for each negative when `range_max` is absent."""


class NegativeOptions(Settings):
    """Choice of an anchor's negatives among the candidates nearest to it, by their cosine with it.

    The names are those of sentence-transformers' `mine_hard_negatives`.
    """

    num_negatives: Positive = 3
    """Negatives for each anchor."""
    range_min: Annotated[int, Field(ge=0)] = 0
    """Skip this many of the nearest that nothing else leaves out; some may be unmarked positives."""
    range_max: Positive | None = None
    """Consider this many of the nearest; range_min and ten times num_negatives when absent."""
    max_score: Score | None = None
    """Leave out candidates with a higher score."""
    min_score: Score | None = None
    """Leave out candidates with a lower score."""
    absolute_margin: Annotated[float, Field(ge=0, le=2)] | None = None
    """Leave out candidates with a higher score than the positive's minus this."""
    relative_margin: Annotated[float, Field(ge=0, le=1)] | None = None
    """Leave out candidates with a higher score than the positive's minus this fraction of it; 0.05 is best in
    NV-Retriever (Moreira et al. 2024)."""
    sampling: Literal["top", "random"] = "top"
    """Take the nearest of those that are left, or draw from them."""
    seed: Annotated[Seed, UsedWith(sampling="random")] = 0
    """Seed of the draw, which depends on it and on the anchor's position only."""
    layout: Literal["triplet", "n-tuple"] = "triplet"
    """`triplet` has a row for each negative; `n-tuple` a row for each pair, with all its negatives, and none for a pair
    that has fewer."""
    scores: bool = False
    """Write the cosines too."""
    kind: IndexKind = "auto"
    """Kind of the index of candidates, as in `IndexSettings`."""
    query_prompt: str | None = None
    """Name of the model's prompt that precedes each anchor; when absent `query` of a model that has one for documents
    too and no default, else the default."""
    prompt: str | None = None
    """Name of the model's prompt that precedes each candidate; when absent `document`, `passage` or `corpus` of such a
    model."""
    precision: Precision = "auto"
    batch_tokens: BatchTokens = None

    @property
    def window(self) -> int:
        """Number of the nearest candidates that are considered."""
        return self.range_max or self.range_min + WINDOW * self.num_negatives

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.window < self.range_min + self.num_negatives:
            raise ValueError(
                f"range_max: expected at least range_min and num_negatives, {self.range_min + self.num_negatives}, "
                f"found {self.range_max}"
            )
        if self.min_score is not None and self.max_score is not None and self.min_score > self.max_score:
            raise ValueError(f"min_score: expected at most max_score, {self.max_score}, found {self.min_score}")
        return self


class NegativeSettings(NegativeOptions):
    """Hard negatives of pairs, in `negatives.<output>`, for the contrastive objective of `teachers.train`."""

    model: EncoderSource
    """Encoder: a model folder, `@stage/model`, `package:name/path` or a hub id."""
    pairs: Table
    """Table with the columns anchor and positive, or two that it names."""
    corpus: Table | None = None
    """Further candidates beside the positives of all pairs: lines, `text` of a table, or the column it names."""
    output: MinedFormat = "jsonl"
    """Format of the file `negatives`."""
    max_rejects: MaxRejects = 0.01
