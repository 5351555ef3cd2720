"""`bertrelay similarity`: pairs or a matrix, as text, JSON, CSV or a heat map, written block by block."""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from pydantic import Field, model_validator

from bertrelay.data.tables import on_one_line
from bertrelay.encoder_settings import EncodeSettings, Metric
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, check_output
from bertrelay.progress import Bar, log, printable, progress
from pipelines.cli.options import ModelArgument, OutputOptions, TableOptions, argument, check_model, command, write_out
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
Writer = AbstractContextManager[Write]


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


@command(comparing, EncodeSettings, "prompt", "precision", "batch_tokens", rich_help_panel="Sentences")
def similarity(
    model: ModelArgument,
    first: Annotated[str, argument("A", "A sentence; with --files or --matrix a file of them, - is standard input.")],
    options: SimilarityOptions,
    second: Annotated[
        str | None, argument("B", "Another one; with --matrix it may be left out.", show_default=False)
    ] = None,
    prompt: str | None = None,
    **computing: Any,
) -> None:
    """Compare two sentences, two files line by line, or all lines of a file with all of another.

    For example:

      bertrelay similarity MODEL "A dog barks." "Ein Hund bellt."

      bertrelay similarity MODEL english.txt german.txt --files --csv pairs.csv

      bertrelay similarity MODEL english.txt korean.txt --matrix --picture matrix.png
    """
    given = [first] if second is None else [first, second]
    _check(given, options)
    check_model(model)
    comparison = Comparison(model, options, {"prompt_name": prompt, **computing})
    if not options.reads_files:
        comparison.of_pairs([(first, second or "")], 1)
        return
    columns: list[str | None] = [*options.column, *options.column] or [None, None]
    with ExitStack() as opened:
        names = [opened.enter_context(input_file(name, options.csv or options.picture)) for name in given]
        tables = [options.table(name, column) for name, column in zip(names, columns, strict=False)]
        counts = [_count(each) for each in tables]
        (comparison.of_all if options.matrix else comparison.of_lines)(tables, counts)


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
        _check_sentences(given)
    inputs = given if options.reads_files else []
    if options.csv:
        check_output(options.csv, (".csv",), *inputs, option="--csv", overwrite=options.overwrite)
    if options.picture:
        check_picture(options.picture, *inputs, option="--picture", overwrite=options.overwrite)


def _check_sentences(given: Sequence[str]) -> None:
    if not all(sentence.strip() for sentence in given):
        raise RequestError("expected two sentences, found an empty one")
    if DASH in given:
        raise RequestError(f"expected two sentences, found {DASH}; {NAME} is read with --files or --matrix")
    if all(len(sentence.encode()) <= LONGEST_NAME and Path(sentence).is_file() for sentence in given):
        log(f"{given[0]} and {given[1]} are compared as sentences; for what is in these files add --files or --matrix")


def _count(table: "Table") -> int:
    """How many sentences `table` has; it is read through, so that errors in it come before the work."""
    from bertrelay.data.sentences import scan

    found = scan(table)
    if found.blank:
        log(f"{table.name}: {found.blank:,} of {found.sentences:,} sentences are blank, and compared as they are")
    return found.sentences


@dataclass(frozen=True)
class Comparison:
    """What compares and what is written; `computing` goes to the encoder as it is."""

    model: str
    options: SimilarityOptions
    computing: dict[str, Any]

    def of_lines(self, tables: Sequence["Table"], counts: Sequence[int]) -> None:
        """Compares line by line."""
        from bertrelay.data.sentences import sentences_of

        if counts[0] != counts[1]:
            raise RequestError(
                f"--files compares line by line and expects equal counts, found {counts[0]:,} lines in "
                f"{tables[0].name} and {counts[1]:,} in {tables[1].name}. Align them, or compare all with all: --matrix"
            )
        self.of_pairs(zip(*map(sentences_of, tables), strict=True), counts[0])

    def of_pairs(self, pairs: Iterable[tuple[str, str]], count: int) -> None:
        """Compares the two sentences of each pair."""

        def compare() -> Iterator["Compared"]:
            from bertrelay.compare import compare_pairs
            from bertrelay.encoder import as_encoder

            shown, metric = self.options.shows_progress(count), self.options.metric
            with progress("comparing", 2 * count, "sentences") if shown else nullcontext(Bar()) as bar:
                yield from compare_pairs(as_encoder(self.model), pairs, metric, bar=bar, **self.computing)

        self._write(compare(), _pairs_text(), self._json("pairs"))

    def of_all(self, tables: Sequence["Table"], counts: Sequence[int]) -> None:
        """Compares all lines with all."""
        from bertrelay.data.sentences import sentences_of
        from bertrelay.plots import check_size

        if self.options.picture:
            check_size(counts[0], counts[-1])
        rows = list(sentences_of(tables[0]))
        second = None if len(tables) == 1 else list(sentences_of(tables[1]))
        columns = rows if second is None else second

        def compare() -> Iterator["Compared"]:
            from bertrelay.compare import compare_all
            from bertrelay.encoder import as_encoder

            shown, metric = self.options.shows_progress(sum(counts)), self.options.metric
            yield from compare_all(as_encoder(self.model), rows, second, metric, progress=shown, **self.computing)

        text = _matrix_text(columns, is_of_itself=second is None)
        self._write(compare(), text, self._json("matrix", rows=rows, columns=columns), rows, columns)

    def _json(self, name: str, **head: Any) -> Writer:
        return _json_document({"model": self.model, "metric": self.options.metric, **head}, name)

    def _write(
        self,
        blocks: Iterator["Compared"],
        text: Writer,
        document: Writer,
        rows: Sequence[str] = (),
        columns: Sequence[str] | None = None,
    ) -> None:
        """Sends each block to all that writes; what may not be written is an error before the model is loaded.

        rows, columns: the sentences of a matrix.
        """
        options = self.options
        with stopping_at_once("nothing is left of it"), ExitStack() as opened:
            writers = [text] * options.prints_text + [document] * options.as_json
            if options.csv:
                writers.append(_csv_file(options.csv, columns))
            if options.picture:
                writers.append(_picture_file(options.picture, rows, columns or rows, TITLES[options.metric]))
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
