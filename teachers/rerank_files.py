"""What scoring pairs reads and writes: pairs of sentences, or queries with the candidates that a search has found.

Loads neither torch nor transformers, so that an invalid request is reported at once.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertrelay.data.records import read, rows
from bertrelay.data.shards import Scan, Shards, cut_spans, json_line, write_lines
from bertrelay.data.tables import Record, Table, write_table
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write

SUFFIXES = (".csv", ".jsonl", ".parquet", ".txt")
BLOCK_PAIRS = 4_096
"""So many pairs are scored before they are on the disk, the most that a kill costs."""
DIGITS = 6  # of a score; those behind them depend on the threads of a machine

PAIR: tuple[str, str] = ("sentence1", "sentence2")
ANSWER = ("query_line", "query", "similarity", "line", "text")
"""The columns of `bertrelay search --output answers.csv`, but for the rank, which is found anew."""
PAIR_COLUMNS = {"line": "int64", **dict.fromkeys(PAIR, "string"), "score": "double"}
HIT_COLUMNS = {
    "query_line": "int64",
    "query": "string",
    "rank": "int32",
    "score": "double",
    "similarity": "double",
    "line": "int64",
    "text": "string",
}


class PairCandidate(NamedTuple):
    """What may answer a query: its text, the line it has in its file, and what a search has found it by."""

    text: str
    line: int
    similarity: float | None = None


class PairQuery(NamedTuple):
    """A query and its candidates; of a pair, its two sentences. line: of its file, None for one of no file."""

    text: str
    line: int | None
    candidates: list[PairCandidate]


@dataclass(frozen=True)
class PairSource:
    """Where pairs come from.

    kind: `pairs` are scored without ranking. `candidates` are pairs too, those of a query one below the other, and are
        ranked; so are the `answers` of a search.
    top: how many candidates of each query are kept; all without it.
    """

    table: Table
    kind: Literal["pairs", "candidates", "answers"]
    top: int | None = None

    @classmethod
    def of(cls, table: Table, top: int | None = None) -> "PairSource":
        """Answers by their columns, candidates by `top`, else pairs. Raises RequestError for other than two columns."""
        if table.columns is not None and len(table.columns) != len(PAIR):
            raise RequestError(
                f"{table.name}: expected two columns, those of the two sentences, found {len(table.columns)} named"
            )
        return cls(table, "answers" if _holds_answers(table) else "pairs" if top is None else "candidates", top)

    @property
    def ranks(self) -> bool:
        return self.kind != "pairs"

    def questions(self, cache: Path | None = None) -> Iterator[PairQuery]:
        """Streams the queries with their candidates. Raises RequestError, with file and line, for what is none."""
        if self.kind == "answers":
            return _answers(self.table)
        columns = PAIR if self.table.header else (0, 1)
        pairs = map(_pair, read(self.table, columns, cache))
        return pairs if self.kind == "pairs" else _joined(pairs, by_line=False)


def _holds_answers(table: Table) -> bool:
    columns = {"jsonl": ("query", "hits"), "csv": ANSWER, "tsv": ANSWER}.get(table.file_format)
    if table.path is None or table.columns or columns is None or not table.header:
        return False
    try:
        return next(rows(table, columns), None) is not None
    except RequestError:  # no such columns; other errors come when it is read
        return False


def _pair(record: Record) -> PairQuery:
    first, second = (_text(value, record) for value in record.values)
    return PairQuery(first, record.line, [PairCandidate(second, record.line)])


def _answers(table: Table) -> Iterator[PairQuery]:
    if table.file_format == "jsonl":
        lines = Table.model_validate({"path": table.path, "format": "lines"})
        return (_answer(record) for record in read(lines, [0]) if record.values[0].strip())
    return _joined(map(_hit, read(table, ANSWER)), by_line=True)


def _answer(record: Record) -> PairQuery:
    """An answer of a search as its JSONL has it; one without hits too."""
    try:
        found = json.loads(record.values[0])
        line = found.get("line")
        hits = [_candidate(hit, record) for hit in found["hits"]]
        return PairQuery(_text(found["query"], record), None if line is None else int(line), hits)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _no_answer(record, "a query and its hits, each with its line and text") from None


def _candidate(hit: dict[str, Any], record: Record) -> PairCandidate:
    similarity = hit.get("similarity")
    return PairCandidate(
        _text(hit["text"], record), int(hit["line"]), None if similarity is None else float(similarity)
    )


def _hit(record: Record) -> PairQuery:
    query_line, query, similarity, line, text = record.values
    try:
        candidate = PairCandidate(text, int(line), float(similarity))
        return PairQuery(query, int(query_line) if query_line else None, [candidate])
    except ValueError:
        raise _no_answer(record, "whole numbers in query_line and line, and a number in similarity") from None


def _no_answer(record: Record, expected: str) -> RequestError:
    return RequestError(
        f"{record.file}, line {record.line:,}: expected {expected}, as `bertrelay search --output` writes them, found "
        "others. Write the answers again, or name two columns of text."
    )


def _joined(pairs: Iterator[PairQuery], by_line: bool) -> Iterator[PairQuery]:
    """The candidates of one query after another.

    by_line: whether pairs have the line of their query, so that equal queries of different lines stay apart.
    """
    for _, run in groupby(pairs, lambda pair: (pair.text, pair.line if by_line else None)):
        first, *others = run
        yield first._replace(candidates=[*first.candidates, *(each.candidates[0] for each in others)])


def _text(value: Any, record: Record) -> str:
    if not isinstance(value, str):
        found = type(value).__name__
        raise RequestError(
            f"{record.file}, line {record.line:,}: expected text, found {found}; name two columns of text"
        )
    value.encode()  # raises ValueError for half of a surrogate pair, which JSON can escape and no file can hold
    return value


def scan(source: PairSource, cache: Path | None = None) -> Scan:
    """Reads `source` through: queries, in spans of pairs.

    Raises RequestError, with file and line, at the first record that cannot be used.
    """
    digest = hashlib.sha256()

    def sizes() -> Iterator[tuple[int, int]]:
        for question in source.questions(cache):
            digest.update(json.dumps(question).encode())
            yield len(question.candidates), len(question.candidates)

    return Scan(cut_spans(sizes(), BLOCK_PAIRS), digest.hexdigest())


def check_ranking(source: PairSource, output: Path) -> None:
    """Raises RequestError for ranked candidates in a file of scores alone."""
    if source.ranks and output.suffix == ".txt":
        raise RequestError(
            f"output: a .txt file has the scores alone, and ranked candidates are more; found {output}. "
            "Name a .csv, .jsonl or .parquet file."
        )


def line_of(question: PairQuery, scores: Sequence[float], source: PairSource) -> str:
    """A pair and its score, or a query and its candidates from the best one on, as a line of a shard."""
    rounded = [round(score, DIGITS) for score in scores]
    if not source.ranks:
        sentences = dict(zip(PAIR, (question.text, question.candidates[0].text), strict=True))
        return json_line({"line": question.line, **sentences, "score": rounded[0]})
    order = sorted(range(len(scores)), key=lambda place: -scores[place])[: source.top]
    hits = []
    for rank, place in enumerate(order, 1):
        candidate = question.candidates[place]
        similarity = {} if candidate.similarity is None else {"similarity": candidate.similarity}
        found = {"rank": rank, "score": rounded[place], **similarity, "line": candidate.line, "text": candidate.text}
        hits.append(found)
    line = {} if question.line is None else {"line": question.line}
    return json_line({"query": question.text, **line, "hits": hits})


def assemble(shards: Shards, source: PairSource, output: Path) -> None:
    """Writes `output` from the shards: a row for each pair or candidate; in JSONL a line for each query."""
    columns = HIT_COLUMNS if source.ranks else PAIR_COLUMNS
    match output.suffix:
        case ".jsonl":
            shards.join(output)
        case ".txt":
            with atomic_write(output) as building:
                write_lines(building, (f"{row['score']:.{DIGITS}f}\n" for row in _flat(shards)))
        case _:
            write_table(output, columns, (tuple(map(row.get, columns)) for row in _flat(shards)))


def _flat(shards: Shards) -> Iterator[dict[str, Any]]:
    """A row for each pair or candidate."""
    for row in shards.rows():
        if "hits" not in row:
            yield row
        for hit in row.get("hits", ()):
            yield {"query_line": row.get("line"), "query": row["query"], **hit}
