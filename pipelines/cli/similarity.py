"""`bertrelay similarity`: pairs or a matrix, as text, JSON, CSV or a heat map, written block by block."""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertrelay.data.tables import on_one_line
from bertrelay.encoder_settings import EncodeSettings, Metric
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, write_error
from bertrelay.progress import Bar, log, progress
from pipelines.cli.options import (
    AS_COLUMN,
    INPUT,
    OUTPUT,
    FormatOption,
    HeaderOption,
    JsonOption,
    ModelArgument,
    OverwriteOption,
    check_model,
    command,
    option,
    table_of,
    write_out,
)
from pipelines.cli.stdin import DASH, NAME, input_file

if TYPE_CHECKING:
    from bertrelay.data.tables import Table
    from bertrelay.encoder import SentenceEncoder
    from bertrelay.evaluation.similarity import Compared

PANEL = "Sentences"
LABEL_COLUMNS = 60
ENOUGH_FOR_PROGRESS = 1_000
LONGEST_NAME = 255  # bytes; of a longer one the system reports that, and not that there is no such file
DIGITS = 6
"""Decimals of a figure in JSON and CSV: beyond them float32 makes a cosine of equal sentences 1.0000001."""

TITLES = {
    "cosine": "Cosine similarity",
    "dot": "Dot product",
    "euclidean": "Euclidean distance, negative",
    "manhattan": "Manhattan distance, negative",
}

comparing = typer.Typer()

Write = Callable[["Compared"], None]
Writer = AbstractContextManager[Write]


@dataclass(frozen=True)
class Outputs:
    """What is written: one JSON document, files of CSV and of a picture, or else text."""

    json: bool = False
    csv: Path | None = None
    picture: Path | None = None

    @property
    def text(self) -> bool:
        return not (self.json or self.csv or self.picture)

    @property
    def on_standard_output(self) -> bool:
        return self.text or self.json


def pairs_writers(outputs: Outputs, model: str, metric: str) -> Iterator[Writer]:
    """All that writes pairs."""
    if outputs.text:
        yield _pairs_text()
    if outputs.json:
        yield _json_document({"model": model, "metric": metric}, "pairs")
    if outputs.csv:
        yield _csv_file(outputs.csv, None)


def matrix_writers(
    outputs: Outputs, model: str, metric: str, rows: Sequence[str], columns: Sequence[str]
) -> Iterator[Writer]:
    """All that writes a matrix; `columns` is `rows` where sentences are compared with themselves."""
    if outputs.text:
        yield _matrix_text(columns, columns is rows)
    if outputs.json:
        yield _json_document({"model": model, "metric": metric, "rows": rows, "columns": columns}, "matrix")
    if outputs.csv:
        yield _csv_file(outputs.csv, columns)
    if outputs.picture:
        yield _picture_file(outputs.picture, rows, columns, TITLES[metric])


@contextmanager
def _pairs_text() -> Iterator[Write]:
    """A line for each pair: similarity and sentences, with tabs between."""

    def write(block: "Compared") -> None:
        for value, first, second in zip(block.similarity, block.first, block.second, strict=True):
            write_out(f"{value:.4f}\t{on_one_line(first)}\t{on_one_line(second)}")

    yield write


@contextmanager
def _matrix_text(columns: Sequence[str], is_of_itself: bool) -> Iterator[Write]:
    """Numbered columns, each row with its sentence; the columns' sentences below, where they are others."""
    write_out(" ".join(f"{number:>9}" for number in range(1, len(columns) + 1)))
    row = 0

    def write(block: "Compared") -> None:
        nonlocal row
        for sentence, values in zip(block.first, block.similarity, strict=True):
            row += 1
            write_out(" ".join(f"{value:>9.4f}" for value in values) + f"  {row:>4}  {_short(sentence)}")

    yield write
    if not is_of_itself:
        write_out("")
        for number, sentence in enumerate(columns, 1):
            write_out(f"{number:>9}  {_short(sentence)}")


@contextmanager
def _json_document(head: dict[str, Any], name: str) -> Iterator[Write]:
    """One document on standard output: `head`, and under `name` a list of the pairs, or of the matrix's rows."""
    write_out(json.dumps(head, ensure_ascii=False)[:-1] + f', "{name}": [', nl=False)
    between = ""

    def write(block: "Compared") -> None:
        nonlocal between
        for item in _items(block):
            write_out(between + json.dumps(item, ensure_ascii=False), nl=False)
            between = ", "

    yield write
    write_out("]}")


def _items(block: "Compared") -> Iterator[Any]:
    if block.similarity.ndim == 2:
        yield from _values(block)
    else:
        for first, second, value in zip(block.first, block.second, _values(block), strict=True):
            yield {"a": first, "b": second, "similarity": value}


