"""Options of commands, which derive from settings; arguments, checks and output that commands share."""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from typer.core import TyperCommand, TyperGroup

from bertrelay.data.tables import Format, Table
from bertrelay.errors import RequestError
from bertrelay.process_group import ProcessGroup, joined
from bertrelay.progress import printable, working
from bertrelay.settings import ModelSource, Positive, Settings, no_model_folder
from pipelines.error_handling import stopping_at_once
from pipelines.hub import set_hub_access
from pipelines.launch import check_process_group, launch_again
from pipelines.settings_table import described
from pipelines.validation import explain

FLAGS = {"as_json": "--json", "processes": "--processes N", "page": "--html FILE"}
"""The option of a field where it is not `--field-name`, with the placeholder of its value in help."""
PANELS = {
    "Input": "column source_column target_column format header quoted prompt query_prompt max_rejects skip_invalid "
    "group ratings columns id_column text_column cleaned",
    "Output": "output output_format csv picture page admission with_text keep overwrite as_json",
    "Computation": "precision batch_tokens processes",
    "Cluster": "engine workers cpus_per_worker gpus_per_worker dashboard",
}
COLOURS = {"RUN": "green", "RESUME": "yellow", "SKIP": "bright_black"}
COLOURS |= {"good": "green", "warn": "yellow", "fail": "red"}
MODEL_HELP = "A model folder, a hub id (name or name@revision), or package:name/path."
DATASET_HELP = "or a dataset: FOLDER/, s3://BUCKET/FOLDER or NAME.lance."
BRACES = str.maketrans("", "", "{}")
FILE_HELP = "Lines of text, CSV, TSV, JSONL or Parquet; .gz is unpacked."

Fields = dict[str, Any]
"""Some fields of a settings class by name: `Annotated[Fields, MineSettings, "k", "threshold"]`."""

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def argument(metavar: str, text: str, **more: Any) -> Any:
    """A positional argument, with its help."""
    return typer.Argument(metavar=metavar, help=text, **more)


ModelArgument = Annotated[str, argument("MODEL", MODEL_HELP)]


class _PlainHelp:
    """Help without signs that nobody types: `{MODEL}` in the usage, and `<bool>` behind an option without a value."""

    def collect_usage_pieces(self, context: Any) -> list[str]:
        return [piece.translate(BRACES) for piece in super().collect_usage_pieces(context)]  # type: ignore[misc]

    def get_params(self, context: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(context)  # type: ignore[misc]
        for each in parameters:
            if getattr(each, "is_flag", False) and each.metavar is None:
                each.metavar = ""
        return parameters


class PlainCommand(_PlainHelp, TyperCommand):
    """A command with plain help."""


class PlainGroup(_PlainHelp, TyperGroup):
    """A group of commands with plain help."""


class TableOptions(Settings):
    """How a table is read.

    format: format of the input; by its suffix, else lines, when absent.
    header: whether a CSV or TSV begins with the names of its columns.
    quoted: whether fields of a TSV may stand in quotes, as those of a CSV do.
    """

    format: Format | None = None
    header: bool = True
    quoted: bool = False

    def table(self, source: str, columns: str | Sequence[str] | None = None) -> Table:
        """The table in the file `source`. Raises RequestError for a column that none can have."""
        names = [columns] if isinstance(columns, str) else columns or []
        places = [int(name) if name.isdecimal() else name for name in names] or None
        given = {"path": source, "format": self.format, "columns": places, "header": self.header}
        given["quoted"] = self.quoted
        try:
            return Table.model_validate(given)
        except ValidationError as error:
            raise RequestError(
                f"{source}: {explain(Table, error).removeprefix('path: ')}".removeprefix(": ")
            ) from error


class ColumnOptions(TableOptions):
    """How a table of one text is read.

    column: column of the text, by name, or by position from 0; `text`, or the line, when absent.
    """

    column: str | None = None


class JsonOption(Settings):
    """What is printed.

    as_json: print one JSON document and nothing else.
    """

    as_json: bool = False


class OutputOptions(JsonOption):
    """How a file is written.

    overwrite: replace an existing output file, which is an error otherwise.
    """

    overwrite: bool = False


class ProcessesOption(Settings):
    """Who shares the work.

    processes: processes: one for each GPU, or for some cores.
    """

    processes: Positive | None = None


class WorkOptions(ProcessesOption, OutputOptions):
    """How a file is written, by one process or several."""


def command(app: typer.Typer, names: Mapping[str, str] = {}, **more: Any) -> Callable[[AnyFunction], AnyFunction]:
    """Registers a function as a command, with options as in `with_options`. more: goes to Typer."""

    def register(function: AnyFunction) -> AnyFunction:
        app.command(cls=PlainCommand, **more)(with_options(function, names))
        return function

    return register


def with_options(function: Callable[..., Any], names: Mapping[str, str] = {}) -> Callable[..., None]:
    """`function` for Typer: a parameter that is a settings class, or `Fields` of one, becomes an option for each field.

    Type, default, limits and help of an option are those of the field. names: as in `FLAGS`.
    """
    plain: list[inspect.Parameter] = []
    groups: dict[str, tuple[type[Settings], list[str], bool]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind, *of = get_args(parameter.annotation) or [parameter.annotation]
        if kind == Fields:
            groups[name] = of[0], of[1:], False
        elif isinstance(kind, type) and issubclass(kind, Settings):
            groups[name] = kind, list(kind.model_fields), True
        else:
            plain.append(parameter)

    @wraps(function)
    def run(**given: Any) -> None:
        for name, (settings, fields, whole) in groups.items():
            values = {field: given.pop(field) for field in fields}
            given[name] = validated(settings, values) if whole else values
        function(**given)

    flags = {**FLAGS, **names}
    derived = [_parameter(settings, field, flags) for settings, fields, _ in groups.values() for field in fields]
    run.__signature__ = inspect.Signature([*plain, *derived])  # type: ignore[attr-defined]
    return run


def _parameter(settings: type[Settings], name: str, flags: Mapping[str, str]) -> inspect.Parameter:
    """The option of a field, as Typer reads it from a signature."""
    field = settings.model_fields[name]
    annotation, more = _plain(field.annotation, field.metadata)
    flag, _, metavar = flags.get(name, "").partition(" ")
    if not flag and annotation is bool and not field.default:
        flag = f"--{name.replace('_', '-')}"
    if metavar or Path in (annotation, *get_args(annotation)):
        more["metavar"] = metavar or "FILE"
    panel = next((panel for panel, fields in PANELS.items() if name in fields.split()), None)
    info = typer.Option(*filter(None, [flag]), help=described(settings).get(name, ""), rich_help_panel=panel, **more)
    default = inspect.Parameter.empty if field.is_required() else field.default
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, info]
    )


