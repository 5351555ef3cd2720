"""The settings of search, of bitext mining and of mining hard negatives; free of torch."""

from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from bertrelay.data.tables import Column, Table
from bertrelay.settings import RUN_ONLY, WHEN_SET, EncoderSource, Positive, Precision, Seed, Settings, refuse_idle

IndexKind = Literal["auto", "exact", "hnsw", "int8", "binary"]

EXACT_UP_TO = 100_000
"""Sentences that `auto` searches exactly: some tens of milliseconds for a query."""


def index_beside(corpus: str | Path) -> Path:
    """The folder of a corpus's index, where none is named."""
    return Path(f"{corpus}.index")


class Hnsw(Settings):
    """The graph of an approximate index (Malkov & Yashunin, 2016). Larger numbers find more and take longer.

    links: of each vector on each level, twice as many on the lowest (their M); memory grows with it.
    ef_construction: candidates kept while a vector is linked.
    ef_search: candidates kept while a query is answered.
    """

    links: Annotated[int, Field(ge=2, le=1024)] = 32
    ef_construction: Positive = 100
    ef_search: Positive = 100


class IndexSettings(Settings):
    """An index of a corpus, written to `index/`, for `bertrelay search MODEL --index`.

    corpus: one column of text: plain lines, `text` of a table, or the column it names.
    kind: `exact` compares a query with every vector, `hnsw` walks a graph; `int8` and `binary` compare it with vectors
        of fewer bits in memory, and the best again in float32 from the disk; `auto` is exact up to 100,000 sentences,
        and int8 beyond.
    show: columns of the corpus that hits can show, by name, or by position from 0.
    prompt: which of the model's prompts precedes each sentence; when absent that for documents (`document`, `passage`,
        `corpus`) of a model that has one for queries too and no default, else the default.
    batch_tokens: the most tokens in a batch, padding included; chosen by the device when absent.
    max_rejects: the share of records that may be unusable.
    """

    model: EncoderSource
    corpus: Table
    kind: IndexKind = "auto"
    hnsw: Hnsw = Hnsw()
    show: Annotated[list[Column], WHEN_SET] = []
    prompt: str | None = None
    precision: Precision = "auto"
    batch_tokens: Annotated[Positive | None, RUN_ONLY] = None
    max_rejects: Annotated[float, Field(ge=0, le=1)] = 0.01


Method = Literal["auto", "exact", "approximate"]
MinedFormat = Literal["tsv", "csv", "jsonl", "parquet"]
MINED_SUFFIXES = tuple(f".{name}" for name in get_args(MinedFormat))

NEIGHBOURS = 4
"""The k of Artetxe & Schwenk (2019)."""

EXACT_PAIRS = 10**11
"""Up to so many pairs all are compared: some minutes' work, and a graph would take longer. Memory sets no limit."""


def work_beside(output: Path) -> Path:
    """The folder of what is found until `output` is written."""
    return output.with_name(output.name + ".work")


class MineOptions(Settings):
    """How pairs are mined.

    k: so many nearest neighbours of a sentence say what is near for it.
    threshold: pairs with a lower margin are left out; 1 is as near as to the neighbours.
    method: exact compares all with all; approximate goes through a graph (HNSW); auto is exact up to 10¹¹ pairs.
    batch_tokens: the most tokens in a batch, padding included; chosen by the device when absent.
    """

    k: Positive = NEIGHBOURS
    threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None
    method: Method = "auto"
    precision: Precision = "auto"
    batch_tokens: Annotated[Positive | None, RUN_ONLY] = None


