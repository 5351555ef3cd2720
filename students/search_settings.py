"""The settings of search and bitext mining; free of torch."""

from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from bertrelay.data.tables import Column, Table
from bertrelay.settings import RUN_ONLY, WHEN_SET, ModelSource, Positive, Settings, refuse_idle

IndexKind = Literal["auto", "exact", "hnsw"]

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
    kind: `exact` compares a query with every vector, `hnsw` walks a graph; `auto` is exact up to 100,000 sentences.
    prompt: which of the model's prompts precedes each sentence; the model's default when absent.
    batch_tokens: the most tokens in a batch, padding included; chosen by the device when absent.
    max_rejects: the share of records that may be unusable.
    """

    model: ModelSource
    corpus: Table
    kind: IndexKind = "auto"
    hnsw: Hnsw = Hnsw()
    prompt: str | None = None
    precision: Literal["auto", "bf16", "fp32"] = "auto"
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


class MineSettings(Settings):
    """Sentences of two tables that translate one another.

    source, target: a column of text each: `columns`, else `text`, or the whole line of plain lines.
    k: so many nearest neighbours of a sentence say what is near for it.
    threshold: pairs with a lower margin are left out; 1 is as near as to the neighbours.
    gold: the true pairs, in columns `source_line` and `target_line`, for precision, recall and F1, and
        the threshold of the highest F1 is taken when none is given. Lines count from 1, a header included.
    id_column: a column of identifiers in source and target, by which `gold` names sentences, as in BUCC; its columns
        are then `source_id` and `target_id`, or the first two of a file without a header.
    method: exact compares all with all; approximate goes through a graph (HNSW); auto is exact up to 10¹¹ pairs.
    output: what kind of file `mined` is.
    max_rejects: the share of records that may be unusable.
    """

    model: ModelSource
    source: Table
    target: Table
    k: Positive = NEIGHBOURS
    threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None
    gold: Table | None = None
    id_column: Annotated[Column | None, WHEN_SET] = None
    method: Method = "auto"
    output: MinedFormat = "tsv"
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    batch_tokens: Annotated[Positive | None, RUN_ONLY] = None
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
