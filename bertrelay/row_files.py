"""Rows to files of CSV, TSV and JSONL, one after the other, so that there may be any number of them."""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any


def on_one_line(text: str) -> str:
    """`text` without the line breaks and tabs that would break the row it stands in."""
    return " ".join(text.split())


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes the names of the columns, then the rows; None is an empty field."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(chain([columns], rows))


def write_tsv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """As `write_csv`, with tabs between and no quotes, so each text stands on one line."""
    with path.open("w", encoding="utf-8", newline="") as file:
        for row in chain([columns], rows):
            file.write("\t".join("" if value is None else on_one_line(str(value)) for value in row) + "\n")


def write_jsonl(path: Path, documents: Iterable[Mapping[str, Any]]) -> None:
    """Writes a document in each line."""
    with path.open("w", encoding="utf-8", newline="") as file:
        for document in documents:
            file.write(json.dumps(document, ensure_ascii=False) + "\n")
