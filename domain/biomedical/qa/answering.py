"""The answers to many questions, from a file to a file, in shards that survive a kill, and on a page.

Importing this loads neither torch nor transformers, so that an invalid request is reported at once.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bertrelay.data.records import Rejects, rows
from bertrelay.data.shards import Scan, Shards, Span, cut_spans, json_line, model_output, read_spans
from bertrelay.data.tables import Record, Table, Unusable, format_of, write_table
from bertrelay.distributed import SINGLE_PROCESS, ProcessGroup
from bertrelay.errors import RequestError
from bertrelay.files import check_output, write_error, write_text
from bertrelay.privacy import check_page
from bertrelay.progress import Bar, log
from bertrelay.stage import Metrics, StageContext
from domain.biomedical.documents.document import Unfit, shown_id
from domain.biomedical.qa.question_files import question_format_of, question_items, usable_questions
from domain.biomedical.qa.questions import Item, Question, checked
from domain.biomedical.qa.settings import AnswerSettings, InputFormat

if TYPE_CHECKING:
    from domain.biomedical.qa.answerer import Candidate, QuestionAnswerer, Reply

SUFFIXES = (".jsonl", ".csv", ".parquet")
BLOCK_CHARACTERS = 400_000
"""So much text is asked before its answers are on the disk, questions and contexts: the most that a kill costs."""
COLUMNS = {
    "id": "string",
    "answer": "string",
    "start": "int64",
    "end": "int64",
    "probability": "double",
    "sentence": "string",
}
"""The columns of a table of answers; JSONL has the candidates as well."""
DIGITS = 6  # of a probability; those behind them depend on the threads of a machine
MAX_REJECTS = 0.01

TableFormat = Literal["csv", "tsv", "jsonl", "parquet"]
Row = dict[str, Any]
REFUSED: Row = {"answer": "", "start": None, "end": None, "probability": None}


class QuestionFile(NamedTuple):
    """A file of questions, and the columns of a table.

    format: found by the name where possible, else by the content.
    id_column: `id` when not given, or the lines where a table has none.
    """

    path: Path
    format: InputFormat | None = None
    id_column: str | None = None
    question_column: str = "question"
    context_column: str = "context"

    def questions(self, rejects: Rejects | None = None, quiet: bool = True) -> Iterator[Question]:
        """Streams the questions; of one id the first. quiet: whether not to log what is left out."""
        return usable_questions(self._items(), rejects, quiet)

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
    """The table format that a file's name implies; None for JSON, which may be one of several, and for other names."""
    found = format_of(str(path))
    is_json = path.name.lower().removesuffix(".gz").endswith(".json")
    return None if is_json or found == "lines" else found


def _rows(source: QuestionFile, name: TableFormat) -> Iterator[Item]:
    """The rows of a table as questions. Raises RequestError for a column that is not there."""
    columns = [source.question_column, source.context_column]
    named = source.id_column or ("id" if _has_ids(source, name) else None)
    for row in rows(_table(source, name, [*columns, *([named] if named else [])]), []):
        yield row if isinstance(row, Unusable) else _question(row)


def _table(source: QuestionFile, name: TableFormat, columns: list[str]) -> Table:
    return Table.model_validate({"path": str(source.path), "format": name, "columns": columns})


def _has_ids(source: QuestionFile, name: TableFormat) -> bool:
    try:
        next(rows(_table(source, name, ["id"]), []), None)
    except RequestError:
        return False  # reading the other columns reports other faults
    return True


def _question(row: Record) -> Question | Unusable:
    """A row, (question, context) or (question, context, id), as a question."""
    question, context, *named = row.values
    identifier = named[0] if named else row.line
    name = shown_id(identifier)
    try:
        if not name:
            raise Unfit("a row without an id", "give each question one of its own")
        if not all(isinstance(text, str | None) for text in (question, context)):
            raise Unfit("a question or context that is no text", "expected text in both columns")
        read = Question(str(identifier), question or "", context or "", file=row.file, line=row.line)
        return checked(read)
    except Unfit as fault:
        return Unusable(row.file, row.line, fault.reason, fault.detail, name)


