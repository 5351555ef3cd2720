"""`bertrelay rerank`: pairs of sentences scored by a network that reads both, and answers of a search ranked anew."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.echo import echo
from pipelines.cli.models import MODEL_HELP, check_model
from pipelines.cli.options import (
    BatchOption,
    FormatOption,
    HeaderOption,
    JsonOption,
    OverwriteOption,
    PrecisionOption,
    ProcessesOption,
    table_of,
)

if TYPE_CHECKING:
    from teachers.rerank import RerankedFile


def rerank(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"A cross-encoder or poly-encoder. {MODEL_HELP}")],
    pairs: Annotated[
        str,
        typer.Argument(
            metavar="PAIRS",
            help="CSV, TSV, JSONL or Parquet with two columns of text, or the answers of bertrelay search --output.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="Where to write: a .csv, .jsonl or .parquet file; .txt has scores alone."),
    ],
    top: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            min=1,
            help="Rank the candidates of each query, which stand one below the other, and keep the best K.",
            show_default="all, ranked if they are answers of a search",
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            help="A column of text, by name or position from 0; give it twice, the query's first.",
            show_default="sentence1 and sentence2",
        ),
    ] = None,
    file_format: FormatOption = None,
    header: HeaderOption = True,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
    precision: PrecisionOption = "auto",
    batch_tokens: BatchOption = None,
    processes: ProcessesOption = None,
) -> None:
    """Score pairs of sentences from 0 to 1, and put what a search has found into a better order.

    MODEL reads both sentences of a pair at once, as `teachers.cross-encoder` trains it, or as `teachers.poly-encoder`
    does. A file of any size works, in the same memory. Stop it whenever you like: the same command goes on from there.

    For example:

      bertrelay rerank MODEL pairs.csv scores.csv --column question --column answer

      bertrelay search ENCODER corpus.txt --queries questions.txt -k 100 --output answers.jsonl

      bertrelay rerank MODEL answers.jsonl best.jsonl --top 10
    """
    from bertrelay.files import check_output
    from pipelines.cli.sharing import shared
    from pipelines.launch import check_process_group
    from teachers.rerank_files import SUFFIXES, PairSource, check_ranking

    process_group = check_process_group(processes)
    table = table_of(pairs, column, file_format, header)
    check_model(model)
    check_output(output, SUFFIXES, pairs, overwrite=overwrite)
    source = PairSource.of(table, top)
    check_ranking(source, output)
    next(source.questions())  # which tells most of what can be wrong
    with shared(process_group, processes):
        from teachers.rerank import rerank_file

        reranked = rerank_file(
            model, table, output, top=top, precision=precision, batch_tokens=batch_tokens, process_group=process_group
        )
    if process_group.is_main:
        echo(json.dumps({"output": str(output), **reranked._asdict()}) if as_json else _text(reranked, output))


def _text(reranked: "RerankedFile", output: Path) -> str:
    if reranked.queries is None:
        return f"{reranked.pairs:,} pairs scored, in {output}"
    queries = "1 query" if reranked.queries == 1 else f"{reranked.queries:,} queries"
    return f"{reranked.pairs:,} candidates of {queries} ranked, in {output}"
