"""`bertrelay encode`: a file of sentences to a file of vectors."""

from pathlib import Path
from typing import Annotated

import typer

from bertrelay.errors import RequestError
from bertrelay.hardware import Precision
from bertrelay.tables import Format

MODEL_HELP = "A model folder, a hub id (name or name@revision), or package:name/path."


def encode(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="Lines of text, CSV, TSV, JSONL or Parquet; .gz is unpacked.")
    ],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Where to write: a .npy or a .parquet file.")],
    column: Annotated[
        str | None,
        typer.Option(
            help="The column of the text: its name, or its position from 0.", show_default="text, or the line"
        ),
    ] = None,
    file_format: Annotated[
        Format | None, typer.Option("--format", help="What INPUT is.", show_default="by its suffix, else lines")
    ] = None,
    header: Annotated[bool, typer.Option(help="Whether a CSV or TSV begins with the names of its columns.")] = True,
    precision: Annotated[
        Precision, typer.Option(help="auto is bf16 where the hardware computes in it, else fp32.")
    ] = "auto",
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens in a batch, padding included; less needs less memory.")
    ] = None,
) -> None:
    """Write the vector of every sentence in INPUT to OUTPUT, row i for sentence i.

    A file of any size works, in the same memory. Stopped, the same command goes on where it was.

    Example: bertrelay encode runs/multi30k/student/latest/model sentences.txt vectors.npy
    """
    from pydantic import ValidationError

    from bertrelay.encoder import SentenceEncoder
    from bertrelay.hardware import accelerator
    from bertrelay.records import Table
    from bertrelay.settings import InputFile
    from bertrelay.stage import World
    from bertrelay.vector_files import encode_file

    columns = None if column is None else [int(column) if column.isdecimal() else column]
    try:
        table = Table(path=InputFile.parse(source), format=file_format, columns=columns, header=header)
    except ValidationError as error:
        raise RequestError(f"{source}: {error.errors()[0]['msg']}") from error
    world = World.from_environment()
    encoder = SentenceEncoder.load(model).to(accelerator().device)
    rows = encode_file(encoder, table, output, precision=precision, batch_tokens=batch_tokens, world=world)
    if world.is_main:
        typer.echo(f"{rows:,} vectors of {encoder.dim} dimensions in {output}")
