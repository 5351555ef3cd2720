"""The settings of term vectors, and how the files that they name are read; free of torch."""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from bertrelay.cache import Cache
from bertrelay.data.records import Rejects, is_missing, rows
from bertrelay.data.tables import ABSENT, Column, Record, Row, Table
from bertrelay.errors import RequestError
from bertrelay.progress import log
from bertrelay.settings import BatchTokens, MaxRejects, ModelSource, Positive, Precision, Seed, Settings

Layers = Literal["last_four", "last"]

TERM, GROUP = "term", "group"
RATING: list[Column] = ["term1", "term2", "score"]
LEAST_RATINGS = 3  # through two points there is always a line


class TermsSettings(Settings):
    """Vectors of medical terms, the nearest neighbours of each, and a picture of all."""

    model: ModelSource
    """Encoder or BERT: a model folder, `@stage/model`, `package:name/path` or a hub id."""
    terms: Table
    """Table whose `columns` are that of the term and that of its group; else they are `term`, or the line of plain
    lines, and `group` where there is a column of that name."""
    ratings: Table | None = None
    """Table of how alike people find two terms, in three columns: `columns`, else `term1`, `term2` and `score`."""
    layers: Layers = "last_four"
    """Layers of a token's vector: `last_four` is the sum of the last four, as in Huang, Altosaar & Ranganath (2019);
    `last` the last only."""
    k: Positive = 5
    """Number of neighbours of each term."""
    perplexity: Annotated[float, Field(ge=1)] | None = None
    """Perplexity of the t-SNE; 30 and less for few terms when absent."""
    seed: Seed = 7
    """Seed of the t-SNE and of the intervals."""
    output: Literal["npy", "parquet"] = "npy"
    """Format of the file of the vectors; `parquet` has the terms beside them."""
    precision: Precision = "auto"
    batch_tokens: BatchTokens = None
    max_rejects: MaxRejects = 0.1
    """Fraction of terms and ratings that may be unusable; in a list of forty, 0.01 would allow none."""

    @model_validator(mode="after")
    def _as_many_columns_as_are_read(self) -> Self:
        named = self.terms.columns or []
        if len(named) > 2:
            raise ValueError(f"terms: expected the columns of term and group, found {len(named)} columns")
        if self.ratings and len(self.ratings.columns or RATING) != len(RATING):
            raise ValueError(f"ratings: expected three columns (two terms, score), found {self.ratings.columns}")
        return self


class Term(NamedTuple):
    """A term, its group (empty: none), and its file and line."""

    text: str
    group: str
    file: str
    line: int


class RatedPairs(NamedTuple):
    """Rows of two terms with the score of the pair, and counts of the other ratings."""

    pairs: list[tuple[int, int]]
    scores: list[float]
    missing: int
    repeated: int


def check_files(settings: TermsSettings, cache: Cache | None = None) -> None:
    """Reads a row of each file, which shows most of what can be wrong with a request. Raises RequestError."""
    next(_term_rows(settings.terms, cache))
    if settings.ratings:
        next(rows(settings.ratings, RATING, cache))


def _term_rows(table: Table, cache: Cache | None) -> Iterator[Row]:
    """Term and group: of the columns that `table` names, else of what it has."""
    is_lines = table.path is not None and table.file_format == "lines"
    has_own = len(table.columns or []) < 2
    return rows(table, [0 if is_lines else TERM], cache, optional=[GROUP] if has_own else [])


def read_terms(table: Table, rejects: Rejects, cache: Cache | None = None) -> list[Term]:
    """The terms of `table` without blanks around them, each where it first occurs.

    cache: where a data set of the hub is kept.
    Raises RequestError for a table that is not there, is empty, or lacks a column.
    """
    terms: dict[str, Term] = {}
    for row in _term_rows(table, cache):
        try:
            text, group = _stripped(row, terms=1)
            group = "" if group is ABSENT or is_missing(group) else str(group).strip()
            term = Term(text, group, row.file, row.line)
            if text in terms:
                other = "" if terms[text].group == term.group else ", in another group"
                raise ValueError(f"a term that is there already{other}")
            terms[text] = term
        except ValueError as error:
            rejects.add(row.file, row.line, str(error))
    return list(terms.values())


def read_ratings(table: Table, row_of: Mapping[str, int], rejects: Rejects, cache: Cache | None = None) -> RatedPairs:
    """The pairs of `table` whose terms both have a row; a pair that is rated more than once has the mean score.

    Logs how many pairs have a term without a row, and how many ratings were of a pair that had one.
    Raises RequestError for fewer than three pairs, and as `read_terms` does.
    """
    scores: dict[tuple[int, int], list[float]] = {}
    missing, absent = 0, set[str]()
    for row in rows(table, RATING, cache):
        try:
            *terms, rating = _stripped(row, terms=2)
            score = _score(rating)
        except ValueError as error:
            rejects.add(row.file, row.line, str(error))
            continue
        if unknown := {text for text in terms if text not in row_of}:
            missing += 1
            absent |= unknown
        else:
            first, second = sorted(row_of[text] for text in terms)
            scores.setdefault((first, second), []).append(score)
    used = sum(map(len, scores.values()))
    rejects.used(used + missing)
    if missing:
        log(f"{table.name}: {missing:,} of {used + missing:,} ratings are of {len(absent):,} terms that are not listed")
    if len(scores) < LEAST_RATINGS:
        raise RequestError(
            f"ratings: expected at least {LEAST_RATINGS} pairs of terms that are listed, found {len(scores):,} in "
            f"{table.name}, and {missing:,} ratings of other terms. Terms must be spelt alike in both files, capitals "
            "too; list the rated terms, or give the ratings of these"
        )
    if repeated := used - len(scores):
        log(f"{table.name}: {repeated:,} ratings are of a pair that is rated already; such a pair has the mean score")
    means = [sum(each) / len(each) for each in scores.values()]
    return RatedPairs(list(scores), means, missing, repeated)


def _stripped(row: Row, terms: int) -> list[Any]:
    """The values of a row, the first ones without blanks around them; raises ValueError where they are no terms."""
    if not isinstance(row, Record):
        raise ValueError(row.reason)
    texts = row.values[:terms]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a term that is no text")
    if not all(text.strip() for text in texts):
        raise ValueError("an empty term")
    return [*(text.strip() for text in texts), *row.values[terms:]]


def _score(value: Any) -> float:
    try:
        score = float(value)
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise ValueError("no score")
    return score
