"""Pairs of sentences in files of any size, scored in resumable shards; results of a search, reranked.

Loads neither torch nor transformers before there is a model to load, so that an invalid request is reported at once.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from bertrelay.cache import Cache
from bertrelay.compute.engine import LOCAL, Engine
from bertrelay.compute.work import Compute, Work
from bertrelay.data.records import read, rows
from bertrelay.data.sentences import as_table
from bertrelay.data.shards import ShardFiles, SpanReader, cut_spans
from bertrelay.data.tables import Record, Table
from bertrelay.data.writing import json_line, write_lines, write_table
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, check_output
from bertrelay.inference.run_model import Scan, connect, open_run
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup
from bertrelay.progress import Bar
from bertrelay.settings import settings_of
from bertrelay.stage import Metrics, StageContext, load
from teachers.pairs.settings import RerankOptions, RerankSettings

if TYPE_CHECKING:
    import torch

    from teachers.pairs.model import PairScorer

SCORERS = {"poly.safetensors": "teachers.sbert_paper.poly_encoder:PolyEncoder"}
"""Scorers other than a cross-encoder, by a file that only their folders have; loaded by name, for none of the paper's
code is needed otherwise."""
SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".txt")
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


class RerankedFile(NamedTuple):
    """What `rerank_file` did.

    queries: None where pairs were scored without ranking.
    pairs_per_second: of what was computed now; None where that is nothing.
    """

    pairs: int
    queries: int | None
    pairs_per_second: float | None


def load_scorer(
    model: str | Path, cache: Cache | None = None, device: "str | torch.device | None" = None
) -> "PairScorer":
    """The cross-encoder or poly-encoder of a folder or hub id. Raises RequestError for another.

    device: as of `SentenceEncoder.load`.
    """
    from bertrelay.sources import model_folder
    from teachers.pairs.model import CrossEncoder

    folder = model_folder(model, cache=cache)
    named = next((name for file, name in SCORERS.items() if (folder / file).is_file()), None)
    scorer = load(named) if named else CrossEncoder
    return cast("PairScorer", scorer.load(folder, device=device))


def rerank_file(
    model: str | Path,
    pairs: Table | str | Path,
    output: str | Path,
    *,
    cache: Cache | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
    engine: Engine | str = LOCAL,
    top: int | None = None,
    precision: str = "auto",
    batch_tokens: int | None = None,
) -> RerankedFile:
    """Writes the likeness of the sentences of each of `pairs`, from 0 to 1, to `output`.

    pairs: a table with the columns sentence1 and sentence2, or two that it names; or the answers of a search, whose
        candidates are ranked anew.
    output: `.csv`, `.tsv`, `.jsonl` or `.parquet`, a row for each pair or candidate; `.txt` has a score in each line.
    cache: where a model or data set of the hub is kept.
    process_group: each of several processes computes its share; they need torch.distributed, to synchronise, and
        one folder of `output`, on a disk that all of them see.
    engine: in place of several processes a Ray cluster, `ray`, `ray://HOST:PORT` or an `Engine`; its workers see the
        model and the folder of `output`.
    top, precision, batch_tokens: as in `teachers.pairs.settings.RerankOptions`.

    Killed and called again, with any number of processes, it resumes at the first shard that is missing.
    Raises RequestError, before anything is computed, for an input or output that cannot be what it should be.
    """
    options, table, output = settings_of(RerankOptions, locals()), as_table(pairs), Path(output)
    check_output(output, SUFFIXES, table.path)
    source = PairSource.of(table, options.top, output, cache)
    with open_run(
        output,
        model,
        partial(_scan, source),
        span_limit=BLOCK_PAIRS,
        precision=options.precision,
        cache=cache,
        process_group=process_group,
        engine=engine,
        decisive={"kind": source.kind, "top": source.top},
    ) as run:
        start = partial(_start, run.folder, source, {"precision": run.precision, "batch_tokens": options.batch_tokens})
        reader = SpanReader(source.questions, source.table.name)
        rate = run.fill(Work(reader.read, start, "scoring", "pairs")).rate
        if run.is_main:
            _assemble(run.shards, source, output)
    return RerankedFile(run.scan.size, run.scan.items if source.ranks else None, rate)


def run(settings: RerankSettings, context: StageContext) -> Metrics:
    """The stage `teachers.rerank`: the scores of a table's pairs, in `scores` with the suffix of the format."""
    options = settings.model_dump(include=set(RerankOptions.model_fields))
    with connect(context.engine, context.process_group) as executor:
        reranked = rerank_file(
            settings.model,
            settings.pairs,
            context.output / f"scores.{settings.output}",
            cache=context.cache,
            process_group=context.process_group,
            engine=context.engine,
            **options | {"precision": context.precision(settings.precision, executor)},
        )
    return {name: value for name, value in reranked._asdict().items() if name != "queries" or value is not None}


