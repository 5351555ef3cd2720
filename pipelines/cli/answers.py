"""The answers of `bertrelay search`: as text to read, as JSON, or in a file."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from bertrelay.errors import RequestError
from bertrelay.outputs import not_written

if TYPE_CHECKING:
    from students.searching.opened import Hit

COLUMNS = ("query_line", "query", "rank", "similarity", "line", "text")


class Answer(NamedTuple):
    """What was found for a query; `line` is where the query stands in its file, None for one of `--query`."""

    query: str
    line: int | None
    hits: "list[Hit]"


def as_text(answer: Answer) -> str:
    """The query and a line for each hit: rank, similarity, line in the corpus, text."""
    width = max((len(f"{hit.line:,}") for hit in answer.hits), default=0)
    rows = [
        f"{rank:4}  {hit.similarity:.4f}  line {hit.line:>{width},}  {_on_one_line(hit.text)}"
        for rank, hit in enumerate(answer.hits, 1)
    ]
    return "\n".join([_on_one_line(answer.query), *rows])


def as_document(answer: Answer) -> dict[str, Any]:
    """An answer as JSON holds it."""
    line = {} if answer.line is None else {"line": answer.line}
    hits = [{"rank": rank, **hit._asdict()} for rank, hit in enumerate(answer.hits, 1)]
    return {"query": answer.query, **line, "hits": hits}


def check_answers_file(path: Path) -> None:
    """Raises RequestError for a file of no known kind, or in no folder."""
    if path.suffix not in WRITERS:
        raise RequestError(f"--output: expected a file that ends in .jsonl, .csv or .tsv, found {path}")
    if not path.parent.is_dir():
        raise RequestError(f"--output: there is no folder {path.parent} to write {path.name} into; make it first")


def write_answers(path: Path, answers: Iterable[Answer]) -> None:
    """Writes JSONL with an answer in each line, or CSV or TSV with a hit in each; the file is whole or not there."""
    writing = path.with_name(path.name + ".writing")
    try:
        with writing.open("w", encoding="utf-8", newline="") as file:
            WRITERS[path.suffix](file, answers)
        writing.replace(path)
    except OSError as error:
        raise not_written(path, error) from error
    finally:
        writing.unlink(missing_ok=True)


def _write_jsonl(file: TextIO, answers: Iterable[Answer]) -> None:
    for answer in answers:
        file.write(json.dumps(as_document(answer), ensure_ascii=False) + "\n")


def _write_csv(file: TextIO, answers: Iterable[Answer]) -> None:
    writer = csv.writer(file)
    writer.writerow(COLUMNS)
    writer.writerows(_rows(answers))


def _write_tsv(file: TextIO, answers: Iterable[Answer]) -> None:
    for row in chain([COLUMNS], _rows(answers)):
        file.write("\t".join("" if value is None else _on_one_line(str(value)) for value in row) + "\n")


def _rows(answers: Iterable[Answer]) -> Iterator[tuple[Any, ...]]:
    for answer in answers:
        for rank, hit in enumerate(answer.hits, 1):
            yield answer.line, answer.query, rank, round(hit.similarity, 6), hit.line, hit.text


def _on_one_line(text: str) -> str:
    """`text` without the line breaks and tabs that would break the row it stands in."""
    return " ".join(text.split())


WRITERS: dict[str, Callable[[TextIO, Iterable[Answer]], None]] = {
    ".jsonl": _write_jsonl,
    ".csv": _write_csv,
    ".tsv": _write_tsv,
}
