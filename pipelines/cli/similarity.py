"""`bertrelay similarity`: pairs or a matrix, as text, JSON, CSV or a heat map, written block by block."""

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from pydantic import Field, model_validator

from bertrelay.checks import list_texts
from bertrelay.data.tables import Table
from bertrelay.data.writing import on_one_line
from bertrelay.encode_stage import EncodeSettings
from bertrelay.errors import RequestError, plural
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
from pipelines.run.errors import stopping_at_once

if TYPE_CHECKING:
    from bertrelay.inference.compare import Compared

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


class SimilarityOptions(TableOptions, OutputOptions):
    """Texts to compare, and the form of the output."""

    files: bool = False
    """A and B are files: line 1 with line 1, 2 with 2, …"""
    matrix: bool = False
    """A and B are files: every line of A with every line of B, or of A itself."""
    metric: Metric = "cosine"
    """Measure of similarity; distances are negative numbers: more is nearer."""
    column: list[str] = Field(default=[])
    """Column of the text, by name, or by position from 0; `text`, or the line, when absent. Twice: that of A, that of
    B."""
    csv: Path | None = None
    """Write the values to this .csv file."""
    picture: Path | None = None
    """Draw the matrix as a heat map: .png, .svg or .pdf."""

    @model_validator(mode="after")
    def _compatible(self) -> Self:
        if self.files and self.matrix:
            raise ValueError("--files compares line by line and --matrix all with all: choose one of them")
        if len(self.column) > 2:
            count = len(self.column)
            raise ValueError(f"--column: expected one for both files, or one for A and one for B, found {count}")
        if self.picture and not self.matrix:
            raise ValueError("--picture draws a matrix; add --matrix, with files as A and B")
        if not self.reads_files and (self.column or self.format or not self.header or self.quoted):
            raise ValueError("--column, --format, --no-header and --quoted are for files; add --files or --matrix")
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
    texts = [first] if second is None else [first, second]
    _check(texts, options)
    check_request(model)
    computing["prompt_name"] = computing.pop("prompt")
    if not options.reads_files:
        _write(_compared([[sentence] for sentence in texts], 2, model, options, computing), model, options)
        return
    from bertrelay.data.sentences import iterate_sentences
    from bertrelay.plots import check_size

    columns: list[str | None] = [*options.column, *options.column] or [None, None]
    with ExitStack() as opened:
        names = [opened.enter_context(input_file(name, options.csv or options.picture)) for name in texts]
        tables = [options.table(name, column) for name, column in zip(names, columns, strict=False)]
        counts = [_count(table) for table in tables]
        if options.files and counts[0] != counts[1]:
            raise RequestError(
                f"--files compares line by line and expects equal counts, found {counts[0]:,} lines in "
                f"{tables[0].name} and {counts[1]:,} in {tables[1].name}. Align them, or compare all with all: --matrix"
            )
        if options.picture:
            check_size(counts[0], counts[-1])
        sentences = list(map(iterate_sentences, tables))
        lists = list(map(list, sentences)) if options.matrix else None
        blocks = _compared(lists or sentences, sum(counts), model, options, computing)
        _write(blocks, model, options, lists[0] if lists else (), lists[-1] if lists else None)


def _check(texts: Sequence[str], options: SimilarityOptions) -> None:
    """Raises RequestError for arguments that do not go with the options, and for outputs that cannot be."""
    from bertrelay.plots import check_picture

    if len(texts) < 2 and not options.matrix:
        raise RequestError(
            "expected A and B, found A alone. To compare the lines of one file with one another: --matrix"
        )
    if not options.reads_files:
        list_texts(texts, "similarity")
        if not all(sentence.strip() for sentence in texts):
            raise RequestError("expected two sentences, found an empty one")
        if DASH in texts:
            raise RequestError(f"expected two sentences, found {DASH}; {NAME} is read with --files or --matrix")
        if all(len(sentence.encode()) <= LONGEST_NAME and Path(sentence).is_file() for sentence in texts):
            names = " and ".join(texts)
            log(f"{names} are compared as sentences; for what is in these files add --files or --matrix")
    inputs = texts if options.reads_files else []
    if options.csv:
        check_output(options.csv, (".csv",), *inputs, option="--csv", overwrite=options.overwrite)
    if options.picture:
        check_picture(options.picture, *inputs, option="--picture", overwrite=options.overwrite)


