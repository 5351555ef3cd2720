"""Pairs of sentences in files of any size, scored in resumable shards; results of a search, reranked."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch

from bertrelay.backbone import model_folder
from bertrelay.data.sentences import as_table
from bertrelay.data.shards import Span, model_output, read_spans
from bertrelay.data.tables import Table
from bertrelay.distributed import SINGLE_PROCESS, ProcessGroup
from bertrelay.files import check_output
from bertrelay.progress import Bar
from bertrelay.stage import Metrics, StageContext
from teachers.baselines.poly_encoder import WEIGHTS, PolyEncoder
from teachers.cross_encoder import CrossEncoder, PairScorer
from teachers.rerank_files import (
    BLOCK_PAIRS,
    SUFFIXES,
    PairSource,
    assemble,
    check_ranking,
    line_of,
    scan,
)
from teachers.settings import RerankSettings


class RerankedFile(NamedTuple):
    """What `rerank_file` did.

    queries: None where pairs were scored without ranking.
    pairs_per_second: of what was computed now; None where that is nothing.
    """

    pairs: int
    queries: int | None
    pairs_per_second: float | None


def load_scorer(model: str | Path, cache: Path | None = None, device: str | torch.device | None = None) -> PairScorer:
    """The cross-encoder or poly-encoder of a folder or hub id. Raises RequestError for another.

    device: as of `SentenceEncoder.load`.
    """
    folder = model_folder(model, cache_dir=cache and cache / "hub")
    return (PolyEncoder if (folder / WEIGHTS).is_file() else CrossEncoder).load(folder, device=device)


def rerank_file(
    model: str | Path,
    pairs: Table | str | Path,
    output: str | Path,
    *,
    top: int | None = None,
    precision: str = "auto",
    batch_tokens: int | None = None,
    cache: Path | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> RerankedFile:
    """Writes how alike the sentences of each of `pairs` are, from 0 to 1, to `output`.

    pairs: a table with the columns sentence1 and sentence2, or two that it names; or the answers of a search, whose
        candidates are ranked anew.
    output: `.csv`, `.jsonl` or `.parquet`, a row for each pair or candidate; `.txt` has a score in each line.
    top: ranks the pairs whose first sentence is the same and that are in consecutive rows, and keeps so many.
    cache: where a model or data set of the hub is kept.
    process_group: each of several processes computes its share; they need torch.distributed, to synchronise, and
        one folder of `output`, on a disk that all of them see.

    Killed and called again, with any number of processes, it resumes at the first shard that is missing.
    Raises RequestError, before anything is computed, for an input or output that cannot be what it should be.
    """
    source, output = PairSource.of(as_table(pairs), top), Path(output)
    check_output(output, SUFFIXES, source.table.path)
    check_ranking(source, output)
    with model_output(
        output,
        model,
        partial(scan, source, cache),
        block=BLOCK_PAIRS,
        precision=precision,
        cache=cache,
        process_group=process_group,
        kind=source.kind,
        top=source.top,
    ) as work:
        compute = partial(_lines, load_scorer(work.folder), source, work.precision, batch_tokens, cache)
        filled = work.shards.fill(compute, "scoring", "pairs")
        if work.is_main:
            assemble(work.shards, source, output)
    return RerankedFile(work.scan.size, work.scan.items if source.ranks else None, filled.rate)


def run(settings: RerankSettings, context: StageContext) -> Metrics:
    """The stage `teachers.rerank`: the scores of a table's pairs, in `scores` with the suffix of the format."""
    reranked = rerank_file(
        settings.model,
        settings.pairs,
        context.output / f"scores.{settings.output}",
        top=settings.top,
        precision=settings.precision,
        batch_tokens=settings.batch_tokens,
        cache=context.cache,
        process_group=context.process_group,
    )
    return {name: value for name, value in reranked._asdict().items() if name != "queries" or value is not None}


def _lines(
    scorer: PairScorer,
    source: PairSource,
    precision: str,
    batch_tokens: int | None,
    cache: Path | None,
    spans: Sequence[Span],
    bar: Bar,
) -> Iterator[list[str]]:
    """The lines of the queries of each of `spans`."""
    for questions in map(list, read_spans(source.questions(cache), spans, source.table.name)):
        pairs = [(question.text, candidate.text) for question in questions for candidate in question.candidates]
        scores = iter(scorer.predict(pairs, precision=precision, batch_tokens=batch_tokens).tolist())
        yield [line_of(each, list(islice(scores, len(each.candidates))), source) for each in questions]
        bar.advance(len(pairs))
