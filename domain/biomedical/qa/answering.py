"""The answers to many questions, from a file to a file, in shards that survive a kill, and on a page.

Importing this loads neither torch nor transformers, so that an invalid request is reported at once.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

from bertrelay.data.records import Rejects, rows
from bertrelay.data.shards import Scan, Shards, Span, cut_spans, json_line, model_output, read_spans
from bertrelay.data.tables import Table, Unusable, format_of, write_table
from bertrelay.distributed import SINGLE_PROCESS, ProcessGroup
from bertrelay.errors import RequestError
from bertrelay.files import check_output, write_error, write_text
from bertrelay.privacy import check_page
from bertrelay.progress import Bar, log
from bertrelay.stage import Metrics, StageContext
from domain.biomedical.documents.document import Unfit, shown_id
from domain.biomedical.qa.question_files import Item, built, question_format_of, question_items, usable_questions
from domain.biomedical.qa.questions import Question
from domain.biomedical.qa.settings import AnswerSettings, InputFormat, QuestionFormat, TableFormat

if TYPE_CHECKING:
    from domain.biomedical.qa.answerer import QuestionAnswerer, Reply

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

    def questions(self, rejects: Rejects | None = None) -> Iterator[Question]:
        """Streams the questions; of one id the first. Without `rejects` nothing that is left out is logged."""
        return usable_questions(self._items(), rejects or Rejects(None, limit=1), quiet=rejects is None)

    def check(self) -> None:
        """Reads one question, which shows most faults of a request. Raises RequestError."""
        next(self.questions(), None)

    def _items(self) -> Iterator[Item]:
        if not self.path.is_file():
            raise RequestError(f"there is no file {self.path}. Check the path; in a recipe it counts from its folder.")
        name = self.format or _format_by_name(self.path)
        if name is None and question_format_of(self.path) == "jsonl":
            name = "jsonl"
        if name in get_args(TableFormat):
            return self._of_table(cast(TableFormat, name))
        return question_items(self.path, cast(QuestionFormat | None, name))

    def _of_table(self, name: TableFormat) -> Iterator[Item]:
        """The rows of a table as questions. Raises RequestError for a column that is not there."""

        def table(columns: list[str]) -> Table:
            return Table.model_validate({"path": str(self.path), "format": name, "columns": columns})

        id_column = self.id_column
        if id_column is None:
            try:
                next(rows(table(["id"]), []), None)
                id_column = "id"
            except RequestError:  # reading the other columns reports other faults
                pass
        columns = [self.question_column, self.context_column, *([id_column] if id_column else [])]
        for row in rows(table(columns), []):
            if isinstance(row, Unusable):
                yield row
            else:
                question, context, *named = row.values
                name_of_row = named[0] if named else row.line
                yield built(partial(_of_row, question, context, name_of_row), row.file, row.line, name_of_row)


def _format_by_name(path: Path) -> TableFormat | None:
    """The table format that a file's name implies; None for JSON, which may be one of several, and for other names."""
    found = format_of(str(path))
    is_json = path.name.lower().removesuffix(".gz").endswith(".json")
    return None if is_json or found == "lines" else found


def _of_row(question: object, context: object, name: object) -> Question:
    if not shown_id(name):
        raise Unfit("a row without an id", "give each question one of its own")
    if not (isinstance(question, str | None) and isinstance(context, str | None)):
        raise Unfit("a question or context that is no text", "expected text in both columns")
    return Question(str(name), question or "", context or "")


