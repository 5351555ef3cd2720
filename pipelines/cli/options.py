"""Arguments and options that several commands have, in the same words."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from bertrelay.data.tables import Format
from bertrelay.errors import RequestError
from bertrelay.hardware import Precision
from pipelines.cli.models import MODEL_HELP

if TYPE_CHECKING:
    from bertrelay.data.tables import Table

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
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
ProcessesOption = Annotated[
    int | None,
    typer.Option("--processes", metavar="N", min=1, help="Share the work: one for each GPU, or for some cores."),
]
WithTextOption = Annotated[
    bool,
    typer.Option("--with-text", help="Show text and ids of sensitive data too, where pages and checks do."),
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace an output file that is there already; without it that is an error.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


def table_of(source: str, column: str | Sequence[str] | None, file_format: Format | None, header: bool) -> "Table":
    """The table that the options of a command describe. Raises RequestError for a column that none can have."""
    from pydantic import ValidationError

    from bertrelay.data.tables import Table
    from pipelines.mistakes import told

    named = [column] if isinstance(column, str) else column
    columns = [int(each) if each.isdecimal() else each for each in named] if named else None
    try:
        return Table.model_validate({"path": source, "format": file_format, "columns": columns, "header": header})
    except ValidationError as error:
        raise RequestError(f"{source}: {told(Table, error).removeprefix('path: ')}".removeprefix(": ")) from error
