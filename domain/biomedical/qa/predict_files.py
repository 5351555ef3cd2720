"""Answers to files and datasets of questions, in shards that survive a kill, and the page of answers.

Importing this loads neither torch nor transformers, so that an invalid request is reported at once.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

from markupsafe import Markup

from bertrelay.cache import Cache
from bertrelay.compute.engine import LOCAL, Engine
from bertrelay.compute.work import Compute, Work
from bertrelay.data.records import Rejects, canonical_id, rows
from bertrelay.data.sanity import MAX_SWAPPED, MIN_RECORDS
from bertrelay.data.shards import ShardFiles, SpanReader, cut_spans
from bertrelay.data.tables import ABSENT, Rejected, Table, table_format
from bertrelay.data.writing import json_line, write_table
from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, check_output
from bertrelay.inference.run_model import BLOCK_CHARACTERS, DIGITS, Scan, connect, open_run
from bertrelay.privacy import check_page
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup
from bertrelay.progress import Bar, log
from bertrelay.settings import settings_of
from bertrelay.stage import Metrics, StageContext
from domain.biomedical.documents.html import HUES, Highlight, marked, render, shown
from domain.biomedical.qa.data import DUPLICATE, Candidate, Question, Reply
from domain.biomedical.qa.question_files import Item, QuestionPath, build_question, question_format_of, question_items
from domain.biomedical.qa.settings import (
    AnswerOptions,
    AnswerSettings,
    AnswerType,
    InputFormat,
    QuestionFormat,
    TableFormat,
)
from domain.reading import shown_id, usable, with_distinct_ids

if TYPE_CHECKING:
    from bertrelay.inference.run_model import Columns, WrittenDataset

COLUMNS = {
    "id": "string",
    "answer": "string",
    "start": "int64",
    "end": "int64",
    "probability": "double",
    "sentence": "string",
}
"""The columns of a table of answers; JSONL has the candidates as well."""
TOO_LONG = "too long for a window of the model"
TEMPLATE = Path(__file__).parent / "answers.html.jinja"
MAX_OF_SENTENCE = 0.6
"""An answer of a larger fraction of its sentence is not shown in it again."""


class QuestionFile(NamedTuple):
    """A file of questions, with the columns of a table.

    format: by the name where that is clear, else by the content, when absent.
    id_column: `id` when absent, or the lines where a table, or a row of JSONL, has none.
    keep: fields of JSONL that are written with the answers.
    types: of BioASQ's questions that are read.
    """

    path: Path
    format: InputFormat | None = None
    id_column: str | None = None
    question_column: str = "question"
    context_column: str = "context"
    keep: tuple[str, ...] = ()
    types: tuple[AnswerType, ...] = ("factoid",)

    def questions(self, rejects: Rejects | None = None) -> Iterator[Question]:
        """Streams the questions, the first one of each id. Without `rejects` nothing that is left out is logged."""
        if rejects is None:
            return usable(self._items(), Rejects(None, limit=1), log_as=None)
        return usable(self._items(), rejects)

    def _items(self) -> Iterator[Item]:
        name: InputFormat | None = self.format
        if name is None:
            by_suffix, inner = table_format(str(self.path)), self.path.name.lower().removesuffix(".gz")
            is_clear = by_suffix != "lines" and not inner.endswith(".json")  # JSON may be one of several
            name = cast(TableFormat, by_suffix) if is_clear else question_format_of(self.path)
        if self.keep and name != "jsonl":
            raise RequestError(f"keep: only from JSONL to JSONL, found {name}")
        if name in get_args(TableFormat):
            return with_distinct_ids(self._rows(cast(TableFormat, name)), DUPLICATE)
        return question_items(QuestionPath(self.path, cast(QuestionFormat | None, name), self.types))

    def _rows(self, name: TableFormat) -> Iterator[Item]:
        """The rows of a table as questions. Raises RequestError for a column that is not there."""

        def table(*columns: str) -> Table:
            return Table.model_validate({"path": str(self.path), "format": name, "columns": list(columns)})

        columns = [self.question_column, self.context_column, *([self.id_column] if self.id_column else [])]
        ids = [] if self.id_column else ["id"]
        for row in rows(table(*columns), [], optional=[*ids, *map(str.lower, self.keep)]):
            if isinstance(row, Rejected):
                yield row
            else:
                question, context, number, *others = row.values
                if self.id_column is None and (number is ABSENT or (number is None and name == "jsonl")):
                    number = row.line
                fields = dict(zip(self.keep, (None if value is ABSENT else value for value in others), strict=True))
                yield build_question(row.file, row.line, number, _from_row, question, context, number, fields)


def _from_row(question: object, context: object, number: object, fields: Mapping[str, Any]) -> Question:
    """A question of a table. Raises Rejected for values that are no id or no text."""
    try:
        name = number if isinstance(number, str) else canonical_id(number)
    except ValueError as error:
        raise Rejected(str(error), "give each question one") from None
    if not name:
        raise Rejected("a row without an id", "give each question one of its own")
    if not (isinstance(question, str | None) and isinstance(context, str | None)):
        raise Rejected("a question or context that is no text", "expected text in both columns")
    return Question(name, question or "", context or "", fields=fields)


def check_outputs(
    source: str | Path, output: Path, page: Path | None, *, with_text: bool, overwrite: bool, option: str = "page"
) -> None:
    """Raises RequestError for an output or a page that cannot be written.

    with_text: allow a page of sensitive data. option: the page's name in errors.
    """
    check_output(output, (".jsonl", ".csv", ".parquet"), source, overwrite=overwrite)
    if page:
        check_output(page, (".html",), option=option, overwrite=overwrite)
        check_page(with_text)


def scan(source: QuestionFile, listed: Path, max_rejects: float) -> Scan:
    """Reads all of `source`; logs what is left out, and lists in `listed` what is unusable.

    Raises WorkError when that is more than `max_rejects` of all, RequestError when nothing is left.
    """
    longer, digest, absent = 0, hashlib.sha256(), set(source.keep)

    def sizes() -> Iterator[tuple[int, int]]:
        """Yields the characters of each question with its context, by which spans are cut, and 1, its progress."""
        nonlocal longer
        for question in source.questions(rejects):
            longer += len(question.question) > len(question.context)
            absent.intersection_update(name for name, value in question.fields.items() if value is None)
            values = [question.id, question.question, question.context, *question.fields.items()]
            digest.update(json.dumps(values).encode())
            yield len(question.question) + len(question.context), 1

    with Rejects(listed, max_rejects, keep_empty=False) as rejects:
        spans = cut_spans(sizes(), BLOCK_CHARACTERS)
    if not spans:
        raise RequestError(f"{source.path} holds no question that can be asked. Is it the right file, and complete?")
    if absent:
        raise RequestError(f"keep: expected fields of {source.path}, found none named {', '.join(sorted(absent))}")
    if spans[-1].end >= MIN_RECORDS and longer > MAX_SWAPPED * spans[-1].end:
        log(
            f"{source.path}: {longer:,} of {spans[-1].end:,} questions are longer than their contexts; "
            "are the two columns swapped?"
        )
    return Scan(spans, digest.hexdigest(), rejects.counts.total())


class AnsweredFile(NamedTuple):
    """Counts of `answer_file`.

    without_answer: questions with "no answer" as best candidate. too_long: those that leave their contexts no space in
        a window, and so have no candidate. rejected: those that cannot be used.
    questions_per_second: the rate of this call; None where all shards were there before.
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
    keep: Sequence[str] = (),
    cache: Cache | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
    engine: Engine | str = LOCAL,
    top: int = 5,
    whole_words: bool | None = None,
    max_rejects: float = 0.01,
    with_text: bool = False,
    precision: str = "auto",
    batch_tokens: int | None = None,
    overwrite: bool = False,
) -> AnsweredFile:
    """Writes a row for each of `questions`: answer, offsets, probability, the sentence around it, other candidates.

    questions: CSV, TSV, JSONL or Parquet with a row for each question and its context, or SQuAD's or BioASQ's JSON, of
        which every snippet is a context; source_format when its name does not imply it.
    output: `.jsonl`, `.csv` or `.parquet`; the last two have only the best candidate.
    page: file for an HTML page of all contexts with their answers marked.
    keep: fields of JSONL that the output, which is JSONL, has too.
    cache: folder for a model of the hub.
    process_group, engine: processes or the workers of a cluster that share the work; see `tag_file`.
    top, whole_words, max_rejects, with_text, precision, batch_tokens: see `AnswerOptions`. Rejected questions are
        listed in `OUTPUT.rejects.jsonl`.
    overwrite: replace existing files, which are an error otherwise.

    Killed and called again, with as many processes or others, it resumes at the first shard that is missing.
    Raises RequestError, before anything is computed, for an input or output that cannot be used, and WorkError when too
    many questions are left out.
    """
    options = settings_of(AnswerOptions, locals())
    source = QuestionFile(Path(questions), source_format, id_column, question_column, context_column, tuple(keep))
    output, page = Path(output), Path(page) if page else None
    _check_kept(keep, output)
    check_outputs(source.path, output, page, with_text=options.with_text, overwrite=overwrite)
    with open_run(
        output,
        model,
        partial(scan, source, output.with_name(f"{output.name}.rejects.jsonl"), options.max_rejects),
        span_limit=BLOCK_CHARACTERS,
        precision=options.precision,
        cache=cache,
        process_group=process_group,
        engine=engine,
        decisive=options.model_dump(include={"top", "whole_words"}),
    ) as run:
        start = partial(_start, run.folder, options, run.precision)
        reader = SpanReader(source.questions, source.path)
        rate = run.fill(Work(reader.read, start, "answering", "questions")).rate
        without_answer, refused = _assemble(source, run.shards, output, page) if run.is_main else (0, [])
    if refused:
        from domain.biomedical.qa.predict import QuestionAnswerer, too_long  # which loads torch

        first = f"{len(refused):,} questions are left without an answer, {shown_id(refused[0])!r} the first"
        log(f"{first}: {too_long(QuestionAnswerer.load(run.folder).model)}")
    return AnsweredFile(run.scan.items, without_answer, len(refused), run.scan.rejected, rate)