def scan(source: QuestionFile, listed: Path, max_rejects: float) -> Scan:
    """Reads all of `source`; logs what is left out, and lists in `listed` what is unusable.

    Raises WorkError when that is more than `max_rejects` of all, RequestError when nothing is left.
    """
    digest = hashlib.sha256()

    def sizes() -> Iterator[tuple[int, int]]:
        """The characters of each question and its context, and 1: what spans are cut by and progress counts."""
        for question in source.questions(rejects):
            digest.update(json.dumps([question.id, question.question, question.context]).encode())
            yield len(question.question) + len(question.context), 1

    with Rejects(listed, max_rejects, keep_empty=False) as rejects:
        spans = cut_spans(sizes(), BLOCK_CHARACTERS)
    if not spans:
        raise RequestError(f"{source.path} holds no question that can be asked. Is it the right file, and complete?")
    return Scan(spans, digest.hexdigest(), rejects.counts.total())


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
    process_group: each of several processes computes its share; see `tag_file`.

    Killed and called again, with as many processes or others, it resumes at the first shard that is missing.
    Raises RequestError, before anything is computed, for an input or output that cannot be what it should be, and
    WorkError when too many questions are left out.
    """
    from domain.biomedical.qa.answerer import QuestionAnswerer, too_long

    source = QuestionFile(Path(questions), source_format, id_column, question_column, context_column)
    output, page = Path(output), Path(page) if page else None
    _check_outputs(source, output, page, with_text)
    with model_output(
        output,
        model,
        partial(scan, source, output.with_name(f"{output.name}.rejects.jsonl"), max_rejects),
        block=BLOCK_CHARACTERS,
        precision=precision,
        cache=cache,
        process_group=process_group,
        top=top,
        whole_words=whole_words,
    ) as work:
        answerer = QuestionAnswerer.load(work.folder, whole_words=whole_words)
        options = {"top": top, "precision": work.precision, "batch_tokens": batch_tokens}
        filled = work.shards.fill(partial(_lines, answerer, source, options), "answering", "questions")
        without_answer, refused = _assemble(source, work.shards, output, page) if work.is_main else (0, [])
    if refused:
        first = f"{len(refused):,} questions are left without an answer, {shown_id(refused[0])!r} the first"
        log(f"{first}: {too_long(answerer.model)}")
    return AnsweredFile(work.scan.items, without_answer, len(refused), work.scan.rejected, filled.rate)


def _check_outputs(source: QuestionFile, output: Path, page: Path | None, with_text: bool) -> None:
    check_output(output, SUFFIXES, source.path)
    if page:
        check_output(page, (".html",), option="page")
        check_page(with_text)


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
    answerer: "QuestionAnswerer", source: QuestionFile, options: dict[str, Any], spans: Sequence[Span], bar: Bar
) -> Iterator[Iterator[str]]:
    """The lines of answered questions for each of `spans`."""
    for span, questions in zip(spans, read_spans(source.questions(), spans, source.path), strict=True):
        yield (json_line(_row(*each)) for each in answerer.replies(questions, **options))
        bar.advance(span.size)


def _row(question: Question, reply: "Reply | None") -> Row:
    """A question that is too long has no candidate, by which it is known in the end."""
    nbest = [
        {"answer": text, "start": start, "end": end, "probability": round(probability, DIGITS)}
        for text, start, end, probability in (reply.nbest if reply else ())
    ]
    sentence = reply.sentence if reply else ""
    return {"id": question.id, **(nbest[0] if nbest else REFUSED), "sentence": sentence, "nbest": nbest}


def _assemble(source: QuestionFile, shards: Shards, output: Path, page: Path | None) -> tuple[int, list[str]]:
    """Writes the answers; how many questions have none in their contexts, and the ids of those that are too long."""
    if output.suffix == ".jsonl":
        shards.join(output)
    else:
        write_table(output, COLUMNS, (tuple(map(row.get, COLUMNS)) for row in shards.rows()))
    if page:
        _write_page(source, shards.rows(), page)
    without_answer = sum(bool(row["nbest"] and not row["answer"]) for row in shards.rows())
    return without_answer, [row["id"] for row in shards.rows() if not row["nbest"]]


def _write_page(source: QuestionFile, answered: Iterator[Row], path: Path) -> None:
    """Writes the page of all contexts with the answers to their questions."""
    from domain.biomedical.qa.page import answer_page

    try:
        write_text(
            path, answer_page(zip(source.questions(), answered, strict=True), f"Answers from {source.path.name}")
        )
    except OSError as error:
        raise write_error(path, error) from error
