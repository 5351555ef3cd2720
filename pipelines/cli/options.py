"""Options of commands, which derive from settings; arguments, checks and output that commands share."""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args, get_origin

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from typer.core import TyperCommand, TyperGroup

from bertrelay.data.tables import Format, Table
from bertrelay.errors import RequestError
from bertrelay.process_group import ProcessGroup, join_processes
from bertrelay.progress import printable, spinner
from bertrelay.settings import ModelSource, Positive, Settings, no_model_folder
from domain.checks import Finding, exit_code, findings_json, report
from pipelines.recipe.settings_table import help_texts
from pipelines.recipe.validation import explain
from pipelines.run.errors import stopping_at_once
from pipelines.run.hub import set_hub_access
from pipelines.run.launch import check_process_group, launch_again

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
DATASET_HELP = "or a dataset: FOLDER/ or s3://BUCKET/FOLDER."
BRACES = str.maketrans("", "", "{}")
FILE_HELP = "Lines of text, CSV, TSV, JSONL or Parquet; .gz is unpacked. - is standard input."

Fields = dict[str, Any]
"""Values of some fields of a settings class, by name: `Annotated[Fields, MineSettings, "k", "threshold"]`."""

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def argument(metavar: str, text: str, show_default: bool = True) -> Any:
    """A positional argument, with its help."""
    return typer.Argument(metavar=metavar, help=text, show_default=show_default)


ModelArgument = Annotated[str, argument("MODEL", MODEL_HELP)]


class _PlainHelp:
    """Help without signs that nobody types: `{MODEL}` in the usage, and `<bool>` behind an option without a value.

    The texts of settings are read when help is shown, because that takes longer than all else a command does first.
    """

    def format_help(self, context: Any, formatter: Any) -> None:
        texts = self.callback.help_texts() if hasattr(self.callback, "help_texts") else {}  # type: ignore[attr-defined]
        for parameter in self.params:  # type: ignore[attr-defined]
            parameter.help = texts.get(parameter.name, parameter.help)
        super().format_help(context, formatter)  # type: ignore[misc]

    def collect_usage_pieces(self, context: Any) -> list[str]:
        return [piece.translate(BRACES) for piece in super().collect_usage_pieces(context)]  # type: ignore[misc]

    def get_params(self, context: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(context)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False) and parameter.metavar is None:
                parameter.metavar = ""
        return parameters


class PlainCommand(_PlainHelp, TyperCommand):
    """A command with plain help."""


class PlainGroup(_PlainHelp, TyperGroup):
    """A group of commands with plain help."""


class TableOptions(Settings):
    """Options of reading a table."""

    format: Format | None = None
    """Format of the input; by its suffix, else lines, when absent."""
    header: bool = True
    """A CSV or TSV begins with the names of its columns."""
    quoted: bool = False
    """Fields of a TSV may stand in quotes, as those of a CSV do."""

    def table(self, source: str, columns: str | Sequence[str] | None = None) -> Table:
        """The table in the file `source`. Raises RequestError for a column that no table can have.

        columns: names, or positions from 0 in digits.
        """
        names = [columns] if isinstance(columns, str) else columns or []
        positions = [int(name) if name.isdecimal() else name for name in names] or None
        reading = {"format": self.format, "header": self.header, "quoted": self.quoted}
        try:
            return Table.model_validate({"path": source, "columns": positions, **reading})
        except ValidationError as error:
            raise RequestError(
                f"{source}: {explain(Table, error).removeprefix('path: ')}".removeprefix(": ")
            ) from error


class ColumnOptions(TableOptions):
    """Options of reading a table of one text."""

    column: str | None = None
    """Column of the text, by name, or by position from 0; `text`, or the line, when absent."""


class JsonOption(Settings):
    """Form of what is printed."""

    as_json: bool = False
    """Print one JSON document and nothing else: its keys are command, output and result."""


class OutputOptions(JsonOption):
    """Options of writing a file."""

    overwrite: bool = False
    """Replace an existing output file, which is an error otherwise."""


