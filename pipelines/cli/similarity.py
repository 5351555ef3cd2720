"""`bertrelay similarity`: pairs or a matrix, as text, JSON, CSV or a heat map, written block by block."""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from pydantic import Field, model_validator

from bertrelay.data.writing import on_one_line
from bertrelay.encode_stage import EncodeSettings
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, check_output
from bertrelay.progress import log, printable, progress
from bertrelay.settings import Metric
from pipelines.cli.options import (
    Fields,
    ModelArgument,
    OutputOptions,
    TableOptions,
    argument,
    check_request,
    command,
    write_out,
)
from pipelines.cli.stdin import DASH, NAME, input_file
from pipelines.error_handling import stopping_at_once

if TYPE_CHECKING:
    from bertrelay.compare import Compared
    from bertrelay.data.tables import Table

LABEL_COLUMNS = 60
ENOUGH_FOR_PROGRESS = 1_000
LONGEST_NAME = 255  # bytes; of a longer one the system reports that, and not that there is no such file
PAIR_COLUMNS = ("a", "b", "similarity")
DIGITS = 6
"""Decimals in JSON and CSV: beyond them float32 makes a cosine of equal sentences 1.0000001."""

TITLES = {
    "cosine": "Cosine similarity",
    "dot": "Dot product",
    "euclidean": "Euclidean distance, negative",
    "manhattan": "Manhattan distance, negative",
}

comparing = typer.Typer()

Write = Callable[["Compared"], None]


class SimilarityOptions(TableOptions, OutputOptions):
    """What is compared and what is written.

    files: A and B are files: line 1 with line 1, 2 with 2, …
    matrix: A and B are files: every line of A with every line of B, or of A itself.
    metric: distances are negative numbers: more is nearer.
    column: column of the text, by name, or by position from 0; `text`, or the line, when absent. Twice: that of A, that
        of B.
    csv: write the values to this .csv file.
    picture: draw the matrix as a heat map: .png, .svg or .pdf.
    """

    files: bool = False
    matrix: bool = False
    metric: Metric = "cosine"
    column: list[str] = Field(default=[])
    csv: Path | None = None
    picture: Path | None = None

    @model_validator(mode="after")
    def _compatible(self) -> Self:
        if self.files and self.matrix:
            raise ValueError("--files compares line by line and --matrix all with all: choose one of them")
        if len(self.column) > 2:
            found = len(self.column)
            raise ValueError(f"--column: expected one for both files, or one for A and one for B, found {found}")
        if self.picture and not self.matrix:
            raise ValueError("--picture draws a matrix; add --matrix, with files as A and B")
        if not self.reads_files and (self.column or self.format or not self.header):
            raise ValueError("--column, --format and --no-header are for files; add --files or --matrix")
        return self

    @property
    def reads_files(self) -> bool:
        return self.files or self.matrix

    @property
    def prints_text(self) -> bool:
        return not (self.as_json or self.csv or self.picture)

    def shows_progress(self, sentences: int) -> bool:
        """For long work, where it does not interrupt the lines of the answer."""
        prints = self.prints_text or self.as_json
        return sentences >= ENOUGH_FOR_PROGRESS and not (prints and sys.stdout.isatty())


@command(comparing, rich_help_panel="Sentences")
def similarity(
    model: ModelArgument,
    first: Annotated[str, argument("A", "A sentence; with --files or --matrix a file of them, - is standard input.")],
    computing: Annotated[Fields, EncodeSettings, "prompt", "precision", "batch_tokens"],
    options: SimilarityOptions,
    second: Annotated[
        str | None, argument("B", "Another one; with --matrix it may be left out.", show_default=False)
    ] = None,
) -> None:
    """Compare two sentences, two files line by line, or all lines of a file with all of another.

    For example:

      bertrelay similarity MODEL "A dog barks." "Ein Hund bellt."

      bertrelay similarity MODEL english.txt german.txt --files --csv pairs.csv

      bertrelay similarity MODEL english.txt korean.txt --matrix --picture matrix.png
    """
    given = [first] if second is None else [first, second]
    _check(given, options)
    check_request(model)
    computing["prompt_name"] = computing.pop("prompt")
    if not options.reads_files:
        _write(_pairs([(given[0], given[1])], 1, model, options, computing), model, options)
        return
    from bertrelay.data.sentences import sentences_of
    from bertrelay.plots import check_size

    columns: list[str | None] = [*options.column, *options.column] or [None, None]
    with ExitStack() as opened:
        names = [opened.enter_context(input_file(name, options.csv or options.picture)) for name in given]
        tables = [options.table(name, column) for name, column in zip(names, columns, strict=False)]
        counts = [_count(table) for table in tables]
        if not options.matrix:
            if counts[0] != counts[1]:
                raise RequestError(
                    f"--files compares line by line and expects equal counts, found {counts[0]:,} lines in "
                    f"{tables[0].name} and {counts[1]:,} in {tables[1].name}. Align them, or compare all with all: "
                    "--matrix"
                )
            pairs = zip(*map(sentences_of, tables), strict=True)
            _write(_pairs(pairs, counts[0], model, options, computing), model, options)
            return
        if options.picture:
            check_size(counts[0], counts[-1])
        lists = [list(sentences_of(table)) for table in tables]
        _write(_matrix(lists, model, options, computing), model, options, lists[0], lists[-1])