def _count(table: Table) -> int:
    """Counts the sentences of `table`; it is read to its end, so that errors in it come before the work."""
    from bertrelay.data.sentences import scan

    scanned = scan(table)
    if scanned.blank:
        are = plural(scanned.blank, "is blank, and compared as it is", "are blank, and compared as they are")
        log(f"{table.name}: {scanned.blank:,} of {scanned.sentences:,} sentences {are}")
    return scanned.sentences


def _compared(
    inputs: Sequence[Iterable[str]], sentences: int, model: str, options: SimilarityOptions, computing: dict[str, Any]
) -> Iterator["Compared"]:
    """Blocks of pairs, or of rows of a matrix, with their similarity; the model is loaded for the first."""
    from bertrelay.inference.compare import compare_all, compare_pairs
    from bertrelay.model.encoder import open_encoder

    is_long = options.shows_progress(sentences)
    if options.matrix:
        columns = inputs[1] if len(inputs) > 1 else None
        yield from compare_all(open_encoder(model), inputs[0], columns, options.metric, progress=is_long, **computing)
        return
    with progress("comparing", sentences, "sentences", shown=is_long) as bar:
        yield from compare_pairs(open_encoder(model), zip(*inputs, strict=True), options.metric, bar=bar, **computing)


def _write(
    blocks: Iterator["Compared"],
    model: str,
    options: SimilarityOptions,
    rows: Sequence[str] = (),
    columns: Sequence[str] | None = None,
) -> None:
    """Writes each block to all that is asked for; what may not be written is an error before the model is loaded.

    rows, columns: the sentences of a matrix, the same list where it is of one with itself.
    """
    result: dict[str, Any] = {"model": model, "metric": options.metric}
    if columns is not None:
        result |= {"rows": rows, "columns": columns}
    count, drawn, written = 0, [], options.csv or options.picture
    with stopping_at_once("no output was written"), ExitStack() as opened:
        table = None
        if options.csv:
            building = opened.enter_context(atomic_write(options.csv))
            table = csv.writer(opened.enter_context(building.open("w", encoding="utf-8", newline="")))
            table.writerow(PAIR_COLUMNS if columns is None else ["", *columns])
        if options.as_json:
            name = "pairs" if columns is None else "matrix"
            head = {"command": "similarity", "output": written and str(written), "result": result}
            write_out(json.dumps(head, ensure_ascii=False)[:-2] + f', "{name}": [', nl=False)
        elif options.prints_text and columns is not None:
            write_out(" ".join(f"{number:>9}" for number in range(1, len(columns) + 1)))
        for block in blocks:
            for text, item, cells in _rows(block, count):
                count += 1
                if options.as_json:
                    write_out((", " if count > 1 else "") + json.dumps(item, ensure_ascii=False), nl=False)
                elif options.prints_text:
                    write_out(text)
                if table:
                    table.writerow(cells)
            if options.picture:
                drawn.append(block.similarity)
        if options.as_json:
            write_out("]}}")
        elif options.prints_text and columns is not None and columns is not rows:
            write_out("\n".join(["", *(f"{number:>9}  {_short(text)}" for number, text in enumerate(columns, 1))]))
        if options.picture and columns is not None:
            import numpy as np

            from bertrelay.plots import write_heatmap

            matrix, title = np.concatenate(drawn), TITLES[options.metric]
            write_heatmap(options.picture, matrix, rows, columns, title, overwrite=options.overwrite)
    for path in filter(None, (options.csv, options.picture)):
        if not options.as_json:
            write_out(f"written to {path}")


def _rows(block: "Compared", before: int) -> Iterator[tuple[str, Any, list[Any]]]:
    """Each pair, or each row of a matrix, as text, in JSON, and as the cells of a table.

    before: how many rows are in earlier blocks.
    """
    values = block.similarity.astype("float64").round(DIGITS).tolist()
    if block.similarity.ndim == 1:
        for exact, first, second, value in zip(block.similarity, block.first, block.second, values, strict=True):
            cells = [first, second, value]
            text = f"{exact:.4f}\t{on_one_line(first)}\t{on_one_line(second)}"
            yield text, dict(zip(PAIR_COLUMNS, cells, strict=True)), cells
        return
    for number, row in enumerate(zip(block.similarity, block.first, values, strict=True), before + 1):
        exact, sentence, cells = row
        text = " ".join(f"{value:>9.4f}" for value in exact)
        yield f"{text}  {number:>4}  {_short(sentence)}", cells, [sentence, *cells]


def _short(sentence: str) -> str:
    from bertrelay.plots import cut

    return cut(printable(on_one_line(sentence)), LABEL_COLUMNS)  # with escapes, where `cut` would put blanks
