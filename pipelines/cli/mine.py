"""`bertrelay mine`: the sentences of two files that translate one another."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertrelay.data.tables import Format
from pipelines.cli.echo import echo
from pipelines.cli.models import check_model
from pipelines.cli.options import (
    BatchOption,
    HeaderOption,
    JsonOption,
    ModelArgument,
    OverwriteOption,
    PrecisionOption,
    table_of,
)
from students.settings import MINED_SUFFIXES, NEIGHBOURS, Method, work_beside

if TYPE_CHECKING:
    from students.bitext import Mining

SIDE_HELP = "Lines of text, CSV, TSV, JSONL or Parquet; .gz is unpacked."


def mine(
    model: ModelArgument,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=SIDE_HELP)],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="The other side, likewise; it may be the same table.")
    ],
    output: Annotated[
        Path, typer.Argument(metavar="OUT", help="Where to write: a .tsv, .csv, .jsonl or .parquet file.")
    ],
    threshold: Annotated[
        float | None,
        typer.Option(help="Leave out pairs with a lower score; at 1 they are as near as their neighbours."),
    ] = None,
    gold: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The true pairs, one a line: source_line and target_line, from 1, a header included. Tells precision, "
            "recall and F1, and chooses the threshold of the highest F1 where none is given.",
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many neighbours say what is near.")] = NEIGHBOURS,
    method: Annotated[
        Method,
        typer.Option(
            help="exact compares all with all, approximate goes through a graph; auto is exact up to 10¹¹ pairs."
        ),
    ] = "auto",
    source_column: Annotated[
        str | None,
        typer.Option(help="The column of SOURCE: its name, or its position from 0.", show_default="text, or the line"),
    ] = None,
    target_column: Annotated[
        str | None, typer.Option(help="The column of TARGET, likewise.", show_default="text, or the line")
    ] = None,
    file_format: Annotated[
        Format | None,
        typer.Option("--format", help="What SOURCE and TARGET are.", show_default="by their suffixes, else lines"),
    ] = None,
    header: HeaderOption = True,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep vectors and neighbours in OUT.work, for another threshold, say.")
    ] = False,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
    precision: PrecisionOption = "auto",
    batch_tokens: BatchOption = None,
    processes: Annotated[
        int | None,
        typer.Option("--processes", metavar="N", min=1, help="Encode in N processes: one for each GPU, say."),
    ] = None,
) -> None:
    """Find the sentences of SOURCE and TARGET that translate one another, each in one pair at most, best first.

    A pair's score is its cosine, divided by how near both are to their neighbours anyway (the ratio margin of
    Artetxe & Schwenk, 2019). Stop it whenever you like: the same command goes on from there.

    For example:

      bertrelay mine MODEL en.txt de.txt mined.tsv --threshold 1.1

      bertrelay mine MODEL en.txt de.txt mined.tsv --gold pairs.tsv
    """
    from bertrelay.data.sentences import check_first
    from bertrelay.files import check_output
    from pipelines.cli.sharing import shared
    from pipelines.launch import check_process_group

    process_group = check_process_group(processes)
    sides = table_of(source, source_column, file_format, header), table_of(target, target_column, file_format, header)
    true_pairs = None if gold is None else table_of(gold, None, None, True)
    check_model(model)
    check_output(output, MINED_SUFFIXES, *(table.path for table in (*sides, true_pairs) if table), overwrite=overwrite)
    for side in sides:
        check_first(side)
    with shared(process_group, processes):
        from students.bitext import mine_files

        mining = mine_files(
            model,
            *sides,
            output,
            k=k,
            threshold=threshold,
            gold=true_pairs,
            method=method,
            precision=precision,
            batch_tokens=batch_tokens,
            work=work_beside(output) if keep else None,
            process_group=process_group,
        )
    if process_group.is_main:
        echo(json.dumps({"output": str(output), **asdict(mining)}) if as_json else _text(mining, output))


def _text(mining: "Mining", output: Path) -> str:
    """How many pairs of how many sentences, and how good they are where there is gold."""
    first = f"{mining.pairs:,} pairs of {mining.sources:,} and {mining.targets:,} sentences in {output}"
    figures = {name: value for name, value in asdict(mining).items() if isinstance(value, float)}
    second = "  ".join(f"{name} {value:.4f}" for name, value in figures.items())
    return "\n".join(filter(None, [first, second]))