def _check_kept(keep: Sequence[str], output: Path) -> None:
    """Raises RequestError for fields that the output cannot have."""
    if keep and output.suffix != ".jsonl":
        raise RequestError(f"keep: only from JSONL to JSONL, found {output}")
    if written := [name for name in keep if name in (*COLUMNS, "nbest")]:
        raise RequestError(f"keep: {', '.join(written)} of each answer is written; name other fields")


def answer_dataset(
    model: str | Path,
    source: str,
    output: str,
    *,
    question_column: str = "question",
    context_column: str = "context",
    keep: Sequence[str] = (),
    cache: Cache | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
    engine: Engine | str = LOCAL,
    overwrite: bool = False,
    top: int = 5,
    whole_words: bool | None = None,
    precision: str = "auto",
    batch_tokens: int | None = None,
) -> "WrittenDataset":
    """Writes the rows of the Parquet files of `source` to the dataset `output`, with their answers.

    source, output: folders, or addresses such as `s3://bucket/folder`, as of `bertrelay.encode_dataset`.
    question_column, context_column: of texts. The output has `row`, the columns of `keep`, both texts, the columns of
        `answer_file`, and `reason`, which says of a question without an answer why it cannot be asked.
    cache, process_group, engine, overwrite: as of `bertrelay.encode_dataset`.
    top, whole_words, precision, batch_tokens: see `AnswerOptions`.
    Killed and called again it resumes. Raises as `encode_dataset` does.
    """
    import pyarrow as pa

    from bertrelay.inference.run_model import add_columns

    options = settings_of(AnswerOptions, locals())
    candidate = pa.struct([(name, kind) for name, kind in COLUMNS.items() if name not in ("id", "sentence")])
    kinds = {name: kind for name, kind in COLUMNS.items() if name != "id"}
    kinds |= {"nbest": pa.list_(candidate), "reason": pa.string()}
    texts, decisive = [question_column, context_column], options.model_dump(include={"top", "whole_words"})
    return add_columns(
        model,
        source,
        output,
        texts,
        [pa.field(name, kind) for name, kind in kinds.items()],
        partial(_load_answerer, texts, options),
        keep=keep,
        precision=options.precision,
        description="answering",
        cache=cache,
        process_group=process_group,
        engine=engine,
        overwrite=overwrite,
        decisive=decisive,
    )


