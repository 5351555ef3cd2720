"""`bertrelay similarity`: how alike sentences are, in pairs or all with all; as text, JSON, CSV or a picture."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import Metric
from bertrelay.progress import Bar, log, progress
from pipelines.cli.echo import echo
from pipelines.cli.models import check_model
from pipelines.cli.options import (
    BatchOption,
    FormatOption,
    HeaderOption,
    JsonOption,
    ModelArgument,
    OverwriteOption,
    PrecisionOption,
    PromptOption,
    table_of,
)
from pipelines.cli.stdin import DASH, NAME, input_file

if TYPE_CHECKING:
    from bertrelay.data.tables import Table
    from bertrelay.encoder import SentenceEncoder
    from bertrelay.evaluation.similarity import Compared
    from pipelines.cli.comparisons import Wanted, Writer

ENOUGH_FOR_PROGRESS = 1_000
LONGEST_NAME = 255  # bytes; of a longer one the system says that it is too long, and not that there is no such file


@dataclass(frozen=True)
class Asked:
    """What is compared by, and what is given; `computing` goes to the encoder as it is."""

    model: str
    metric: Metric
    wanted: "Wanted"
    computing: dict[str, Any]

    def shows_progress(self, sentences: int) -> bool:
        """For long work, where it does not stand between the lines of the answer."""
        return sentences >= ENOUGH_FOR_PROGRESS and not (self.wanted.on_standard_output and sys.stdout.isatty())

    def load(self) -> "SentenceEncoder":
        from bertrelay.encoder import as_encoder

        return as_encoder(self.model)


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
    files: Annotated[bool, typer.Option("--files", help="A and B are files: line 1 with line 1, 2 with 2, …")] = False,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="A and B are files: every line of A with every line of B, or of A itself.")
    ] = False,
    metric: Annotated[Metric, typer.Option(help="Distances are given as negative numbers: more is nearer.")] = "cosine",
    as_json: JsonOption = False,
    table: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write the figures to this .csv file instead.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the matrix as a heat map: .png, .svg or .pdf.")
    ] = None,
    overwrite: OverwriteOption = False,
    column: Annotated[
        list[str] | None,
        typer.Option(
            help="The column of the text, by name or position from 0. Twice: that of A, that of B.",
            show_default="text, or the line",
        ),
    ] = None,
    file_format: FormatOption = None,
    header: HeaderOption = True,
    prompt: PromptOption = None,
    precision: PrecisionOption = "auto",
    batch_tokens: BatchOption = None,
) -> None:
    """Compare two sentences, two files line by line, or all lines of a file with all of another.

    For example:

      bertrelay similarity MODEL "A dog barks." "Ein Hund bellt."

      bertrelay similarity MODEL english.txt german.txt --files --csv pairs.csv

      bertrelay similarity MODEL english.txt korean.txt --matrix --picture matrix.png
    """
    from pipelines.cli.comparisons import Wanted

    given = [first] if second is None else [first, second]
    _check_options(given, files, matrix, column or [], picture)
    _check_outputs(given if files or matrix else [], table, picture, overwrite)
    check_model(model)
    computing = {"prompt_name": prompt, "precision": precision, "batch_tokens": batch_tokens}
    asked = Asked(model, metric, Wanted(as_json, table, picture), computing)
    if not (files or matrix):
        if column or file_format or not header:
            raise RequestError("--column, --format and --no-header are for files; add --files or --matrix")
        _give_pairs(asked, [(first, second or "")], 1)
        return
    columns: list[str | None] = [*column, *column] if column else [None, None]
    with ExitStack() as opened:
        names = [opened.enter_context(input_file(name, table or picture)) for name in given]
        tables = [table_of(name, each, file_format, header) for name, each in zip(names, columns, strict=False)]
        counts = [_counted(each) for each in tables]
        if matrix:
            _give_matrix(asked, tables, counts)
        else:
            _give_pairs_of_files(asked, tables, counts)


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


def _counted(table: "Table") -> int:
    """How many sentences `table` holds; it is read through, so that mistakes in it are told before the work begins."""
    from bertrelay.data.sentences import scan

    found = scan(table)
    if found.blank:
        log(f"{table.name}: {found.blank:,} of {found.sentences:,} sentences are blank, and compared as they are")
    return found.sentences


def _give_pairs_of_files(asked: Asked, tables: Sequence["Table"], counts: Sequence[int]) -> None:
    from bertrelay.data.sentences import sentences_of

    if counts[0] != counts[1]:
        raise RequestError(
            f"--files compares line by line and expects equal counts, found {counts[0]:,} lines in {tables[0].name} "
            f"and {counts[1]:,} in {tables[1].name}. Align them, or compare all with all: --matrix"
        )
    _give_pairs(asked, zip(*map(sentences_of, tables), strict=True), counts[0])


def _give_pairs(asked: Asked, pairs: Iterable[tuple[str, str]], count: int) -> None:
    from pipelines.cli.comparisons import pairs_writers

    def compare(encoder: "SentenceEncoder") -> Iterator["Compared"]:
        from bertrelay.evaluation.similarity import compare_pairs

        with (
            progress("comparing", 2 * count, "sentences") if asked.shows_progress(count) else nullcontext(Bar()) as bar
        ):
            yield from compare_pairs(encoder, pairs, asked.metric, bar=bar, **asked.computing)

    _give(asked, pairs_writers(asked.wanted, asked.model, asked.metric), compare)


def _give_matrix(asked: Asked, tables: Sequence["Table"], counts: Sequence[int]) -> None:
    from bertrelay.data.sentences import sentences_of
    from bertrelay.plots import check_size
    from pipelines.cli.comparisons import matrix_writers

    if asked.wanted.picture:
        check_size(counts[0], counts[-1])
    rows = list(sentences_of(tables[0]))
    columns = rows if len(tables) == 1 else list(sentences_of(tables[1]))

    def compare(encoder: "SentenceEncoder") -> Iterator["Compared"]:
        from bertrelay.evaluation.similarity import compare_all

        second = None if columns is rows else columns
        return compare_all(
            encoder, rows, second, asked.metric, progress=asked.shows_progress(sum(counts)), **asked.computing
        )

    _give(asked, matrix_writers(asked.wanted, asked.model, asked.metric, rows, columns), compare)


def _give(
    asked: Asked, writers: Iterable["Writer"], compare: Callable[["SentenceEncoder"], Iterator["Compared"]]
) -> None:
    """Sends each block to all writers. They are opened first: a file that may not be written is told of at once."""
    from pipelines.trouble import stopping_at_once

    with stopping_at_once("nothing is left of it"), ExitStack() as opened:
        writes = [opened.enter_context(writer) for writer in writers]
        for block in compare(asked.load()):
            for write in writes:
                write(block)
    for path in filter(None, (asked.wanted.csv, asked.wanted.picture)):
        if not asked.wanted.json:
            echo(f"written to {path}")