def _check(given: Sequence[str], options: SimilarityOptions) -> None:
    """Raises RequestError for arguments that do not go with the options, and for outputs that cannot be."""
    from bertrelay.plots import check_picture

    if len(given) < 2 and not options.matrix:
        raise RequestError(
            "expected A and B, found A alone. To compare the lines of one file with one another: --matrix"
        )
    if given.count(DASH) > 1:
        raise RequestError(f"expected {NAME} ({DASH}) once, found it for A and B; write one of them to a file")
    if not options.reads_files:
        if not all(sentence.strip() for sentence in given):
            raise RequestError("expected two sentences, found an empty one")
        if DASH in given:
            raise RequestError(f"expected two sentences, found {DASH}; {NAME} is read with --files or --matrix")
        if all(len(sentence.encode()) <= LONGEST_NAME and Path(sentence).is_file() for sentence in given):
            names = " and ".join(given)
            log(f"{names} are compared as sentences; for what is in these files add --files or --matrix")
    inputs = given if options.reads_files else []
    if options.csv:
        check_output(options.csv, (".csv",), *inputs, option="--csv", overwrite=options.overwrite)
    if options.picture:
        check_picture(options.picture, *inputs, option="--picture", overwrite=options.overwrite)


def _count(table: "Table") -> int:
    """How many sentences `table` has; it is read through, so that errors in it come before the work."""
    from bertrelay.data.sentences import scan

    scanned = scan(table)
    if scanned.blank:
        log(f"{table.name}: {scanned.blank:,} of {scanned.sentences:,} sentences are blank, and compared as they are")
    return scanned.sentences


def _pairs(
    pairs: Iterable[tuple[str, str]], count: int, model: str, options: SimilarityOptions, computing: dict[str, Any]
) -> Iterator["Compared"]:
    """Blocks of pairs with their similarity; the model is loaded for the first."""
    from bertrelay.compare import compare_pairs
    from bertrelay.encoder import as_encoder

    with progress("comparing", 2 * count, "sentences", shown=options.shows_progress(count)) as bar:
        yield from compare_pairs(as_encoder(model), pairs, options.metric, bar=bar, **computing)


def _matrix(
    lists: Sequence[list[str]], model: str, options: SimilarityOptions, computing: dict[str, Any]
) -> Iterator["Compared"]:
    """Blocks of rows of the similarity of all with all; the model is loaded for the first."""
    from bertrelay.compare import compare_all
    from bertrelay.encoder import as_encoder

    rows, columns = lists[0], lists[1] if len(lists) > 1 else None
    is_long = options.shows_progress(sum(map(len, lists)))
    yield from compare_all(as_encoder(model), rows, columns, options.metric, progress=is_long, **computing)


def _write(
    blocks: Iterator["Compared"],
    model: str,
    options: SimilarityOptions,
    rows: list[str] | None = None,
    columns: list[str] | None = None,
) -> None:
    """Sends each block to all that writes; what may not be written is an error before the model is loaded.

    rows, columns: the sentences of a matrix, the same list where it is of one with itself.
    """
    head = {"model": model, "metric": options.metric}
    with stopping_at_once("nothing is left of it"), ExitStack() as opened:
        writers: list[AbstractContextManager[Write]] = []
        if rows is None or columns is None:
            writers += [_pairs_text()] * options.prints_text + [_json_document(head, "pairs")] * options.as_json
        else:
            writers += [_matrix_text(columns, columns is rows)] * options.prints_text
            writers += [_json_document({**head, "rows": rows, "columns": columns}, "matrix")] * options.as_json
            if options.picture:
                writers.append(_picture_file(options.picture, rows, columns, TITLES[options.metric]))
        if options.csv:
            writers.append(_csv_file(options.csv, columns))
        writes = [opened.enter_context(writer) for writer in writers]
        for block in blocks:
            for write in writes:
                write(block)
    for path in filter(None, (options.csv, options.picture)):
        if not options.as_json:
            write_out(f"written to {path}")


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
        for row in zip(block.first, block.second, _values(block), strict=True):
            yield dict(zip(PAIR_COLUMNS, row, strict=True))


@contextmanager
def _csv_file(path: Path, columns: Sequence[str] | None) -> Iterator[Write]:
    """`a,b,similarity` of pairs; of a matrix a row for each sentence, under a header of the `columns`' sentences."""
    with atomic_write(path) as building, building.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(PAIR_COLUMNS if columns is None else ["", *columns])

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


def _values(block: "Compared") -> Any:
    return block.similarity.astype("float64").round(DIGITS).tolist()


def _short(sentence: str) -> str:
    from bertrelay.plots import cut

    return cut(printable(on_one_line(sentence)), LABEL_COLUMNS)  # with escapes, where `cut` would put blanks