def _load_answerer(
    texts: Sequence[str], options: AnswerOptions, folder: Path, precision: ComputePrecision
) -> "Columns":
    """The function from a block of the columns `texts` to the columns of its answers."""
    from domain.biomedical.qa.predict import QuestionAnswerer

    answerer = QuestionAnswerer.load(folder, whole_words=options.whole_words)

    def columns(block: Any) -> dict[str, list[Any]]:
        pairs = zip(*(block[column].to_pylist() for column in texts), strict=True)
        items = [build_question("", 0, row, Question, str(row), *pair) for row, pair in enumerate(pairs)]
        questions = (item for item in items if isinstance(item, Question))
        replies = answerer.replies(questions, top=options.top, precision=precision, batch_tokens=options.batch_tokens)
        rows: list[dict[str, Any]] = []
        for item in items:
            if isinstance(item, Rejected):
                rows.append({"reason": item.reason})
            else:
                question, reply = next(replies)
                rows.append(_row_of(question, reply) if reply else {"reason": TOO_LONG})
        return {name: [row.get(name) for row in rows] for name in (*COLUMNS, "nbest", "reason")}

    return columns


def run(settings: AnswerSettings, context: StageContext) -> Metrics:
    """The stage `domain.qa-answer`: `answers` with the suffix of the format, and perhaps `answers.html`."""
    options = settings.model_dump(include=set(AnswerOptions.model_fields))
    options |= {"with_text": settings.with_text or not context.sensitive}
    with connect(context.engine, context.process_group) as executor:
        options |= {"precision": context.precision(settings.precision, executor)}
        answered = answer_file(
            settings.model,
            settings.questions,
            context.output / f"answers.{settings.output}",
            source_format=settings.format,
            id_column=settings.id,
            question_column=settings.question,
            context_column=settings.context,
            page=context.output / "answers.html" if settings.page else None,
            keep=settings.keep,
            cache=context.cache,
            process_group=context.process_group,
            engine=context.engine,
            overwrite=True,
            **options,
        )
    return dict(answered._asdict())


