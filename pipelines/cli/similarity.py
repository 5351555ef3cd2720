"""`bertrelay similarity`: how alike sentences are, in pairs or all with all; as text, JSON, CSV or a picture."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertrelay.errors import RequestError
from bertrelay.hardware import Precision
from bertrelay.similarity import Metric
from pipelines.cli.encode import MODEL_HELP

if TYPE_CHECKING:
    from bertrelay.similarity import Vectors

LABEL_COLUMNS = 60


@dataclass(frozen=True)
class Compared:
    """Sentences and their similarity: (pairs,) of pairs, (first, second) of all with all."""

    first: list[str]
    second: list[str]
    similarity: "Vectors"

    @property
    def is_matrix(self) -> bool:
        return self.similarity.ndim == 2


def similarity(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    first: Annotated[str, typer.Argument(metavar="A", help="A sentence; with --files or --matrix a file of them.")],
    second: Annotated[
        str | None,
        typer.Argument(metavar="B", help="Another one; with --matrix it may be left out.", show_default=False),
    ] = None,
    files: Annotated[bool, typer.Option("--files", help="A and B are files: line 1 with line 1, 2 with 2, …")] = False,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="A and B are files: every line of A with every line of B, or of A itself.")
    ] = False,
    metric: Annotated[Metric, typer.Option(help="Distances are given as negative numbers: more is nearer.")] = "cosine",
    precision: Annotated[
        Precision, typer.Option(help="auto is bf16 where the hardware computes in it, else fp32.")
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    table: Annotated[Path | None, typer.Option("--csv", help="Write the figures to this file as well.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the matrix as a heat map into this .svg file.")] = None,
) -> None:
    """Compare two sentences, two files line by line, or all lines of a file with all of another.

    Example: bertrelay similarity MODEL "A dog barks." "Ein Hund bellt."

    Example: bertrelay similarity MODEL en.txt de.txt --matrix --picture matrix.svg
    """
    _check(second, matrix, picture)
    firsts = _sentences(first, files or matrix)
    seconds = firsts if second is None else _sentences(second, files or matrix)
    if not matrix and len(firsts) != len(seconds):
        raise RequestError(
            f"--files compares line by line and expects equal counts, found {len(firsts):,} lines in {first} and "
            f"{len(seconds):,} in {second}. Align them, or compare all with all: --matrix"
        )
    compared = _compare(model, firsts, seconds, matrix, metric, precision)
    if table:
        _write_csv(table, compared)
    if picture:
        _draw(picture, compared, metric)
    typer.echo(json.dumps(_document(model, metric, compared), ensure_ascii=False) if as_json else _text(compared))


def _check(second: str | None, matrix: bool, picture: Path | None) -> None:
    if second is None and not matrix:
        raise RequestError(
            "expected A and B, found A alone. To compare the lines of one file with one another: --matrix"
        )
    if picture and not matrix:
        raise RequestError("--picture draws a matrix; add --matrix, with files as A and B")
    if picture and picture.suffix != ".svg":
        raise RequestError(f"--picture: expected a file that ends in .svg, found {picture}")


def _sentences(argument: str, is_file: bool) -> list[str]:
    if not is_file:
        return [argument]
    from bertrelay.records import Table, read
    from bertrelay.settings import InputFile

    return [str(record.values[0]) for record in read(Table(path=InputFile.parse(argument), format="lines"), [0])]


def _compare(
    model: str, first: list[str], second: list[str], matrix: bool, metric: Metric, precision: Precision
) -> Compared:
    from bertrelay import similarity as similarities
    from bertrelay.encoder import SentenceEncoder
    from bertrelay.hardware import accelerator

    encoder = SentenceEncoder.load(model).to(accelerator().device)
    vectors = encoder.encode([*first, *second], precision=precision)  # (first + second, dim)
    compare = similarities.matrix if matrix else similarities.pairwise
    return Compared(first, second, compare(vectors[: len(first)], vectors[len(first) :], metric))


def _document(model: str, metric: Metric, compared: Compared) -> dict[str, Any]:
    head = {"model": model, "metric": metric}
    if compared.is_matrix:
        return {**head, "rows": compared.first, "columns": compared.second, "matrix": compared.similarity.tolist()}
    rows = zip(compared.first, compared.second, compared.similarity.tolist(), strict=True)
    return {**head, "pairs": [{"a": a, "b": b, "similarity": value} for a, b, value in rows]}


def _text(compared: Compared) -> str:
    if compared.is_matrix:
        return _matrix_text(compared)
    rows = zip(compared.similarity, compared.first, compared.second, strict=True)
    return "\n".join(f"{value:.4f}\t{a}\t{b}" for value, a, b in rows)


def _matrix_text(compared: Compared) -> str:
    """Numbered columns, each row with its sentence; the columns' sentences below, where they are others."""
    numbers = "".join(f"{number:>10}" for number in range(1, len(compared.second) + 1))
    rows = ["".join(f"{value:>10.4f}" for value in row) for row in compared.similarity]
    labels = [f"{number:>4}  {_short(sentence)}" for number, sentence in enumerate(compared.first, 1)]
    lines = [numbers, *(f"{row}  {label}" for row, label in zip(rows, labels, strict=True))]
    if compared.second is not compared.first:
        lines += ["", *(f"{number:>10}  {_short(sentence)}" for number, sentence in enumerate(compared.second, 1))]
    return "\n".join(lines)


def _short(sentence: str) -> str:
    from bertrelay.heatmap import cut

    return cut(sentence, LABEL_COLUMNS)


def _write_csv(path: Path, compared: Compared) -> None:
    rows: list[Sequence[Any]]
    if compared.is_matrix:
        rows = [["", *compared.second]]
        rows += [[sentence, *row] for sentence, row in zip(compared.first, compared.similarity.tolist(), strict=True)]
    else:
        rows = [["a", "b", "similarity"]]
        rows += list(zip(compared.first, compared.second, compared.similarity.tolist(), strict=True))
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}. Name another file.") from error


def _draw(path: Path, compared: Compared, metric: Metric) -> None:
    from bertrelay.heatmap import heatmap_svg

    svg = heatmap_svg(compared.similarity, compared.first, compared.second, f"{metric.capitalize()} similarity")
    try:
        path.write_text(svg, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}. Name another file.") from error