@contextmanager
def _csv_file(path: Path, columns: Sequence[str] | None) -> Iterator[Write]:
    """`a,b,similarity` of pairs; of a matrix a row for each sentence, under a header of the `columns`' sentences."""
    with _written(path) as building, building.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["a", "b", "similarity"] if columns is None else ["", *columns])

        def write(block: "Compared") -> None:
            if columns is None:
                rows.writerows(zip(block.first, block.second, _values(block), strict=True))
            else:
                rows.writerows([sentence, *row] for sentence, row in zip(block.first, _values(block), strict=True))

        yield write


@contextmanager
def _picture_file(path: Path, rows: Sequence[str], columns: Sequence[str], title: str) -> Iterator[Write]:
    """A heat map of the whole matrix."""
    import numpy as np

    from bertrelay.plots import write_heatmap

    parts: list[Any] = []
    yield lambda block: parts.append(block.similarity)
    write_heatmap(path, np.concatenate(parts), rows, columns, title)


@contextmanager
def _written(path: Path) -> Iterator[Path]:
    try:
        with atomic_write(path) as building:
            yield building
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # of standard output, while this file was open too
            raise
        raise write_error(path, error) from error


def _values(block: "Compared") -> Any:
    return block.similarity.astype("float64").round(DIGITS).tolist()


def _short(sentence: str) -> str:
    from bertrelay.plots import cut

    return cut(on_one_line(sentence), LABEL_COLUMNS)


@dataclass(frozen=True)
class Request:
    """What to compare with and what to write; `computing` goes to the encoder as it is."""

    model: str
    metric: Metric
    outputs: Outputs
    computing: dict[str, Any]

    def shows_progress(self, sentences: int) -> bool:
        """For long work, where it does not interrupt the lines of the answer."""
        return sentences >= ENOUGH_FOR_PROGRESS and not (self.outputs.on_standard_output and sys.stdout.isatty())

    def load(self) -> "SentenceEncoder":
        from bertrelay.encoder import as_encoder

        return as_encoder(self.model)


