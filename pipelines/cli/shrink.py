"""`bertrelay shrink`: a model with fewer pieces, layers or dimensions, and what it costs and brings."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertrelay.data.tables import Format
from bertrelay.errors import RequestError
from pipelines.cli.echo import echo
from pipelines.cli.models import check_model
from pipelines.cli.options import HeaderOption, JsonOption, ModelArgument, PrecisionOption, table_of
from pipelines.scores import figures

if TYPE_CHECKING:
    from bertrelay.stage import Metrics

FIGURES = "shrink.json"
FIGURE_WIDTH = 12
SIDES = ("before", "after")


def shrink(
    model: ModelArgument,
    corpus: Annotated[
        list[str],
        typer.Argument(
            metavar="CORPUS",
            help="Text in the languages the model is for: lines, CSV, TSV, JSONL or Parquet; .gz is unpacked.",
        ),
    ],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The folder of the smaller model, not there yet.")],
    layers: Annotated[
        int | None,
        typer.Option(min=1, help="Keep so many layers, evenly spread, first and last among them.", show_default="all"),
    ] = None,
    dimensions: Annotated[
        int | None, typer.Option(min=1, help="Keep so many dimensions of a vector.", show_default="all")
    ] = None,
    trim: Annotated[bool, typer.Option(help="Leave out the pieces of the vocabulary that CORPUS does not use.")] = True,
    sts: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Score both on this table: sentence1, sentence2, score. May be repeated."),
    ] = None,
    parallel: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LANGUAGE=FILES",
            help="Tell the translation accuracy of both: de=ENGLISH,GERMAN names two aligned files, de=TABLE a table "
            "with the columns en and de. May be repeated.",
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            help="The column of text in CORPUS, by name or position from 0. May be repeated.",
            show_default="text, or the line",
        ),
    ] = None,
    file_format: Annotated[
        Format | None, typer.Option("--format", help="What CORPUS is.", show_default="by its suffix, else lines")
    ] = None,
    header: HeaderOption = True,
    as_json: JsonOption = False,
    precision: PrecisionOption = "auto",
) -> None:
    """Make a model smaller, and tell its size, speed and scores before and after.

    Trimming the vocabulary changes no vector of CORPUS, and no other text turns unknown.

    Fewer layers or dimensions do change vectors. A recipe can teach the model again: `students.distill`, `base = OUT`.

    For example:

      bertrelay shrink MODEL english.txt german.txt small

      bertrelay shrink MODEL table.csv smaller --layers 4 --dimensions 128 --sts test.csv
    """
    from bertrelay.data.sentences import check_first

    columns: list[str | None] = [*column] if column else [None]
    tables = [table_of(each, name, file_format, header) for each in corpus for name in columns]
    check_model(model)
    _check_output(output)
    for table in tables:
        check_first(table)
    settings = {
        "corpus": tables,
        "trim_vocabulary": trim,
        "layers": layers,
        "dimensions": dimensions,
        "sts": _named(sts or [], header),
        "parallel": [_translations(each) for each in parallel or []],
        "precision": precision,
    }
    metrics = _shrunk(model, settings, output)
    echo(json.dumps({"output": str(output), **metrics}) if as_json else "\n".join(_lines(metrics, output)))


def _check_output(output: Path) -> None:
    if output.exists():
        raise RequestError(f"OUT: expected a folder that is not there yet, found {output}; name another")
    if not output.absolute().parent.is_dir():
        raise RequestError(f"OUT: there is no folder {output.parent} to make {output.name} in; make it first")


def _named(sts: list[str], header: bool) -> dict[str, dict[str, Any]]:
    """The STS tables by the first words of their names."""
    named = {Path(each).name.partition(".")[0]: {"path": each, "header": header} for each in sts}
    if len(named) < len(sts):
        raise RequestError("--sts: expected files with different names, by which their scores go, found two of one")
    return named


def _translations(given: str) -> dict[str, Any]:
    """A parallel source as a recipe writes it."""
    language, _, names = given.partition("=")
    match names.split(","):
        case [english, other] if english and other:
            return {"english": english, "other": other, "language": language}
        case [table] if table:
            return {"path": table, "others": {language: language}}
    raise RequestError(f"--parallel: expected LANGUAGE=ENGLISH,OTHER or LANGUAGE=TABLE, found {given}")


def _shrunk(model: str, settings: dict[str, Any], output: Path) -> "Metrics":
    """Does the work of the stage beside `output`, which appears when all of it is done."""
    from pydantic import ValidationError

    from bertrelay.backbone import model_folder
    from bertrelay.files import write_json
    from bertrelay.settings import ModelSource
    from bertrelay.stage import StageContext
    from pipelines.mistakes import told
    from pipelines.trouble import stopping_at_once
    from students.settings import ShrinkSettings
    from students.shrinking import run

    try:
        checked = ShrinkSettings.model_validate({**settings, "model": model})
    except ValidationError as error:
        raise RequestError(told(ShrinkSettings, error)) from error
    located = checked.model_copy(update={"model": ModelSource.parse(str(model_folder(model).resolve()))})
    with (
        stopping_at_once("nothing is left of it"),
        tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.absolute().parent) as name,
    ):
        building = Path(name)
        metrics = run(located, StageContext(building, building / "cache"))
        write_json(building / "model" / FIGURES, metrics)
        (building / "model").rename(output)
    return metrics


def _lines(metrics: "Metrics", output: Path) -> Iterator[str]:
    """The figures before and after side by side, and how far vectors moved."""
    told = figures(metrics)
    befores = [name for name in told if "before" in name.split("/")]
    rows = [["", *SIDES], *([_bare(name), *(str(told[_of(name, side)]) for side in SIDES)] for name in befores)]
    width = max(len(name) for name, *_ in rows)
    yield from (f"{name:{width}}  {before:>{FIGURE_WIDTH}}  {after:>{FIGURE_WIDTH}}" for name, before, after in rows)
    yield f"cosine to the vectors before: mean {metrics['cosine_mean']:.5f}, lowest {metrics['cosine_min']:.5f}"
    yield f"model   {output}"


def _of(name: str, side: str) -> str:
    return "/".join(side if part == "before" else part for part in name.split("/"))


def _bare(name: str) -> str:
    return "/".join(part for part in name.split("/") if part != "before")
