"""Options of commands: those of a stage derive from its settings; arguments and checks that commands share."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from bertrelay.data.tables import Format
from bertrelay.distributed import ProcessGroup, joined
from bertrelay.errors import RequestError
from bertrelay.progress import printable
from bertrelay.settings import ModelSource, Settings, no_model_folder
from pipelines.error_handling import stopping_at_once
from pipelines.hub import set_hub_access
from pipelines.launch import launch_again
from pipelines.settings_table import described
from pipelines.validation import explain

if TYPE_CHECKING:
    from bertrelay.data.tables import Table

INPUT, OUTPUT, COMPUTATION = "Input", "Output", "Computation"
PANELS = {"precision": COMPUTATION, "batch_tokens": COMPUTATION, "prompt": INPUT, "max_rejects": INPUT}
PANELS |= {"with_text": OUTPUT, "format": INPUT}
MODEL_HELP = "A model folder, a hub id (name or name@revision), or package:name/path."
FILE_HELP = "Lines of text, CSV, TSV, JSONL or Parquet; .gz is unpacked."
AS_COLUMN = "By name, or by position from 0."
COLOURS = {
    "RUN": typer.colors.GREEN,
    "RESUME": typer.colors.YELLOW,
    "SKIP": typer.colors.BRIGHT_BLACK,
    "good": typer.colors.GREEN,
    "warn": typer.colors.YELLOW,
    "fail": typer.colors.RED,
}

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def option(*names: str, help: str, panel: str | None = None, **more: Any) -> Any:  # noqa: A002
    """An option that belongs to a command and not to a stage."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
ColumnOption = Annotated[
    str | None, option(help=f"Column of the text. {AS_COLUMN}", panel=INPUT, show_default="text, or the line")
]
FormatOption = Annotated[
    Format | None, option("--format", help="Format of the input.", panel=INPUT, show_default="by suffix, else lines")
]
HeaderOption = Annotated[bool, option(help="Whether a CSV or TSV begins with the names of its columns.", panel=INPUT)]
ProcessesOption = Annotated[
    int | None,
    option(
        "--processes", metavar="N", min=1, help="Processes: one for each GPU, or for some cores.", panel=COMPUTATION
    ),
]
OverwriteOption = Annotated[
    bool, option("--overwrite", help="Replace an existing output file, which is an error otherwise.", panel=OUTPUT)
]
JsonOption = Annotated[bool, option("--json", help="Print one JSON document and nothing else.", panel=OUTPUT)]


def command(
    app: typer.Typer, settings: type[Settings] = Settings, *fields: str, names: Mapping[str, str] = {}, **more: Any
) -> Callable[[AnyFunction], AnyFunction]:
    """Registers a function as a command, whose `**options` become the options of `fields` of `settings`.

    Type, default, limits and help of such an option are those of the field. names: the option of a field where it is
    not `--field-name`. more: goes to Typer.
    """

    def register(function: AnyFunction) -> AnyFunction:
        @wraps(function)
        def run(**given: Any) -> None:
            function(**given)

        own = inspect.signature(function).parameters.values()
        derived = [_parameter(settings, field, names.get(field)) for field in fields]
        kept = [parameter for parameter in own if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
        run.__signature__ = inspect.Signature([*kept, *derived])  # type: ignore[attr-defined]
        app.command(**more)(run)
        return function

    return register


def _parameter(settings: type[Settings], name: str, flag: str | None) -> inspect.Parameter:
    """The option of a field, as Typer reads it from a signature."""
    field = settings.model_fields[name]
    annotation, limits = _plain(field.annotation, field.metadata)
    flags = [flag] if flag else [f"--{name.replace('_', '-')}"] if annotation is bool and not field.default else []
    info = option(*flags, help=described(settings).get(name, ""), panel=PANELS.get(name), **limits)
    default = inspect.Parameter.empty if field.is_required() else field.default
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, info]
    )


def _plain(annotation: Any, metadata: Sequence[Any] = ()) -> tuple[Any, dict[str, float]]:
    """A type that Typer knows, and the limits of a number: of `Annotated[int, Field(ge=1)] | None` int and min 1."""
    limits = {
        end: value
        for item in metadata
        for each in (item.metadata if isinstance(item, FieldInfo) else [item])
        for end, key in (("min", "ge"), ("max", "le"))
        if (value := getattr(each, key, None)) is not None
    }
    kind, arguments = get_origin(annotation), get_args(annotation)
    if kind is Annotated:
        inner, found = _plain(arguments[0], arguments[1:])
        return inner, {**limits, **found}
    if type(None) in arguments:
        inner, found = _plain(arguments[0])
        return inner | None, {**limits, **found}
    if kind is list:
        return list[str], limits  # whose items the settings validate
    if kind is Literal or annotation in (bool, int, float, Path):
        return annotation, limits
    return str, limits  # a file, a model


def validated(settings: type[Settings], given: Mapping[str, Any]) -> Any:
    """`settings` from the values of a command. Raises RequestError for all that are invalid."""
    try:
        return settings.model_validate(dict(given))
    except ValidationError as error:
        raise RequestError(explain(settings, error)) from error


def table_of(
    source: str, column: str | Sequence[str] | None = None, file_format: Format | None = None, header: bool = True
) -> "Table":
    """The table that the options of a command describe. Raises RequestError for a column that none can have."""
    from bertrelay.data.tables import Table

    named = [column] if isinstance(column, str) else column
    columns = [int(each) if each.isdecimal() else each for each in named] if named else None
    try:
        return Table.model_validate({"path": source, "format": file_format, "columns": columns, "header": header})
    except ValidationError as error:
        raise RequestError(f"{source}: {explain(Table, error).removeprefix('path: ')}".removeprefix(": ")) from error


def check_model(model: str) -> None:
    """Checks that a folder exists, and goes offline unless `model` is a hub id. Raises RequestError."""
    try:
        source = ModelSource.parse(model)
    except ValueError as error:
        raise RequestError(f"model: {error}") from error
    if source.stage_reference:
        raise RequestError(f"model: {model} is how recipes name a stage's output; here give its folder")
    if source.folder and not source.folder.is_dir():
        raise RequestError(f"model: {no_model_folder(source.folder)}")
    set_hub_access(names_hub=source.folder is None)


@contextmanager
def distributed(process_group: ProcessGroup, processes: int | None) -> Iterator[None]:
    """The work of a command, in each process of the group; a single process starts `processes` new ones instead.

    Requests are checked before it, once; what loads torch is imported inside.
    """
    if process_group.size == 1 and processes is not None and processes > 1:
        raise typer.Exit(launch_again(processes))
    with stopping_at_once(), joined(process_group):
        yield


def write_out(message: str, nl: bool = True, coloured: bool = False) -> None:
    """Prints `message`, which may hold text of a corpus, without control characters; JSON stays the same JSON.

    coloured: the first word, an action or a verdict, has its colour on a terminal.
    """
    word, space, rest = printable(message).partition(" ")
    if coloured and word in COLOURS:
        word = typer.style(word, fg=COLOURS[word])
    typer.echo(word + space + rest, nl=nl)
