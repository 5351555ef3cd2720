"""What `similarity` gives: text, one JSON document, CSV, a picture, each written block by block as it is computed."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertrelay.data.tables import on_one_line
from bertrelay.files import atomic_write, write_error
from pipelines.cli.echo import echo

if TYPE_CHECKING:
    from bertrelay.evaluation.similarity import Compared

LABEL_COLUMNS = 60
DIGITS = 6
"""Decimals of a figure in JSON and CSV: beyond them float32 makes a cosine of equal sentences 1.0000001."""

TITLES = {
    "cosine": "Cosine similarity",
    "dot": "Dot product",
    "euclidean": "Euclidean distance, negative",
    "manhattan": "Manhattan distance, negative",
}

Write = Callable[["Compared"], None]
Writer = AbstractContextManager[Write]


@dataclass(frozen=True)
class Wanted:
    """What is given: one JSON document, files of CSV and of a picture, or else text."""

    json: bool = False
    csv: Path | None = None
    picture: Path | None = None

    @property
    def text(self) -> bool:
        return not (self.json or self.csv or self.picture)

    @property
    def on_standard_output(self) -> bool:
        return self.text or self.json


def pairs_writers(wanted: Wanted, model: str, metric: str) -> Iterator[Writer]:
    """All that writes pairs."""
    if wanted.text:
        yield _pairs_text()
    if wanted.json:
        yield _json_document({"model": model, "metric": metric}, "pairs")
    if wanted.csv:
        yield _csv_file(wanted.csv, None)


def matrix_writers(
    wanted: Wanted, model: str, metric: str, rows: Sequence[str], columns: Sequence[str]
) -> Iterator[Writer]:
    """All that writes a matrix; `columns` is `rows` where sentences are compared with themselves."""
    if wanted.text:
        yield _matrix_text(columns, columns is rows)
    if wanted.json:
        yield _json_document({"model": model, "metric": metric, "rows": rows, "columns": columns}, "matrix")
    if wanted.csv:
        yield _csv_file(wanted.csv, columns)
    if wanted.picture:
        yield _picture_file(wanted.picture, rows, columns, TITLES[metric])


@contextmanager
def _pairs_text() -> Iterator[Write]:
    """A line for each pair: similarity and sentences, with tabs between."""

    def write(block: "Compared") -> None:
        for value, first, second in zip(block.similarity, block.first, block.second, strict=True):
            echo(f"{value:.4f}\t{on_one_line(first)}\t{on_one_line(second)}")

    yield write


@contextmanager
def _matrix_text(columns: Sequence[str], is_of_itself: bool) -> Iterator[Write]:
    """Numbered columns, each row with its sentence; the columns' sentences below, where they are others."""
    echo(" ".join(f"{number:>9}" for number in range(1, len(columns) + 1)))
    row = 0

    def write(block: "Compared") -> None:
        nonlocal row
        for sentence, values in zip(block.first, block.similarity, strict=True):
            row += 1
            echo(" ".join(f"{value:>9.4f}" for value in values) + f"  {row:>4}  {_short(sentence)}")

    yield write
    if not is_of_itself:
        echo("")
        for number, sentence in enumerate(columns, 1):
            echo(f"{number:>9}  {_short(sentence)}")


@contextmanager
def _json_document(head: dict[str, Any], name: str) -> Iterator[Write]:
    """One document on standard output: `head`, and under `name` a list of the pairs, or of the matrix's rows."""
    echo(json.dumps(head, ensure_ascii=False)[:-1] + f', "{name}": [', nl=False)
    between = ""

    def write(block: "Compared") -> None:
        nonlocal between
        for item in _items(block):
            echo(between + json.dumps(item, ensure_ascii=False), nl=False)
            between = ", "

    yield write
    echo("]}")


def _items(block: "Compared") -> Iterator[Any]:
    if block.similarity.ndim == 2:
        yield from _figures(block)
    else:
        for first, second, value in zip(block.first, block.second, _figures(block), strict=True):
            yield {"a": first, "b": second, "similarity": value}


@contextmanager
def _csv_file(path: Path, columns: Sequence[str] | None) -> Iterator[Write]:
    """`a,b,similarity` of pairs; of a matrix a row for each sentence, under a header of the `columns`' sentences."""
    with _written(path) as building, building.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["a", "b", "similarity"] if columns is None else ["", *columns])

        def write(block: "Compared") -> None:
            if columns is None:
                rows.writerows(zip(block.first, block.second, _figures(block), strict=True))
            else:
                rows.writerows([sentence, *row] for sentence, row in zip(block.first, _figures(block), strict=True))

        yield write


@contextmanager
def _picture_file(path: Path, rows: Sequence[str], columns: Sequence[str], title: str) -> Iterator[Write]:
    """A heat map of the whole matrix."""
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


def _figures(block: "Compared") -> Any:
    return block.similarity.astype(np.float64).round(DIGITS).tolist()


def _short(sentence: str) -> str:
    from bertrelay.plots import cut

    return cut(on_one_line(sentence), LABEL_COLUMNS)