class ProcessesOption(Settings):
    """Processes that share the work."""

    processes: Positive | None = None
    """Number of processes: one for each GPU, or for some cores."""


class WorkOptions(ProcessesOption, OutputOptions):
    """Options of writing a file, by one process or several."""


def command(
    app: typer.Typer,
    names: Mapping[str, str] = {},
    *,
    name: str | None = None,
    text: str | None = None,
    rich_help_panel: str | None = None,
) -> Callable[[AnyFunction], AnyFunction]:
    """Registers a function as a command, with options as in `with_options`.

    name, text: of the command and of its help; the function's name and docstring when absent.
    """

    def register(function: AnyFunction) -> AnyFunction:
        add = app.command(name, cls=PlainCommand, help=text, rich_help_panel=rich_help_panel)
        add(with_options(function, names))
        return function

    return register


def with_options(function: Callable[..., Any], names: Mapping[str, str] = {}) -> Callable[..., None]:
    """`function` for Typer: a parameter that is a settings class, or `Fields` of one, becomes an option for each field.

    Type, default, limits and help of an option are those of the field. names: as in `FLAGS`.
    Example: `def mine(model: str, options: Annotated[Fields, MineSettings, "k"], table: TableOptions)` becomes a
    command with the options --k, --format, --header and --quoted, and is called with `{"k": 4}` and a `TableOptions`.
    """
    plain: list[inspect.Parameter] = []
    groups: dict[str, tuple[type[Settings], list[str], bool]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind, *metadata = get_args(parameter.annotation) or [parameter.annotation]
        if kind == Fields:
            groups[name] = metadata[0], metadata[1:], False
        elif isinstance(kind, type) and issubclass(kind, Settings):
            groups[name] = kind, list(kind.model_fields), True
        else:
            plain.append(parameter)

    @wraps(function)
    def _run(**arguments: Any) -> None:
        for name, (settings, fields, whole) in groups.items():
            values = {field: arguments.pop(field) for field in fields}
            arguments[name] = validated(settings, values) if whole else values
        function(**arguments)

    def texts() -> dict[str, str]:
        return {field: help_texts(settings)[field] for settings, fields, _ in groups.values() for field in fields}

    flags = {**FLAGS, **names}
    derived = [_parameter(settings, field, flags) for settings, fields, _ in groups.values() for field in fields]
    _run.help_texts = texts  # type: ignore[attr-defined]
    _run.__signature__ = inspect.Signature([*plain, *derived])  # type: ignore[attr-defined]
    return _run


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
    info = typer.Option(*filter(None, [flag]), rich_help_panel=panel, **more)
    default = inspect.Parameter.empty if field.is_required() else field.default
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, info]
    )


def _plain(annotation: Any, metadata: Sequence[Any] = ()) -> tuple[Any, dict[str, Any]]:
    """A type that Typer knows, and the limits of a number: `Annotated[int, Field(ge=1)] | None` → int | None, min 1."""
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
        return list[str], limits  # the settings validate the items
    if kind in (Literal, tuple) or annotation in (bool, int, float, Path):
        return annotation, limits
    return str, limits  # a file, a model


def validated(settings: type[Settings], values: Mapping[str, Any], names: Mapping[str, str] = {}) -> Any:
    """`settings` from the values of a command. Raises RequestError for all that are invalid. names: as in `FLAGS`."""
    try:
        return settings.model_validate(dict(values))
    except ValidationError as error:
        raise RequestError(explain(settings, error, names)) from error


