"""The settings of term vectors, and a first look at the files they name; free of torch."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from bertrelay.data.records import rows
from bertrelay.data.tables import Column, Table
from bertrelay.errors import RequestError
from bertrelay.settings import RUN_ONLY, ModelSource, Positive, Seed, Settings

Layers = Literal["last_four", "last"]

NEIGHBOURS = 5
MAX_REJECTS = 0.1
TERM, GROUP = "term", "group"
RATING: list[Column] = ["term1", "term2", "score"]


class TermsSettings(Settings):
    """Vectors of medical terms, the nearest neighbours of each, and a picture of all.

    terms: `columns` are that of the term and that of its group; else they are `term`, or the line of plain lines, and
        `group` where there is a column of that name.
    ratings: how alike people find two terms, in three columns: `columns`, else `term1`, `term2` and `score`.
    layers: `last_four` is the sum of the last four, as in Huang, Altosaar & Ranganath (2019); `last` the last alone.
    k: so many neighbours are told of each term.
    perplexity: of the t-SNE; 30 and less for few terms when absent.
    seed: of the t-SNE and of the intervals.
    output: what kind of file the vectors stand in; `parquet` has the terms beside them.
    batch_tokens: the most tokens in a batch, padding included; chosen by the device when absent.
    max_rejects: the share of terms and ratings that may be unusable; in a list of forty, 0.01 would allow none.
    """

    model: ModelSource
    terms: Table
    ratings: Table | None = None
    layers: Layers = "last_four"
    k: Positive = NEIGHBOURS
    perplexity: Annotated[float, Field(ge=1)] | None = None
    seed: Seed = 7
    output: Literal["npy", "parquet"] = "npy"
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    batch_tokens: Annotated[Positive | None, RUN_ONLY] = None
    max_rejects: Annotated[float, Field(ge=0, le=1)] = MAX_REJECTS

    @model_validator(mode="after")
    def _as_many_columns_as_are_read(self) -> Self:
        named = self.terms.columns or []
        if len(named) > 2:
            raise ValueError(f"terms: expected the columns of term and group, found {len(named)} columns")
        if self.ratings and len(self.ratings.columns or RATING) != len(RATING):
            raise ValueError(f"ratings: expected three columns (two terms, score), found {self.ratings.columns}")
        return self


def check_files(settings: TermsSettings, cache: Path | None = None) -> None:
    """Reads a row of each file, which tells most of what can be wrong with a request. Raises RequestError."""
    next(rows(settings.terms, term_columns(settings.terms, cache), cache))
    if settings.ratings:
        next(rows(settings.ratings, RATING, cache))


def term_columns(table: Table, cache: Path | None = None) -> list[Column]:
    """The columns of term and group: those that `table` names, else what it has."""
    is_lines = table.path is not None and table.file_format == "lines"
    named: list[Column] = table.columns or [0 if is_lines else TERM]
    if is_lines or len(named) > 1:
        return named
    try:
        next(rows(table.model_copy(update={"columns": [GROUP]}), [], cache))
    except RequestError:  # no groups; or nothing at all, which reading the terms will tell
        return named
    return [*named, GROUP]
