"""Queries with their candidates, read from tables of pairs and from the answers of a search."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertrelay.cache import Cache
from bertrelay.data.records import read, rows
from bertrelay.data.tables import Record, Table
from bertrelay.errors import RequestError

PAIR: tuple[str, str] = ("sentence1", "sentence2")
ANSWER = ("query_line", "query", "similarity", "line", "text")
"""The columns of `bertrelay search --output answers.csv`, except the rank, which changes."""


class PairCandidate(NamedTuple):
    """A candidate of a query.

    line: of the text in its file. similarity: to the query, in the answers of a search.
    """

    text: str
    line: int
    similarity: float | None = None


class PairQuery(NamedTuple):
    """A query and its candidates; of a pair, its two sentences. line: in its file, None for a query of no file."""

    text: str
    line: int | None
    candidates: list[PairCandidate]


@dataclass(frozen=True)
class PairSource:
    """A table of pairs and the way to read it.

    kind: `pairs` are scored without ranking. `candidates` are pairs too, where those of a query are in consecutive
        rows and are ranked; so are the `answers` of a search.
    top: number of candidates of each query in the output; all of them when None.
    cache: of data sets of the hub.
    """

    table: Table
    kind: Literal["pairs", "candidates", "answers"]
    top: int | None = None
    cache: Cache | None = None

    @classmethod
    def of(cls, table: Table, top: int | None, output: Path, cache: Cache | None = None) -> "PairSource":
        """Recognises answers by their columns; other tables have candidates with `top`, and pairs without it.

        Raises RequestError for other than two columns, and for ranked candidates in an `output` with scores only.
        """
        if table.columns is not None and len(table.columns) != len(PAIR):
            raise RequestError(
                f"{table.name}: expected two columns, those of the two sentences, found {len(table.columns)} named"
            )
        source = cls(table, "answers" if _holds_answers(table) else "candidates" if top else "pairs", top, cache)
        if source.ranks and output.suffix == ".txt":
            raise RequestError(
                f"output: a .txt file has scores only, and ranked candidates are more; found {output}. "
                "Name a .csv, .tsv, .jsonl or .parquet file."
            )
        return source

    @property
    def ranks(self) -> bool:
        return self.kind != "pairs"

    def queries(self) -> Iterator[PairQuery]:
        """Yields the queries with their candidates. Raises RequestError, with file and line, for other content."""
        if self.kind != "answers":
            pairs = map(_parse_pair, read(self.table, PAIR if self.table.header else (0, 1), self.cache))
            return pairs if self.kind == "pairs" else _group_by_query(pairs, by_line=False)
        if self.table.file_format != "jsonl":
            return _group_by_query(map(_parse_hit, read(self.table, ANSWER)), by_line=True)
        lines = Table.model_validate({"path": self.table.path, "format": "lines"})
        return (_parse_answer(record) for record in read(lines, [0]) if record.values[0].strip())


def _holds_answers(table: Table) -> bool:
    columns = {"jsonl": ("query", "hits"), "csv": ANSWER, "tsv": ANSWER}.get(table.file_format)
    if table.path is None or table.columns or columns is None or not table.header:
        return False
    try:
        return next(rows(table, columns), None) is not None
    except RequestError:  # no such columns; other errors are raised again when it is read
        return False


def _parse_pair(record: Record) -> PairQuery:
    first, second = (_text(value, record) for value in record.values)
    return PairQuery(first, record.line, [PairCandidate(second, record.line)])


def _parse_answer(record: Record) -> PairQuery:
    """Parses a line of a search's JSONL: a query with any number of hits."""
    try:
        answer = json.loads(record.values[0])
        line, candidates = answer.get("line"), []
        for hit in answer["hits"]:
            similarity = hit.get("similarity")
            similarity = None if similarity is None else float(similarity)
            candidates.append(PairCandidate(_text(hit["text"], record), int(hit["line"]), similarity))
        return PairQuery(_text(answer["query"], record), None if line is None else int(line), candidates)
    except RequestError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _not_an_answer(record, "a query and its hits, each with its line and text") from None


def _parse_hit(record: Record) -> PairQuery:
    """Parses a row of a search's CSV: a query with one of its hits."""
    query_line, query, similarity, line, text = record.values
    try:
        candidate = PairCandidate(text, int(line), float(similarity))
        return PairQuery(query, int(query_line) if query_line else None, [candidate])
    except ValueError:
        raise _not_an_answer(record, "whole numbers in query_line and line, and a number in similarity") from None


def _not_an_answer(record: Record, expected: str) -> RequestError:
    return RequestError(
        f"{record.file}, line {record.line:,}: expected {expected}, as `bertrelay search --output` writes them, found "
        "others. Write the answers again, or name two columns of text."
    )


def _text(value: Any, record: Record) -> str:
    if not isinstance(value, str):
        raise RequestError(
            f"{record.file}, line {record.line:,}: expected text, found {type(value).__name__}; name two columns of "
            "text"
        )
    value.encode()  # raises ValueError for half of a surrogate pair, which JSON can escape and no file can hold
    return value


def _group_by_query(pairs: Iterator[PairQuery], by_line: bool) -> Iterator[PairQuery]:
    """Joins the candidates of consecutive equal queries.

    by_line: pairs have the line of their query, and equal queries of different lines stay apart.
    """
    for _, run in groupby(pairs, lambda pair: (pair.text, pair.line if by_line else None)):
        first, *others = run
        yield first._replace(candidates=[*first.candidates, *(pair.candidates[0] for pair in others)])