class MineSettings(MineOptions):
    """Sentences of two tables that translate one another.

    source, target: a column of text each: `columns`, else `text`, or the whole line of plain lines.
    gold: the true pairs, in columns `source_line` and `target_line`, for precision, recall and F1, and
        the threshold of the highest F1 is taken when none is given. Lines count from 1, a header included.
    id_column: a column of identifiers in source and target, by which `gold` names sentences, as in BUCC; its columns
        are then `source_id` and `target_id`, or the first two of a file without a header.
    output: what kind of file `mined` is.
    max_rejects: the share of records that may be unusable.
    """

    model: EncoderSource
    source: Table
    target: Table
    gold: Table | None = None
    id_column: Annotated[Column | None, WHEN_SET] = None
    output: MinedFormat = "tsv"
    max_rejects: Annotated[float, Field(ge=0, le=1)] = 0.01

    @model_validator(mode="after")
    def _ids_of_gold(self) -> Self:
        if self.gold is None:
            refuse_idle(self, "id_column", because="there is no `gold` that names sentences by it")
        return self


class MiningPart(Settings):
    """Sentences in two languages and the pairs among them that translate one another, as in `MineSettings`."""

    source: Table
    target: Table
    gold: Table


class MiningTest(Settings):
    """Bitext mining as in BUCC: the threshold of the highest F1 on `train` is applied to `test`.

    id_column: of source and target, by which `gold` names sentences; without it, by lines.
    """

    train: MiningPart
    test: MiningPart
    id_column: Column | None = None


Score = Annotated[float, Field(ge=-1, le=1)]
WINDOW = 10
"""So many times the number of negatives are considered, where `range_max` is not given."""


class NegativeOptions(Settings):
    """Which of the candidates nearest to an anchor are its negatives, by their cosine with it.

    The names are those of sentence-transformers' `mine_hard_negatives`.

    num_negatives: so many for each anchor.
    range_min: skip so many of the nearest that nothing else leaves out; some may be positives that nobody marked.
    range_max: consider so many of the nearest; range_min and ten times num_negatives when absent.
    max_score: leave out candidates with a higher score.
    min_score: leave out candidates with a lower score.
    absolute_margin: leave out candidates with more than the positive's score less this.
    relative_margin: leave out candidates with more than the positive's score less this share of it; 0.05 is best in
        NV-Retriever (Moreira et al. 2024).
    sampling: take the nearest of those that are left, or draw from them.
    seed: what is drawn depends on it and on the anchor's place alone.
    layout: `triplet` has a row for each negative; `n-tuple` a row for each pair, with all its negatives, and none for a
        pair that has fewer.
    scores: write the cosines too.
    kind: of the index of candidates, as in `IndexSettings`.
    query_prompt: which of the model's prompts precedes each anchor; when absent `query` of a model that has one for
        documents too and no default, else the default.
    prompt: the same for each candidate; when absent `document`, `passage` or `corpus` of such a model.
    batch_tokens: the most tokens in a batch, padding included; chosen by the device when absent.
    """

    num_negatives: Positive = 3
    range_min: Annotated[int, Field(ge=0)] = 0
    range_max: Positive | None = None
    max_score: Score | None = None
    min_score: Score | None = None
    absolute_margin: Annotated[float, Field(ge=0, le=2)] | None = None
    relative_margin: Annotated[float, Field(ge=0, le=1)] | None = None
    sampling: Literal["top", "random"] = "top"
    seed: Seed = 0
    layout: Literal["triplet", "n-tuple"] = "triplet"
    scores: bool = False
    kind: IndexKind = "auto"
    query_prompt: str | None = None
    prompt: str | None = None
    precision: Precision = "auto"
    batch_tokens: Annotated[Positive | None, RUN_ONLY] = None

    @property
    def window(self) -> int:
        """So many of the nearest are considered."""
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
        if self.sampling == "top":
            refuse_idle(self, "seed", because="sampling is top, which draws nothing")
        return self


class NegativeSettings(NegativeOptions):
    """Hard negatives of pairs, in `negatives.<output>`, for the contrastive objective of `teachers.train`.

    pairs: a table with the columns anchor and positive, or two that it names.
    corpus: further candidates beside the positives of all pairs: lines, `text` of a table, or the column it names.
    output: what kind of file `negatives` is.
    max_rejects: the share of records that may be unusable.
    """

    model: EncoderSource
    pairs: Table
    corpus: Table | None = None
    output: MinedFormat = "jsonl"
    max_rejects: Annotated[float, Field(ge=0, le=1)] = 0.01
