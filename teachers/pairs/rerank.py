"""Reranking: pairs of sentences in files of any size, scored in resumable shards; answers of a search, ranked anew.

Loads neither torch nor transformers before there is a model to load, so that an invalid request is reported at once.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from bertrelay.cache import Cache
from bertrelay.compute.engine import LOCAL, Engine
from bertrelay.compute.work import Compute, Work
from bertrelay.data.sentences import as_table
from bertrelay.data.shards import ShardFiles, SpanReader, cut_spans
from bertrelay.data.tables import Table
from bertrelay.data.writing import json_line, write_table
from bertrelay.files import check_output
from bertrelay.inference.run_model import Scan, connect, open_run
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup
from bertrelay.progress import Bar
from bertrelay.settings import common_values, settings_of
from bertrelay.stage import Metrics, StageContext, load
from teachers.pairs.candidates import PAIR, PairQuery, PairSource
from teachers.pairs.settings import RerankOptions, RerankSettings

if TYPE_CHECKING:
    import torch

    from teachers.pairs.model import PairScorer

SCORERS = {"poly.safetensors": "teachers.sbert_paper.poly_encoder:PolyEncoder"}
"""Scorers other than a cross-encoder, by a file that only their folders have. Names, as no module imports the paper's
folder."""

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
BLOCK_PAIRS = 4_096
"""Pairs of a shard: a killed run computes as many again."""
DIGITS = 6  # of a score; later ones depend on the threads of a machine

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
    """Counts of `rerank_file`.

    queries: None where pairs were scored without ranking.
    pairs_per_second: of the pairs of this call; None where an earlier one had scored all.
    """

    pairs: int
    queries: int | None
    pairs_per_second: float | None


def load_scorer(model: str | Path, device: "str | torch.device | None" = None) -> "PairScorer":
    """Loads the cross-encoder or poly-encoder of a folder or hub id. Raises RequestError for another model.

    device: as in `SentenceEncoder.load`.
    """
    from bertrelay.sources import model_folder
    from teachers.pairs.model import CrossEncoder

    folder = model_folder(model)
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
    overwrite: bool = False,
) -> RerankedFile:
    """Scores the likeness of the sentences of `pairs`, from 0 to 1, and writes it to `output`.

    pairs: a table with the columns sentence1 and sentence2, or two that it names; or the answers of a search, whose
        candidates are ranked anew.
    output: `.csv`, `.tsv`, `.jsonl` or `.parquet`, a row for each pair or candidate.
    cache: of models and data sets of the hub.
    process_group: each of several processes computes a part; they need torch.distributed, to synchronise, and one
        folder of `output`, on a disk that all of them read.
    engine: in place of several processes a Ray cluster, `ray`, `ray://HOST:PORT` or an `Engine`; its workers read the
        model and the folder of `output`.
    top, precision, batch_tokens: as in `teachers.pairs.settings.RerankOptions`.
    overwrite: replace an existing file, which is an error otherwise.

    Killed and called again, with any number of processes, it resumes at the first shard that is missing.
    Raises RequestError, before anything is computed, for an unusable input or output.
    """
    options, table, output = settings_of(RerankOptions, locals()), as_table(pairs), Path(output)
    check_output(output, SUFFIXES, table.path, overwrite=overwrite)
    source = PairSource.of(table, options.top, cache)
    with open_run(
        output,
        model,
        partial(_scan, source),
        span_limit=BLOCK_PAIRS,
        precision=options.precision,
        cache=cache,
        process_group=process_group,
        engine=engine,
        decisive={"ranks": source.ranks, "top": source.top_k},
    ) as run:
        start = partial(_start, run.folder, source, {"precision": run.precision, "batch_tokens": options.batch_tokens})
        reader = SpanReader(source.queries, source.table.name)
        rate = run.fill(Work(reader.read, start, "scoring", "pairs")).rate
        if run.is_main:
            _assemble(run.shards, source, output)
    return RerankedFile(run.scan.size, run.scan.items if source.ranks else None, rate)


def run(settings: RerankSettings, context: StageContext) -> Metrics:
    """Runs the stage `teachers.rerank`: writes the scores of a table's pairs to `scores.<output>`."""
    options = common_values(settings, RerankOptions)
    with connect(context.engine, context.process_group) as executor:
        reranked = rerank_file(
            settings.model,
            settings.pairs,
            context.output / f"scores.{settings.output}",
            cache=context.cache,
            process_group=context.process_group,
            engine=context.engine,
            overwrite=True,
            **options | {"precision": context.precision(settings.precision, executor)},
        )
    return {name: value for name, value in reranked._asdict().items() if name != "queries" or value is not None}


def _scan(source: PairSource) -> Scan:
    """Reads `source` to its end and cuts its queries into spans of pairs."""
    digest = hashlib.sha256()

    def sizes() -> Iterator[tuple[int, int]]:
        for query in source.queries():
            digest.update(json.dumps(query).encode())
            yield len(query.candidates), len(query.candidates)

    return Scan(cut_spans(sizes(), BLOCK_PAIRS), digest.hexdigest())


def _start(folder: Path, source: PairSource, options: dict[str, Any]) -> Compute[list[PairQuery], list[str]]:
    """Loads the model; returns the function from queries to lines of a shard."""
    scorer = load_scorer(folder)

    def lines(blocks: Iterable[list[PairQuery]], bar: Bar) -> Iterator[list[str]]:
        for queries in blocks:
            pairs = [(query.text, candidate.text) for query in queries for candidate in query.candidates]
            scores = iter(scorer.predict(pairs, **options).tolist())
            yield [_line(query, list(islice(scores, len(query.candidates))), source) for query in queries]
            bar.advance(len(pairs))

    return lines


def _line(query: PairQuery, scores: Sequence[float], source: PairSource) -> str:
    """Formats a pair with its score, or a query with its candidates, best first, as a line of a shard."""
    rounded = [round(score, DIGITS) for score in scores]
    if not source.ranks:
        sentences = dict(zip(PAIR, (query.text, query.candidates[0].text), strict=True))
        return json_line({"line": query.line, **sentences, "score": rounded[0]})
    hits = []
    order = sorted(range(len(scores)), key=lambda row: -scores[row])
    for rank, row in enumerate(order[: source.top_k], 1):
        text, line, similarity = query.candidates[row]
        by_search = {} if similarity is None else {"similarity": similarity}
        hits.append({"rank": rank, "score": rounded[row], **by_search, "line": line, "text": text})
    query_line = {} if query.line is None else {"line": query.line}
    return json_line({"query": query.text, **query_line, "hits": hits})


def _assemble(shards: ShardFiles, source: PairSource, output: Path) -> None:
    """Writes `output` from the shards: a row for each pair or candidate; in JSONL a line for each query."""
    if output.suffix == ".jsonl":
        shards.join(output)
        return
    columns = HIT_COLUMNS if source.ranks else PAIR_COLUMNS
    hits = (
        {"query_line": row.get("line"), "query": row["query"], **hit}
        for row in shards.rows()
        for hit in row.get("hits", ())
    )
    table = hits if source.ranks else shards.rows()
    write_table(output, columns, (tuple(map(row.get, columns)) for row in table))