def check_source(source: QuestionFile) -> None:
    """Reads one question, which shows most faults of a request. Raises RequestError."""
    next(source.questions(Rejects(None, limit=1)), None)


def scan(source: QuestionFile, listed: Path, max_rejects: float) -> Scan:
    """Reads all of `source`; logs what is left out, and lists in `listed` what is unusable.

    Raises WorkError when that is more than `max_rejects` of all, RequestError when nothing is left.
    """
    digest = hashlib.sha256()
    with Rejects(listed, max_rejects, keep_empty=False) as rejects:
        spans = cut_spans(_sizes(source, rejects, digest), BLOCK_CHARACTERS)
    if not spans:
        raise RequestError(f"{source.path} holds no question that can be asked. Is it the right file, and complete?")
    return Scan(spans, digest.hexdigest(), rejects.counts.total())


def _sizes(source: QuestionFile, rejects: Rejects, digest: "hashlib._Hash") -> Iterator[tuple[int, int]]:
    """The characters of each question and its context, and 1: what spans are cut by and progress counts."""
    for question in source.questions(rejects, quiet=False):
        digest.update(json.dumps([question.id, question.question, question.context]).encode())
        yield len(question.question) + len(question.context), 1


def write_answers(shards: Shards, output: Path) -> None:
    """Writes the answers as JSONL, CSV or Parquet, by the suffix; a table has the best candidate alone."""
    if output.suffix == ".jsonl":
        shards.join(output)
    else:
        write_table(output, COLUMNS, (tuple(map(row.get, COLUMNS)) for row in shards.rows()))


class AnsweredFile(NamedTuple):
    """What `answer_file` did.

    without_answer: questions that their contexts are held not to answer. too_long: those that leave their contexts no
        space in a window, and so have no candidate. rejected: those that could not be read.
    questions_per_second: of what was computed now; None where that is nothing.
    """

    questions: int
    without_answer: int
    too_long: int
    rejected: int
    questions_per_second: float | None