# Pairs, and queries with the candidates that a search has found


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
    cache: where a data set of the hub is kept.
    """

    table: Table
    kind: Literal["pairs", "candidates", "answers"]
    top: int | None = None
    cache: Cache | None = None

    @classmethod
    def of(cls, table: Table, top: int | None, output: Path, cache: Cache | None = None) -> "PairSource":
        """Answers by their columns, candidates by `top`, else pairs.

        Raises RequestError for other than two columns, and for ranked candidates in an `output` of scores alone.
        """
        if table.columns is not None and len(table.columns) != len(PAIR):
            raise RequestError(
                f"{table.name}: expected two columns, those of the two sentences, found {len(table.columns)} named"
            )
        source = cls(table, "answers" if _holds_answers(table) else "candidates" if top else "pairs", top, cache)
        if source.ranks and output.suffix == ".txt":
            raise RequestError(
                f"output: a .txt file has the scores alone, and ranked candidates are more; found {output}. "
                "Name a .csv, .tsv, .jsonl or .parquet file."
            )
        return source

    @property
    def ranks(self) -> bool:
        return self.kind != "pairs"

    def questions(self) -> Iterator[PairQuery]:
        """Streams the queries with their candidates. Raises RequestError, with file and line, for what is none."""
        if self.kind != "answers":
            pairs = map(_pair, read(self.table, PAIR if self.table.header else (0, 1), self.cache))
            return pairs if self.kind == "pairs" else _group_by_query(pairs, by_line=False)
        if self.table.file_format != "jsonl":
            return _group_by_query(map(_hit, read(self.table, ANSWER)), by_line=True)
        lines = Table.model_validate({"path": self.table.path, "format": "lines"})
        return (_answer(record) for record in read(lines, [0]) if record.values[0].strip())


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


def _answer(record: Record) -> PairQuery:
    """An answer of a search as its JSONL has it; one without hits too."""
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
        raise _no_answer(record, "a query and its hits, each with its line and text") from None


def _hit(record: Record) -> PairQuery:
    """A hit of a search as its CSV has it."""
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


def _text(value: Any, record: Record) -> str:
    if not isinstance(value, str):
        raise RequestError(
            f"{record.file}, line {record.line:,}: expected text, found {type(value).__name__}; name two columns of "
            "text"
        )
    value.encode()  # raises ValueError for half of a surrogate pair, which JSON can escape and no file can hold
    return value


def _group_by_query(pairs: Iterator[PairQuery], by_line: bool) -> Iterator[PairQuery]:
    """The candidates of one query after another.

    by_line: whether pairs have the line of their query, so that equal queries of different lines stay apart.
    """
    for _, run in groupby(pairs, lambda pair: (pair.text, pair.line if by_line else None)):
        first, *others = run
        yield first._replace(candidates=[*first.candidates, *(each.candidates[0] for each in others)])


# ShardFiles


def _scan(source: PairSource) -> Scan:
    """Reads `source` through: queries, in spans of pairs."""
    digest = hashlib.sha256()

    def sizes() -> Iterator[tuple[int, int]]:
        for question in source.questions():
            digest.update(json.dumps(question).encode())
            yield len(question.candidates), len(question.candidates)

    return Scan(cut_spans(sizes(), BLOCK_PAIRS), digest.hexdigest())


def _start(folder: Path, source: PairSource, how: dict[str, Any]) -> Compute[list[PairQuery], list[str]]:
    """Loads the model."""
    scorer = load_scorer(folder)

    def lines(blocks: Iterable[list[PairQuery]], bar: Bar) -> Iterator[list[str]]:
        for questions in blocks:
            pairs = [(question.text, candidate.text) for question in questions for candidate in question.candidates]
            scores = iter(scorer.predict(pairs, **how).tolist())
            yield [_line(each, list(islice(scores, len(each.candidates))), source) for each in questions]
            bar.advance(len(pairs))

    return lines


def _line(question: PairQuery, scores: Sequence[float], source: PairSource) -> str:
    """A pair and its score, or a query and its candidates from the best one on, as a line of a shard."""
    rounded = [round(score, DIGITS) for score in scores]
    if not source.ranks:
        sentences = dict(zip(PAIR, (question.text, question.candidates[0].text), strict=True))
        return json_line({"line": question.line, **sentences, "score": rounded[0]})
    hits = []
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    for rank, place in enumerate(order[: source.top], 1):
        text, line, similarity = question.candidates[place]
        known = {} if similarity is None else {"similarity": similarity}
        hits.append({"rank": rank, "score": rounded[place], **known, "line": line, "text": text})
    query_line = {} if question.line is None else {"line": question.line}
    return json_line({"query": question.text, **query_line, "hits": hits})


def _assemble(shards: ShardFiles, source: PairSource, output: Path) -> None:
    """Writes `output` from the shards: a row for each pair or candidate; in JSONL a line for each query."""
    match output.suffix:
        case ".jsonl":
            shards.join(output)
        case ".txt":
            with atomic_write(output) as building:
                write_lines(building, (f"{row['score']:.{DIGITS}f}\n" for row in shards.rows()))
        case _:
            columns = HIT_COLUMNS if source.ranks else PAIR_COLUMNS
            hits = (
                {"query_line": row.get("line"), "query": row["query"], **hit}
                for row in shards.rows()
                for hit in row.get("hits", ())
            )
            table = hits if source.ranks else shards.rows()
            write_table(output, columns, (tuple(map(row.get, columns)) for row in table))