def _plain(annotation: Any, metadata: Sequence[Any] = ()) -> tuple[Any, dict[str, Any]]:
    """A type that Typer knows, and the limits of a number: of `Annotated[int, Field(ge=1)] | None` int and min 1."""
    limits: dict[str, Any] = {}
    for item in metadata:
        for limit in item.metadata if isinstance(item, FieldInfo) else [item]:
            ends = {"min": getattr(limit, "ge", None), "max": getattr(limit, "le", None)}
            limits |= {end: value for end, value in ends.items() if value is not None}
    kind, arguments = get_origin(annotation), get_args(annotation)
    if kind is Annotated or type(None) in arguments:
        inner, inner_limits = _plain(arguments[0], arguments[1:] if kind is Annotated else ())
        return inner if kind is Annotated else inner | None, {**limits, **inner_limits}
    if kind is list:
        return list[str], limits  # whose items the settings validate
    if kind in (Literal, tuple) or annotation in (bool, int, float, Path):
        return annotation, limits
    return str, limits  # a file, a model


def validated(settings: type[Settings], given: Mapping[str, Any], names: Mapping[str, str] = {}) -> Any:
    """`settings` from the values of a command. Raises RequestError for all that are invalid. names: as in `FLAGS`."""
    try:
        return settings.model_validate(dict(given))
    except ValidationError as error:
        raise RequestError(explain(settings, error, names)) from error


# The frame of a command that makes a file with a model: `check_request`, checks of its own input and output, its work
# in `distributed`, then `print_result`.


def check_request(model: str, processes: int | None = None, names_hub: bool = False) -> None:
    """Checks `--processes` and that a model folder exists; goes offline unless `model` is a hub id.

    names_hub: whether the request names something else of the hub. Raises RequestError.
    """
    check_process_group(processes)
    try:
        source = ModelSource.parse(model)
    except ValueError as error:
        raise RequestError(f"model: {error}") from error
    if source.stage_reference:
        raise RequestError(f"model: {model} is how recipes name a stage's output; here give its folder")
    if source.folder and not source.folder.is_dir():
        raise RequestError(f"model: {no_model_folder(source.folder, source.written)}")
    set_hub_access(names_hub=names_hub or source.folder is None)


@contextmanager
def distributed(processes: int | None) -> Iterator[ProcessGroup]:
    """The work of a command, in each process of the group; a single process starts `processes` new ones instead.

    Requests are checked before it, once; what loads torch is imported inside.
    """
    process_group = ProcessGroup.from_environment()
    if process_group.size == 1 and processes is not None and processes > 1:
        raise typer.Exit(launch_again(processes))
    with stopping_at_once(), joined(process_group):
        with working("loading"):
            import_module("transformers.modeling_utils")  # and torch, which all that follows needs
        yield process_group


def check_idle(given: Mapping[str, object], because: str) -> None:
    """Raises RequestError for those options, by their names, that have a value and no effect."""
    if idle := [name for name, value in given.items() if value]:
        raise RequestError(f"{', '.join(idle)}: without effect, because {because}. Leave it out.")


def print_result(result: Any, output: Path | str, as_json: bool = False) -> None:
    """The main process prints what was written to `output`: a named tuple or data class, as JSON or in a line."""
    if ProcessGroup.from_environment().is_main:
        values = result._asdict() if hasattr(result, "_asdict") else asdict(result)
        write_out(json.dumps({"output": str(output), **values}) if as_json else in_words(output, values))


def in_words(output: Path | str, values: Mapping[str, Any]) -> str:
    """`values.npy: 5 sentences, 16 dim`: counts, and what else is known; rates, zeros and what is not are left out."""
    words = []
    for name, value in values.items():
        for label, each in value.items() if isinstance(value, dict) else [(name.replace("_", " "), value)]:
            if not each or name.endswith("_per_second"):
                continue
            if each == 1 and name == label:
                label = "query" if label == "queries" else label.removesuffix("s")
            if name == "precision" and isinstance(each, str):
                words.append(f"computed in {each}")
            elif isinstance(each, float):
                words.append(f"{label} {each:.4f}")
            else:
                words.append(f"{each:,} {label}" if isinstance(each, int) else each)
    return f"{output}: {', '.join(words)}"


def write_out(message: str, nl: bool = True, coloured: bool = False) -> None:
    """Prints `message`, which may have text of a corpus, without control characters; JSON stays the same JSON.

    coloured: the first word, an action or a verdict, has its colour on a terminal.
    """
    word, space, rest = printable(message).partition(" ")
    if coloured and word in COLOURS:
        word = typer.style(word, fg=COLOURS[word])
    typer.echo(word + space + rest, nl=nl)
