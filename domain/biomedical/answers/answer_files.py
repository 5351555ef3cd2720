"""What answering reads and writes: questions surveyed and cut into blocks, and the output they are put together into.

This room loads neither torch nor transformers, so that a wrong request is told of at once.
"""

import csv
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertrelay.data.records import Rejects, rows
from bertrelay.data.tables import Record, Table, Unusable, format_of
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, write_error
from bertrelay.parts import Parts, Stretch
from domain.biomedical.annotations import Unfit
from domain.biomedical.answers.answer_settings import InputFormat
from domain.biomedical.answers.items import Item, checked
from domain.biomedical.answers.question_files import question_format_of, question_items, usable
from domain.biomedical.answers.questions import Question
from domain.biomedical.formats.items import told_id

SUFFIXES = (".jsonl", ".csv", ".parquet")
BLOCK_CHARACTERS = 400_000
"""So much text is asked before its answers are on the disk, questions and contexts: the most that a kill costs."""
FLAT = ("id", "answer", "start", "end", "probability", "sentence")
"""The columns of a table of answers; JSONL has the candidates as well."""

TableFormat = Literal["csv", "tsv", "jsonl", "parquet"]
Row = dict[str, Any]


class Source(NamedTuple):
    """A file of questions, and where in a table their parts stand.

    format: told by the name where that is enough, and else by what the file holds.
    id_column: `id` when not given, or the lines where a table has none.
    """

    path: Path
    format: InputFormat | None = None
    id_column: str | None = None
    question_column: str = "question"
    context_column: str = "context"

    def questions(self, rejects: Rejects | None = None, tell: bool = False) -> Iterator[Question]:
        """Streams the questions; each id stands for one. tell: whether to say what was read over."""
        return usable(self._items(), rejects, tell)

    def _items(self) -> Iterator[Item]:
        if not self.path.is_file():
            raise RequestError(f"there is no file {self.path}. Check the path; in a recipe it counts from its folder.")
        name = self.format or _format_by_name(self.path)
        if name is None and question_format_of(self.path) == "jsonl":
            name = "jsonl"
        match name:
            case "csv" | "tsv" | "jsonl" | "parquet":
                return _rows(self, name)
            case _:
                return question_items(self.path, name)


def _format_by_name(path: Path) -> TableFormat | None:
    """The table that a file's name tells; None for JSON, which may be much, and for what has another name."""
    found = format_of(str(path))
    is_json = path.name.lower().removesuffix(".gz").endswith(".json")
    return None if is_json or found == "lines" else found


def _rows(source: Source, name: TableFormat) -> Iterator[Item]:
    """The rows of a table as questions. Raises RequestError for a column that is not there."""
    columns = [source.question_column, source.context_column]
    named = source.id_column or ("id" if _has_ids(source, name) else None)
    for row in rows(_table(source, name, [*columns, *([named] if named else [])]), []):
        yield row if isinstance(row, Unusable) else _question(row)


def _table(source: Source, name: TableFormat, columns: list[str]) -> Table:
    return Table.model_validate({"path": str(source.path), "format": name, "columns": columns})


def _has_ids(source: Source, name: TableFormat) -> bool:
    try:
        next(rows(_table(source, name, ["id"]), []), None)
    except RequestError:
        return False  # what else is wrong, reading the other columns will tell
    return True


def _question(row: Record) -> Question | Unusable:
    """A row, (question, context) or (question, context, id), as a question."""
    question, context, *named = row.values
    identifier = named[0] if named else row.line
    name = told_id(identifier)
    try:
        if not name:
            raise Unfit("a row without an id", "give each question one of its own")
        if not all(isinstance(text, str | None) for text in (question, context)):
            raise Unfit("a question or context that is no text", "expected text in both columns")
        read = Question(str(identifier), question or "", context or "", file=row.file, line=row.line)
        return checked(read)
    except Unfit as fault:
        return Unusable(row.file, row.line, fault.reason, fault.detail, name)


def check_source(source: Source) -> None:
    """Reads one question, which tells most of what can be wrong with a request. Raises RequestError."""
    next(source.questions(Rejects(None, limit=1)), None)


class ReadThrough(NamedTuple):
    """What reading the source through has shown. digest: sha256 of all that decides the answers."""

    blocks: list[Stretch]
    rejected: int
    digest: str

    @property
    def questions(self) -> int:
        return self.blocks[-1].end


def read_through(source: Source, listed: Path, max_rejects: float) -> ReadThrough:
    """Reads `source` from its beginning to its end; tells what is read over, and lists in `listed` what is unusable.

    Raises WorkError when that is more than `max_rejects` of all, RequestError when nothing is left.
    """
    digest = hashlib.sha256()
    try:
        with Rejects(listed, max_rejects) as rejects:
            blocks = list(_blocks(source, rejects, digest))
    finally:
        if listed.is_file() and not listed.stat().st_size:
            listed.unlink()
    if not blocks:
        raise RequestError(f"{source.path} holds no question that can be asked. Is it the right file, and complete?")
    return ReadThrough(blocks, rejects.counts.total(), digest.hexdigest())


def _blocks(source: Source, rejects: Rejects, digest: "hashlib._Hash") -> Iterator[Stretch]:
    first = end = characters = 0
    for question in source.questions(rejects, tell=True):
        rejects.used()
        digest.update(json.dumps([question.id, question.question, question.context]).encode())
        end, characters = end + 1, characters + len(question.question) + len(question.context)
        if characters >= BLOCK_CHARACTERS:
            yield Stretch(first, end, end - first)
            first, characters = end, 0
    if first < end:
        yield Stretch(first, end, end - first)


# Written


def line_of(row: Row) -> str:
    """An answered question as it stands in a part, and in JSONL."""
    return json.dumps(row, ensure_ascii=False) + "\n"


def answered_rows(parts: Parts[Stretch]) -> Iterator[Row]:
    """All answered questions, in order."""
    for path in parts.paths:
        with path.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def write_answers(parts: Parts[Stretch], output: Path) -> None:
    """Writes the answers as JSONL, CSV or Parquet, by the suffix; a table has the best candidate alone."""
    write = {".jsonl": _write_jsonl, ".csv": _write_csv, ".parquet": _write_parquet}[output.suffix]
    try:
        with atomic_write(output) as building:
            write(parts, building)
    except OSError as error:
        raise write_error(output, error) from error


def _write_jsonl(parts: Parts[Stretch], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(map(line_of, answered_rows(parts)))


def _write_csv(parts: Parts[Stretch], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FLAT, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(answered_rows(parts))


def _write_parquet(parts: Parts[Stretch], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"start": pa.int64(), "end": pa.int64(), "probability": pa.float64()}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in FLAT])
    with pq.ParquetWriter(path, schema) as writer:
        for part in parts.paths:
            with part.open(encoding="utf-8") as lines:
                writer.write_table(pa.Table.from_pylist([json.loads(line) for line in lines], schema))