def _start(folder: Path, options: AnswerOptions, precision: ComputePrecision) -> Compute[list[Question], Iterator[str]]:
    """The function from blocks of questions to the lines of their answers."""
    from domain.biomedical.qa.predict import QuestionAnswerer

    answerer = QuestionAnswerer.load(folder, whole_words=options.whole_words)

    def lines(blocks: Iterable[list[Question]], bar: Bar) -> Iterator[Iterator[str]]:
        for questions in blocks:
            replies = answerer.replies(
                questions, top=options.top, precision=precision, batch_tokens=options.batch_tokens
            )
            yield (json_line(_row_of(question, reply)) for question, reply in replies)
            bar.advance(len(questions))

    return lines


def _row_of(question: Question, reply: Reply | None) -> dict[str, Any]:
    """The row of a question with its reply; without candidates where there is none, as the question is too long."""
    nbest = [
        {"answer": text, "start": start, "end": end, "probability": round(probability, DIGITS)}
        for text, start, end, probability in (reply.nbest if reply else ())
    ]
    best = nbest[0] if nbest else {"answer": "", "start": None, "end": None, "probability": None}
    sentence = reply.sentence if reply else ""
    return {"id": question.id, **best, "sentence": sentence, "nbest": nbest, **question.fields}


def _reply_of(row: Mapping[str, Any]) -> Reply | None:
    """The reply of a row, as `_row_of` makes it."""
    if not row["nbest"]:
        return None
    nbest = [Candidate(*(row[name] for name in ("answer", "start", "end", "probability"))) for row in row["nbest"]]
    return Reply(*nbest[0], row["sentence"], nbest)


def _assemble(source: QuestionFile, shards: ShardFiles, output: Path, page: Path | None) -> tuple[int, list[str]]:
    """Writes the answers; returns how many questions have none, and the ids of those that are too long."""
    if output.suffix == ".jsonl":
        shards.join(output)
    else:
        write_table(output, COLUMNS, (tuple(map(row.get, COLUMNS)) for row in shards.rows()))
    if page:
        answered = zip(source.questions(), map(_reply_of, shards.rows()), strict=True)
        with atomic_write(page) as building:
            building.write_text(answer_page(answered, f"Answers from {source.path.name}"), encoding="utf-8")
    without_answer = sum(bool(row["nbest"] and not row["answer"]) for row in shards.rows())
    return without_answer, [row["id"] for row in shards.rows() if not row["nbest"]]


def answer_page(answered: Iterable[tuple[Question, Reply | None]], title: str) -> str:
    """An HTML page of questions with their replies, grouped by context; None is the reply to one that is too long."""
    groups = groupby(answered, key=lambda pair: pair[0].context)
    articles = [_article(number, context, list(group)) for number, (context, group) in enumerate(groups, 1)]
    replies = [shown_question["reply"] for article in articles for shown_question in article["answered"]]
    without_answer = sum(not (reply and reply.answer) for reply in replies)
    return render(TEMPLATE, title=title, articles=articles, questions=len(replies), without_answer=without_answer)


def _article(article: int, context: str, answered: Sequence[tuple[Question, Reply | None]]) -> dict[str, Any]:
    """Values of the template for a context: its name, its text with marks, and its questions."""
    questions, highlights = [], []
    for number, (question, reply) in enumerate(answered, 1):
        hue, anchor, sentence = f"hue-{(number - 1) % HUES}", f"answer-{article}-{number}", Markup()
        if reply and reply.start is not None and reply.end is not None:
            sentence = _mark_in_sentence(context, reply.start, reply.end, reply.sentence, hue)
            highlights.append(Highlight(reply.start, reply.end, hue, str(number), question.question, anchor))
        shown_question = {"number": number, "question": question.question, "anchor": anchor, "hue": hue}
        questions.append({**shown_question, "reply": reply, "sentence": sentence})
    document = answered[0][0].document
    name = document if document and not document.startswith("article-") else f"Context {article}"
    return {"name": name, "context": marked(context, highlights), "answered": questions}


def _mark_in_sentence(context: str, start: int, end: int, sentence: str, hue: str) -> Markup:
    """The sentence around an answer, with the answer marked in it; nothing where the answer is most of it."""
    if end - start >= MAX_OF_SENTENCE * len(sentence):
        return Markup()
    offset = context.index(sentence, max(0, end - len(sentence)))  # an equal one may occur elsewhere
    before, answer, after = context[offset:start], context[start:end], context[end : offset + len(sentence)]
    return Markup('{}<mark class="{}">{}</mark>{}').format(shown(before), hue, shown(answer), shown(after))
