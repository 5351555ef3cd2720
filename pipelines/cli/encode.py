"""`bertrelay encode`: a file of sentences to a file of vectors."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertrelay.errors import RequestError
from bertrelay.hardware import Precision
from bertrelay.tables import Format
from pipelines.cli.models import MODEL_HELP, check_model

if TYPE_CHECKING:
    from bertrelay.tables import Table

ColumnOption = Annotated[
    str | None,
    typer.Option(help="The column of the text: its name, or its position from 0.", show_default="text, or the line"),
]
FormatOption = Annotated[
    Format | None, typer.Option("--format", help="What the input is.", show_default="by its suffix, else lines")
]
HeaderOption = Annotated[bool, typer.Option(help="Whether a CSV or TSV begins with the names of its columns.")]
PromptOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Put this one of the model's prompts before each sentence.", show_default="the model's own"
    ),
]
PrecisionOption = Annotated[Precision, typer.Option(help="auto is bf16 where the hardware computes in it, else fp32.")]
BatchOption = Annotated[
    int | None, typer.Option(min=1, help="Most tokens in a batch, padding included; less needs less memory.")
]


def encode(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="Lines of text, CSV, TSV, JSONL or Parquet; .gz is unpacked.")
    ],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Where to write: a .npy or a .parquet file.")],
    column: ColumnOption = None,
    file_format: FormatOption = None,
    header: HeaderOption = True,
    prompt: PromptOption = None,
    precision: PrecisionOption = "auto",
    batch_tokens: BatchOption = None,
    processes: Annotated[
        int | None,
        typer.Option("--processes", metavar="N", min=1, help="Share the work: one for each GPU, or for some cores."),
    ] = None,
) -> None:
    """Write the vector of every sentence in INPUT to OUTPUT, row i for sentence i.

    A file of any size works, in the same memory. Stop it whenever you like: the same command goes on from there.

    For example:

      bertrelay encode runs/multi30k/student/latest/model sentences.txt vectors.npy

      bertrelay encode MODEL table.tsv vectors.parquet --column text --processes 2
    """
    from bertrelay.outputs import check_output
    from bertrelay.sentence_files import check_first
    from bertrelay.vector_outputs import SUFFIXES
    from pipelines.cli.sharing import shared
    from pipelines.launch import check_world

    world = check_world(processes)
    table = table_of(source, column, file_format, header)
    check_model(model)
    check_output(output, SUFFIXES, source)
    check_first(table)
    with shared(world, processes):
        from bertrelay.vector_files import encode_file

        encoded = encode_file(
            model, table, output, prompt_name=prompt, precision=precision, batch_tokens=batch_tokens, world=world
        )
    if world.is_main:
        typer.echo(f"{encoded.sentences:,} vectors of {encoded.dim} dimensions in {output}")


def table_of(source: str, column: str | Sequence[str] | None, file_format: Format | None, header: bool) -> "Table":
    """The table that the options of a command describe. Raises RequestError for a column that none can have."""
    from pydantic import ValidationError

    from bertrelay.tables import Table
    from pipelines.mistakes import told

    named = [column] if isinstance(column, str) else column
    columns = [int(each) if each.isdecimal() else each for each in named] if named else None
    try:
        return Table.model_validate({"path": source, "format": file_format, "columns": columns, "header": header})
    except ValidationError as error:
        raise RequestError(f"{source}: {told(Table, error).removeprefix('path: ')}".removeprefix(": ")) from error