def check_request(model: str, processes: int | None = None, names_hub: bool = False) -> None:
    """Checks `--processes` and that a model folder exists; goes offline unless `model` is a hub id.

    The first step of a command that makes a file with a model; then come checks of its input and output, its work in
    `distributed`, and `print_result`.
    names_hub: the request names something else of the hub. Raises RequestError.
    """
    check_process_group(processes)
    try:
        source = ModelSource.parse(model)
    except ValueError as error:
        raise RequestError(f"model: {error}") from error
    if source.stage_reference:
        raise RequestError(f"model: expected a folder or hub id, found {model}, which recipes use; give its folder")
    if source.folder and not source.folder.is_dir():
        raise RequestError(f"model: {no_model_folder(source.folder, source.written)}")
    set_hub_access(names_hub=names_hub or source.folder is None)


@contextmanager
def distributed(processes: int | None) -> Iterator[ProcessGroup]:
    """Joins the process group for the work of a command; a single process starts `processes` new ones instead.

    Check requests before it, once, and import modules that load torch inside.
    """
    process_group = ProcessGroup.from_environment()
    if process_group.size == 1 and processes is not None and processes > 1:
        raise typer.Exit(launch_again(processes))
    with stopping_at_once(), join_processes(process_group):
        with spinner("loading"):
            import_module("transformers.modeling_utils")  # and torch
        yield process_group


def check_idle(values: Mapping[str, object], because: str) -> None:
    """Raises RequestError for the options, by their names, that have a value and no effect."""
    if idle := [name for name, value in values.items() if value]:
        raise RequestError(f"{', '.join(idle)}: without effect, because {because}. Leave it out.")


def print_result(command: str, result: Any, output: Path | str, as_json: bool = False) -> None:
    """The main process prints the counts of what was written to `output`, as one JSON document or in a line.

    command: its words, such as `ner tag`. result: a named tuple or data class.
    """
    if ProcessGroup.from_environment().is_main:
        values = result._asdict() if hasattr(result, "_asdict") else asdict(result)
        if as_json:
            print_document(command, values, output)
        else:
            write_out(in_words(output, values))


def print_document(command: str, result: Mapping[str, Any], output: Path | str | None = None) -> None:
    """Prints the one JSON document of `--json`, whose keys are the same for all commands.

    output: the file or folder that was written; None where there is none.
    """
    document = {"command": command, "output": None if output is None else str(output), "result": result}
    write_out(json.dumps(document, ensure_ascii=False))


def print_findings(
    command: str, findings: Sequence[Finding], as_json: bool, files: Mapping[Any, Path] | None = None
) -> NoReturn:
    """Prints the findings of a check of data and ends the command: with 1 when something fails.

    files: the file of each split, where they are known by their split.
    """
    paths = {split: str(path) for split, path in (files or {}).items()}
    if as_json:
        print_document(command, {**({"files": paths} if paths else {}), **findings_json(findings)})
    else:
        for split, path in paths.items():
            write_out(f"{split:5}  {path}")
        for line in report(findings):
            write_out(line, coloured=True)
    raise typer.Exit(exit_code(findings))


def in_words(output: Path | str, values: Mapping[str, Any]) -> str:
    """`values.npy: 5 sentences, 16 dim`: counts and other results; rates, zeros and absent ones are left out."""
    words = []
    for name, value in values.items():
        for label, result in value.items() if isinstance(value, dict) else [(name.replace("_", " "), value)]:
            if not result or name.endswith("_per_second"):
                continue
            if result == 1 and name == label:
                label = "query" if label == "queries" else label.removesuffix("s")
            if name == "precision" and isinstance(result, str):
                words.append(f"computed in {result}")
            elif isinstance(result, float):
                words.append(f"{label} {result:.4f}")
            else:
                words.append(f"{result:,} {label}" if isinstance(result, int) else result)
    return f"{output}: {', '.join(words)}"


def write_out(message: str, nl: bool = True, coloured: bool = False) -> None:
    """Prints `message`, which may have text of a corpus, without control characters; JSON stays the same JSON.

    coloured: give the first word, an action or a verdict, its colour on a terminal.
    """
    word, space, rest = printable(message).partition(" ")
    if coloured and word in COLOURS:
        word = typer.style(word, fg=COLOURS[word])
    typer.echo(word + space + rest, nl=nl)
