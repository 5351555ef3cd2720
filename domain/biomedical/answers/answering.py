"""The answers to many questions, from a file to a file, in blocks that survive a kill, and on a page."""

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bertrelay.backbone import model_folder
from bertrelay.data.records import Rejects
from bertrelay.distributed import check_shared, from_main, wait_for_all
from bertrelay.files import check_output, output_lock, write_error, write_text
from bertrelay.fingerprint import Digests, fingerprint
from bertrelay.hardware import default_device, resolve_precision
from bertrelay.parts import Parts, Stretch, fill, taken
from bertrelay.privacy import check_page
from bertrelay.progress import log
from bertrelay.stage import Metrics, ProcessGroup, StageContext
from domain.biomedical.answers.answer_files import (
    BLOCK_CHARACTERS,
    SUFFIXES,
    ReadThrough,
    Row,
    Source,
    answered_rows,
    line_of,
    read_through,
    write_answers,
)
from domain.biomedical.answers.answer_settings import AnswerSettings, InputFormat
from domain.biomedical.answers.answerer import TOP, Candidate, QuestionAnswerer, Reply
from domain.biomedical.answers.finding import Asked, too_long
from domain.biomedical.answers.questions import Question
from domain.biomedical.formats.items import told_id

ALONE = ProcessGroup()
REFUSED: Row = {"answer": "", "start": None, "end": None, "probability": None}
DIGITS = 6  # of a probability; those behind them depend on the threads of a machine
MAX_REJECTS = 0.01


class AnsweredFile(NamedTuple):
    """What `answer_file` did.

    without_answer: questions that their contexts are held not to answer. too_long: those that leave their contexts no
        room in a window, and so have no candidate. rejected: those that could not be read.
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
    top: int = TOP,
    whole_words: bool | None = None,
    max_rejects: float = MAX_REJECTS,
    precision: str = "auto",
    batch_tokens: int | None = None,
    cache: Path | None = None,
    with_text: bool = False,
    process_group: ProcessGroup = ALONE,
) -> AnsweredFile:
    """Writes a row for each of `questions`: answer, offsets, probability, the sentence around it, other candidates.

    questions: CSV, TSV, JSONL or Parquet with a row for each question and its context, or SQuAD's or BioASQ's JSON, of
        which every snippet is a context; source_format when its name does not tell which.
    output: `.jsonl`, `.csv` or `.parquet`; the last two have the best candidate alone.
    page: takes an HTML page of all contexts with their answers marked.
    top: the most candidates told of a question.
    whole_words: whether an answer may neither begin nor end inside a word; as the model has it when not given.
    max_rejects: the share of questions that may be unusable; they are listed in `OUTPUT.rejects.jsonl`.
    cache: where a model of the hub is kept.
    with_text: allows a page within `bertrelay.privacy.sensitive_data()`.
    process_group: each of several processes computes its share; they need torch.distributed, to synchronise, and
        one folder of `output`, on a disk that all of them see.

    Killed and called again, with as many processes or others, it goes on at the first block that is not done.
    Raises RequestError, before anything is computed, for an input or output that cannot be what it should be, and
    WorkError when too many questions are left out.
    """
    source, output = Source(Path(questions), source_format, id_column, question_column, context_column), Path(output)
    check_output(output, SUFFIXES, source.path)
    if page is not None:
        check_output(Path(page), (".html",), option="page")
        check_page(with_text)
    with output_lock(output) if process_group.is_main else nullcontext():
        folder = from_main(
            model_folder(model, cache_dir=cache and cache / "hub") if process_group.is_main else None, process_group
        )
        precision = from_main(resolve_precision(precision, default_device()), process_group)
        read = from_main(_read(source, output, max_rejects) if process_group.is_main else None, process_group)
        parts = Parts(output, read.blocks)
        if process_group.is_main:
            parts.begin(_holds(folder, read, top, precision, whole_words))
        check_shared(parts.folder, process_group)
        answerer, started = QuestionAnswerer.load(folder, whole_words=whole_words), time.monotonic()
        lines = partial(_lines, answerer, source, top, precision, batch_tokens)
        computed = fill(parts, lines, "answering", "questions", process_group)
        seconds = time.monotonic() - started
        without_answer, refused = 0, list[str]()
        if process_group.is_main:
            write_answers(parts, output)
            if page is not None:
                write_page(source, parts, Path(page))
            without_answer, refused = _count(parts)
            parts.remove()
        wait_for_all(process_group)
    if refused:
        told = f"{len(refused):,} questions are left without an answer, {told_id(refused[0])!r} the first"
        log(f"{told}: {too_long(answerer.model)}")
    rate = computed / seconds if computed else None
    return AnsweredFile(read.questions, without_answer, len(refused), read.rejected, rate)


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


def _read(source: Source, output: Path, max_rejects: float) -> ReadThrough:
    return read_through(source, output.with_name(f"{output.name}.rejects.jsonl"), max_rejects)


def _holds(folder: Path, read: ReadThrough, top: int, precision: str, whole_words: bool | None) -> dict[str, object]:
    """What decides the content of the blocks."""
    model = Digests().of_folder(folder)
    key = fingerprint({"model": model, "questions": read.digest, "top": top, "whole_words": whole_words})
    return {"key": key, "precision": precision, "block": BLOCK_CHARACTERS}


def _lines(
    answerer: QuestionAnswerer,
    source: Source,
    top: int,
    precision: str,
    batch_tokens: int | None,
    wanted: Sequence[Stretch],
) -> Iterator[Iterator[str]]:
    """The lines of each block of answered questions."""
    for block in taken(source.questions(Rejects(None, limit=1)), wanted, source.path):
        questions = list(block)
        asked = (Asked(question.question, question.context, question.id) for question in questions)
        replies = answerer.replies(
            asked, top=top, precision=precision, batch_tokens=batch_tokens, refused=lambda _: None
        )  # a question that is refused has no candidate, by which it is known in the end
        yield map(line_of, _rows(questions, replies))


def _rows(questions: Sequence[Question], replies: Iterator[Reply | None]) -> Iterator[Row]:
    for question, reply in zip(questions, replies, strict=True):
        nbest = [_row(candidate) for candidate in reply.nbest] if reply else []
        sentence = reply.sentence if reply else ""
        yield {"id": question.id, **(nbest[0] if nbest else REFUSED), "sentence": sentence, "nbest": nbest}


def _row(candidate: Candidate) -> Row:
    text, start, end, probability = candidate
    return {"answer": text, "start": start, "end": end, "probability": round(probability, DIGITS)}


def _count(parts: Parts[Stretch]) -> tuple[int, list[str]]:
    """How many questions have no answer in their contexts, and the ids of those that were refused."""
    without_answer, refused = 0, list[str]()
    for row in answered_rows(parts):
        without_answer += bool(row["nbest"] and not row["answer"])
        if not row["nbest"]:
            refused.append(row["id"])
    return without_answer, refused


def write_page(source: Source, parts: Parts[Stretch], path: Path) -> None:
    """Writes the page of all contexts with the answers to their questions."""
    from domain.biomedical.answers.page import page

    asked = zip(source.questions(Rejects(None, limit=1)), answered_rows(parts), strict=True)
    try:
        write_text(path, page(asked, f"Answers from {source.path.name}"))
    except OSError as error:
        raise write_error(path, error) from error
