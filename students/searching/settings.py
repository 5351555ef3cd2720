"""The settings of search: how an index is built, and the stage that builds one; free of torch and faiss."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from bertrelay.data.tables import Table
from bertrelay.settings import RUN_ONLY, ModelSource, Positive, Settings

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
    prompt: which of the model's prompts stands before each sentence; the model's default when absent.
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
