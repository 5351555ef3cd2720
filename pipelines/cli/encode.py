"""`bertrelay encode`: a file of sentences to a file of vectors."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.echo import echo
from pipelines.cli.models import check_model
from pipelines.cli.options import (
    BatchOption,
    ColumnOption,
    FormatOption,
    HeaderOption,
    ModelArgument,
    OverwriteOption,
    PrecisionOption,
    ProcessesOption,
    PromptOption,
    table_of,
)
from pipelines.cli.stdin import input_file


def encode(
    model: ModelArgument,
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT", help="Lines of text, CSV, TSV, JSONL or Parquet; .gz is unpacked. - is standard input."
        ),
    ],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Where to write: a .npy or a .parquet file.")],
    column: ColumnOption = None,
    file_format: FormatOption = None,
    header: HeaderOption = True,
    prompt: PromptOption = None,
    overwrite: OverwriteOption = False,
    precision: PrecisionOption = "auto",
    batch_tokens: BatchOption = None,
    processes: ProcessesOption = None,
    skip_invalid: Annotated[
        bool,
        typer.Option("--skip-invalid", help="Leave out records that cannot be used, listed in OUTPUT.rejects.jsonl."),
    ] = False,
) -> None:
    """Write the vector of every sentence in INPUT to OUTPUT, row i for sentence i.

    A file of any size works, in the same memory. Stop it whenever you like: the same command goes on from there.

    For example:

      bertrelay encode runs/multi30k/student/latest/model sentences.txt vectors.npy

      bertrelay encode MODEL table.tsv vectors.parquet --column text --processes 2

      zcat table.csv.gz | bertrelay encode MODEL - vectors.npy --format csv
    """
    from bertrelay.data.records import Rejects
    from bertrelay.data.sentences import check_first
    from bertrelay.data.vectors import SUFFIXES
    from bertrelay.files import check_output
    from pipelines.cli.sharing import shared
    from pipelines.launch import check_process_group

    process_group = check_process_group(processes)
    check_model(model)
    check_output(output, SUFFIXES, source, overwrite=overwrite)
    with input_file(source, output) as name:
        table = table_of(name, column, file_format, header)
        check_first(table, Rejects(None, limit=1.0) if skip_invalid else None)
        listed = output.with_name(f"{output.name}.rejects.jsonl")
        rejects = Rejects(listed, limit=1.0) if skip_invalid else None
        with shared(process_group, processes):
            from bertrelay.encode_files import encode_file

            encoded = encode_file(
                model,
                table,
                output,
                prompt_name=prompt,
                precision=precision,
                batch_tokens=batch_tokens,
                rejects=rejects,
                process_group=process_group,
            )
    if process_group.is_main:
        echo(f"{encoded.sentences:,} vectors of {encoded.dim} dimensions in {output}")
        if rejects is not None:
            _report_left_out(rejects.counts.total(), listed)


def _report_left_out(count: int, listed: Path) -> None:
    if count:
        echo(f"left out: {count:,} unusable, listed in {listed}")
    else:
        listed.unlink()
