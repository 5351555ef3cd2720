"""Queries with their candidates, read from tables of pairs and from the answers of a search."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

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
    """A table of pairs to score, or the answers of a search to rank.

    ranks: the table has answers, whose candidates are ranked.
    top_k: number of candidates of each query in the output; all of them when None.
    cache: of data sets of the hub.
    """

    table: Table
    ranks: bool
    top_k: int | None = None
    cache: Cache | None = None

    @classmethod
    def of(cls, table: Table, top_k: int | None, cache: Cache | None = None) -> "PairSource":
        """Recognises the answers of a search by their columns; every other table has pairs.

        Raises RequestError for other than two columns, and for `top_k` beside pairs.
        """
        if table.columns is not None and len(table.columns) != len(PAIR):
            raise RequestError(
                f"{table.name}: expected two columns, those of the two sentences, found {len(table.columns)} named"
            )
        ranks = _holds_answers(table)
        if top_k and not ranks:
            raise RequestError(
                f"top: expected the answers of a search, whose candidates it limits, found pairs in {table.name}; "
                "leave it out"
            )
        return cls(table, ranks, top_k, cache)

    def queries(self) -> Iterator[PairQuery]:
        """Yields the queries with their candidates. Raises RequestError, with file and line, for other content."""
        if not self.ranks:
            return map(_parse_pair, read(self.table, PAIR if self.table.header else (0, 1), self.cache))
        if self.table.file_format != "jsonl":
            return _group_by_query(map(_parse_hit, read(self.table, ANSWER)))
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


def _group_by_query(hits: Iterator[PairQuery]) -> Iterator[PairQuery]:
    """Joins the candidates of consecutive hits of a query; equal queries of different lines stay apart."""
    for _, run in groupby(hits, lambda hit: (hit.text, hit.line)):
        first, *others = run
        yield first._replace(candidates=[*first.candidates, *(hit.candidates[0] for hit in others)])