def answer_file(
    model: str | Path,
    questions: str | Path,
    output: str | Path,
    *,
    source_format: InputFormat | None = None,
    id_column: str | None = None,
    question_column: str = "question",
    context_column: str = "context",
    page: str | Path | None = None,
    top: int = 5,
    whole_words: bool | None = None,
    max_rejects: float = MAX_REJECTS,
    precision: str = "auto",
    batch_tokens: int | None = None,
    cache: Path | None = None,
    with_text: bool = False,
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> AnsweredFile:
    """Writes a row for each of `questions`: answer, offsets, probability, the sentence around it, other candidates.

    questions: CSV, TSV, JSONL or Parquet with a row for each question and its context, or SQuAD's or BioASQ's JSON, of
        which every snippet is a context; source_format when its name does not imply it.
    output: `.jsonl`, `.csv` or `.parquet`; the last two have the best candidate alone.
    page: takes an HTML page of all contexts with their answers marked.
    top: the most candidates of a question.
    whole_words: whether an answer may neither begin nor end inside a word; as the model has it when not given.
    max_rejects: the share of questions that may be unusable; they are listed in `OUTPUT.rejects.jsonl`.
    cache: where a model of the hub is kept.
    with_text: allows a page within `bertrelay.privacy.sensitive_data()`.
    process_group: each of several processes computes its share; they need torch.distributed, to synchronise, and
        one folder of `output`, on a disk that all of them see.

    Killed and called again, with as many processes or others, it resumes at the first shard that is missing.
    Raises RequestError, before anything is computed, for an input or output that cannot be what it should be, and
    WorkError when too many questions are left out.
    """
    from domain.biomedical.qa.answerer import QuestionAnswerer, too_long

    source = QuestionFile(Path(questions), source_format, id_column, question_column, context_column)
    output = Path(output)
    check_output(output, SUFFIXES, source.path)
    if page is not None:
        check_output(Path(page), (".html",), option="page")
        check_page(with_text)
    listed = output.with_name(f"{output.name}.rejects.jsonl")
    with model_output(
        output,
        model,
        partial(scan, source, listed, max_rejects),
        block=BLOCK_CHARACTERS,
        precision=precision,
        cache=cache,
        process_group=process_group,
        top=top,
        whole_words=whole_words,
    ) as work:
        answerer = QuestionAnswerer.load(work.folder, whole_words=whole_words)
        compute = partial(_lines, answerer, source, top, work.precision, batch_tokens)
        filled = work.shards.fill(compute, "answering", "questions")
        without_answer, refused = 0, list[str]()
        if work.is_main:
            write_answers(work.shards, output)
            if page is not None:
                write_page(source, work.shards, Path(page))
            without_answer, refused = _count(work.shards)
    if refused:
        summary = f"{len(refused):,} questions are left without an answer, {shown_id(refused[0])!r} the first"
        log(f"{summary}: {too_long(answerer.model)}")
    return AnsweredFile(work.scan.items, without_answer, len(refused), work.scan.rejected, filled.rate)


def run(settings: AnswerSettings, context: StageContext) -> Metrics:
    """The stage `domain.qa-answer`: `answers` with the suffix of the format, and perhaps `answers.html`."""
    answered = answer_file(
        settings.model,
        settings.questions,
        context.output / f"answers.{settings.output}",
        source_format=settings.format,
        id_column=settings.id,
        question_column=settings.question,
        context_column=settings.context,
        page=context.output / "answers.html" if settings.page else None,
        top=settings.top,
        whole_words=settings.whole_words,
        max_rejects=settings.max_rejects,
        precision=settings.precision,
        batch_tokens=settings.batch_tokens,
        cache=context.cache,
        with_text=settings.with_text or not context.sensitive,
        process_group=context.process_group,
    )
    return dict(answered._asdict())


def _lines(
    answerer: "QuestionAnswerer",
    source: QuestionFile,
    top: int,
    precision: str,
    batch_tokens: int | None,
    spans: Sequence[Span],
    bar: Bar,
) -> Iterator[Iterator[str]]:
    """The lines of answered questions for each of `spans`."""
    from domain.biomedical.qa.answerer import QuestionInput

    for questions in map(list, read_spans(source.questions(Rejects(None, limit=1)), spans, source.path)):
        asked = (QuestionInput(question.question, question.context, question.id) for question in questions)
        replies = answerer.replies(
            asked, top=top, precision=precision, batch_tokens=batch_tokens, refused=lambda _: None
        )  # a question that is refused has no candidate, by which it is known in the end
        yield map(json_line, _answer_rows(questions, replies))
        bar.advance(len(questions))


def _answer_rows(questions: Sequence[Question], replies: "Iterator[Reply | None]") -> Iterator[Row]:
    for question, reply in zip(questions, replies, strict=True):
        nbest = [_row(candidate) for candidate in reply.nbest] if reply else []
        sentence = reply.sentence if reply else ""
        yield {"id": question.id, **(nbest[0] if nbest else REFUSED), "sentence": sentence, "nbest": nbest}


def _row(candidate: "Candidate") -> Row:
    text, start, end, probability = candidate
    return {"answer": text, "start": start, "end": end, "probability": round(probability, DIGITS)}


def _count(shards: Shards) -> tuple[int, list[str]]:
    """How many questions have no answer in their contexts, and the ids of those that were refused."""
    without_answer, refused = 0, list[str]()
    for row in shards.rows():
        without_answer += bool(row["nbest"] and not row["answer"])
        if not row["nbest"]:
            refused.append(row["id"])
    return without_answer, refused


def write_page(source: QuestionFile, shards: Shards, path: Path) -> None:
    """Writes the page of all contexts with the answers to their questions."""
    from domain.biomedical.page import answer_page

    asked = zip(source.questions(Rejects(None, limit=1)), shards.rows(), strict=True)
    try:
        write_text(path, answer_page(asked, f"Answers from {source.path.name}"))
    except OSError as error:
        raise write_error(path, error) from error
