"""The answers of `bertrelay search`: as text to read, as JSON, or in a file."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertrelay.data.tables import on_one_line, write_csv, write_jsonl, write_tsv
from bertrelay.files import atomic_write, write_error

if TYPE_CHECKING:
    from students.index import Hit

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
        f"{rank:4}  {hit.similarity:.4f}  line {hit.line:>{width},}  {on_one_line(hit.text)}"
        for rank, hit in enumerate(answer.hits, 1)
    ]
    return "\n".join([on_one_line(answer.query), *rows])


def as_document(answer: Answer) -> dict[str, Any]:
    """An answer as JSON holds it."""
    line = {} if answer.line is None else {"line": answer.line}
    hits = [{"rank": rank, **hit._asdict()} for rank, hit in enumerate(answer.hits, 1)]
    return {"query": answer.query, **line, "hits": hits}


def write_answers(path: Path, answers: Iterable[Answer]) -> None:
    """Writes JSONL with an answer in each line, or CSV or TSV with a hit in each; the file is whole or not there."""
    try:
        with atomic_write(path) as writing:
            WRITERS[path.suffix](writing, answers)
    except OSError as error:
        raise write_error(path, error) from error


def _rows(answers: Iterable[Answer]) -> Iterator[tuple[Any, ...]]:
    for answer in answers:
        for rank, hit in enumerate(answer.hits, 1):
            yield answer.line, answer.query, rank, round(hit.similarity, 6), hit.line, hit.text


WRITERS: dict[str, Callable[[Path, Iterable[Answer]], None]] = {
    ".jsonl": lambda path, answers: write_jsonl(path, map(as_document, answers)),
    ".csv": lambda path, answers: write_csv(path, COLUMNS, _rows(answers)),
    ".tsv": lambda path, answers: write_tsv(path, COLUMNS, _rows(answers)),
}