@command(comparing, EncodeSettings, "prompt", "precision", "batch_tokens", rich_help_panel=PANEL)
def similarity(
    model: ModelArgument,
    first: Annotated[
        str,
        typer.Argument(metavar="A", help="A sentence; with --files or --matrix a file of them, - is standard input."),
    ],
    second: Annotated[
        str | None,
        typer.Argument(metavar="B", help="Another one; with --matrix it may be left out.", show_default=False),
    ] = None,
    files: Annotated[bool, option("--files", help="A and B are files: line 1 with line 1, 2 with 2, …")] = False,
    matrix: Annotated[
        bool, option("--matrix", help="A and B are files: every line of A with every line of B, or of A itself.")
    ] = False,
    metric: Annotated[Metric, option(help="Distances are negative numbers: more is nearer.")] = "cosine",
    column: Annotated[
        list[str] | None,
        option(
            help=f"Column of the text. {AS_COLUMN} Twice: that of A, that of B.",
            panel=INPUT,
            show_default="text, or the line",
        ),
    ] = None,
    file_format: FormatOption = None,
    header: HeaderOption = True,
    table: Annotated[
        Path | None, option("--csv", metavar="FILE", help="Write the values to this .csv file.", panel=OUTPUT)
    ] = None,
    picture: Annotated[
        Path | None, option(metavar="FILE", help="Draw the matrix as a heat map: .png, .svg or .pdf.", panel=OUTPUT)
    ] = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """Compare two sentences, two files line by line, or all lines of a file with all of another.

    For example:

      bertrelay similarity MODEL "A dog barks." "Ein Hund bellt."

      bertrelay similarity MODEL english.txt german.txt --files --csv pairs.csv

      bertrelay similarity MODEL english.txt korean.txt --matrix --picture matrix.png
    """
    given = [first] if second is None else [first, second]
    _check_options(given, files, matrix, column or [], picture)
    _check_outputs(given if files or matrix else [], table, picture, overwrite)
    check_model(model)
    request = Request(
        model, metric, Outputs(as_json, table, picture), {"prompt_name": options.pop("prompt"), **options}
    )
    if not (files or matrix):
        if column or file_format or not header:
            raise RequestError("--column, --format and --no-header are for files; add --files or --matrix")
        _compare_pairs(request, [(first, second or "")], 1)
        return
    columns: list[str | None] = [*column, *column] if column else [None, None]
    with ExitStack() as opened:
        names = [opened.enter_context(input_file(name, table or picture)) for name in given]
        tables = [table_of(name, each, file_format, header) for name, each in zip(names, columns, strict=False)]
        counts = [_count(each) for each in tables]
        if matrix:
            _compare_all(request, tables, counts)
        else:
            _compare_files(request, tables, counts)


def _check_options(
    given: Sequence[str], files: bool, matrix: bool, column: Sequence[str], picture: Path | None
) -> None:
    """Raises RequestError for options that do not go together."""
    if files and matrix:
        raise RequestError("--files compares line by line and --matrix all with all: choose one of them")
    if len(given) < 2 and not matrix:
        raise RequestError(
            "expected A and B, found A alone. To compare the lines of one file with one another: --matrix"
        )
    if len(column) > 2:
        raise RequestError(f"--column: expected one for both files, or one for A and one for B, found {len(column)}")
    if given.count(DASH) > 1:
        raise RequestError(f"expected {NAME} ({DASH}) once, found it for A and B; write one of them to a file")
    if picture and not matrix:
        raise RequestError("--picture draws a matrix; add --matrix, with files as A and B")
    if not (files or matrix):
        _check_sentences(given)


def _check_outputs(inputs: Sequence[str], table: Path | None, picture: Path | None, overwrite: bool) -> None:
    from bertrelay.files import check_output
    from bertrelay.plots import check_picture

    if table:
        check_output(table, (".csv",), *inputs, option="--csv", overwrite=overwrite)
    if picture:
        check_picture(picture, *inputs, option="--picture", overwrite=overwrite)


def _check_sentences(given: Sequence[str]) -> None:
    if not all(sentence.strip() for sentence in given):
        raise RequestError("expected two sentences, found an empty one")
    if DASH in given:
        raise RequestError(f"expected two sentences, found {DASH}; {NAME} is read with --files or --matrix")
    if all(len(sentence.encode()) <= LONGEST_NAME and Path(sentence).is_file() for sentence in given):
        log(f"{given[0]} and {given[1]} are compared as sentences; for what is in these files add --files or --matrix")


def _count(table: "Table") -> int:
    """How many sentences `table` holds; it is read through, so that errors in it come before the work."""
    from bertrelay.data.sentences import scan

    found = scan(table)
    if found.blank:
        log(f"{table.name}: {found.blank:,} of {found.sentences:,} sentences are blank, and compared as they are")
    return found.sentences


def _compare_files(request: Request, tables: Sequence["Table"], counts: Sequence[int]) -> None:
    from bertrelay.data.sentences import sentences_of

    if counts[0] != counts[1]:
        raise RequestError(
            f"--files compares line by line and expects equal counts, found {counts[0]:,} lines in {tables[0].name} "
            f"and {counts[1]:,} in {tables[1].name}. Align them, or compare all with all: --matrix"
        )
    _compare_pairs(request, zip(*map(sentences_of, tables), strict=True), counts[0])


def _compare_pairs(request: Request, pairs: Iterable[tuple[str, str]], count: int) -> None:
    def compare(encoder: "SentenceEncoder") -> Iterator["Compared"]:
        from bertrelay.evaluation.similarity import compare_pairs

        with (
            progress("comparing", 2 * count, "sentences")
            if request.shows_progress(count)
            else nullcontext(Bar()) as bar
        ):
            yield from compare_pairs(encoder, pairs, request.metric, bar=bar, **request.computing)

    _write(request, pairs_writers(request.outputs, request.model, request.metric), compare)


def _compare_all(request: Request, tables: Sequence["Table"], counts: Sequence[int]) -> None:
    from bertrelay.data.sentences import sentences_of
    from bertrelay.plots import check_size

    if request.outputs.picture:
        check_size(counts[0], counts[-1])
    rows = list(sentences_of(tables[0]))
    columns = rows if len(tables) == 1 else list(sentences_of(tables[1]))

    def compare(encoder: "SentenceEncoder") -> Iterator["Compared"]:
        from bertrelay.evaluation.similarity import compare_all

        second = None if columns is rows else columns
        return compare_all(
            encoder, rows, second, request.metric, progress=request.shows_progress(sum(counts)), **request.computing
        )

    _write(request, matrix_writers(request.outputs, request.model, request.metric, rows, columns), compare)


def _write(
    request: Request, writers: Iterable[Writer], compare: Callable[["SentenceEncoder"], Iterator["Compared"]]
) -> None:
    """Sends each block to all writers, which are opened first: a file that may not be written is an error at once."""
    from pipelines.error_handling import stopping_at_once

    with stopping_at_once("nothing is left of it"), ExitStack() as opened:
        writes = [opened.enter_context(writer) for writer in writers]
        for block in compare(request.load()):
            for write in writes:
                write(block)
    for path in filter(None, (request.outputs.csv, request.outputs.picture)):
        if not request.outputs.json:
            write_out(f"written to {path}")
