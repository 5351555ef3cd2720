"""The answers to many questions, from a file to a file, in shards that survive a kill, and on a page.

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
from bertrelay.settings import options_of
from bertrelay.stage import Metrics, StageContext
from domain.biomedical.documents.html import HUES, Highlight, marked, render, shown
from domain.biomedical.qa.question_files import Item, built, question_format_of, question_items
from domain.biomedical.qa.questions import DUPLICATE, Question
from domain.biomedical.qa.settings import AnswerOptions, AnswerSettings, InputFormat, QuestionFormat, TableFormat
from domain.reading import shown_id, usable, with_distinct_ids

if TYPE_CHECKING:
    from bertrelay.inference.run_model import Columns, WrittenDataset
    from domain.biomedical.qa.predict import Reply

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

Row = dict[str, Any]


class QuestionFile(NamedTuple):
    """A file of questions, and the columns of a table.

    format: found by the name where possible, else by the content.
    id_column: `id` when not given, or the lines where a table, or a row of JSONL, has none.
    keep: fields of JSONL that questions keep.
    """

    path: Path
    format: InputFormat | None = None
    id_column: str | None = None
    question_column: str = "question"
    context_column: str = "context"
    keep: tuple[str, ...] = ()

    def questions(self, rejects: Rejects | None = None) -> Iterator[Question]:
        """Streams the questions; of one id the first. Without `rejects` nothing that is left out is logged."""
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
        return question_items((self.path, cast(QuestionFormat | None, name)))

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
                question, context, given, *others = row.values
                kept = (None if value is ABSENT else value for value in others)
                if self.id_column is None and (given is ABSENT or (given is None and name == "jsonl")):
                    given = row.line
                fields = dict(zip(self.keep, kept, strict=True))
                yield built(row.file, row.line, given, _of_row, question, context, given, fields)


def _of_row(question: object, context: object, id_of_row: object, fields: Mapping[str, Any]) -> Question:
    try:
        name = id_of_row if isinstance(id_of_row, str) else canonical_id(id_of_row)
    except ValueError as error:
        raise Rejected(str(error), "give each question one") from None
    if not name:
        raise Rejected("a row without an id", "give each question one of its own")
    if not (isinstance(question, str | None) and isinstance(context, str | None)):
        raise Rejected("a question or context that is no text", "expected text in both columns")
    return Question(name, question or "", context or "", fields=fields)


def check_outputs(
    source: str | Path, output: Path, page: Path | None, with_text: bool, option: str = "page", overwrite: bool = True
) -> None:
    """Raises RequestError for an output or a page that cannot be written. option: what the page is called."""
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
        """The characters of each question and its context, and 1: what spans are cut by and progress counts."""
        nonlocal longer
        for question in source.questions(rejects):
            longer += len(question.question) > len(question.context)
            absent.intersection_update(name for name, value in question.fields.items() if value is None)
            asked = [question.id, question.question, question.context, *question.fields.items()]
            digest.update(json.dumps(asked).encode())
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
    keep: Sequence[str] = (),
    cache: Cache | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
    engine: Engine | str = LOCAL,
    **options: Any,
) -> AnsweredFile:
    """Writes a row for each of `questions`: answer, offsets, probability, the sentence around it, other candidates.

    questions: CSV, TSV, JSONL or Parquet with a row for each question and its context, or SQuAD's or BioASQ's JSON, of
        which every snippet is a context; source_format when its name does not imply it.
    output: `.jsonl`, `.csv` or `.parquet`; the last two have the best candidate alone.
    page: takes an HTML page of all contexts with their answers marked.
    keep: fields of JSONL that the output, which is JSONL, has too.
    cache: where a model of the hub is kept.
    process_group, engine: processes or the workers of a cluster that share the work; see `tag_file`.
    options: the fields of `AnswerOptions`. What is unusable is listed in `OUTPUT.rejects.jsonl`.

    Killed and called again, with as many processes or others, it resumes at the first shard that is missing.
    Raises RequestError, before anything is computed, for an input or output that cannot be what it should be, and
    WorkError when too many questions are left out.
    """
    given = options_of(AnswerOptions, options)
    source = QuestionFile(Path(questions), source_format, id_column, question_column, context_column, tuple(keep))
    output, page = Path(output), Path(page) if page else None
    _check_kept(keep, output)
    check_outputs(source.path, output, page, given.with_text)
    with open_run(
        output,
        model,
        partial(scan, source, output.with_name(f"{output.name}.rejects.jsonl"), given.max_rejects),
        span_limit=BLOCK_CHARACTERS,
        precision=given.precision,
        cache=cache,
        process_group=process_group,
        engine=engine,
        decisive={"top": given.top, "whole_words": given.whole_words},
    ) as run:
        options = {"top": given.top, "precision": run.precision, "batch_tokens": given.batch_tokens}
        start = partial(_start, run.folder, given.whole_words, options)
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
    if own := [name for name in keep if name in (*COLUMNS, "nbest")]:
        raise RequestError(f"keep: {', '.join(own)} of each answer is written; name other fields")


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
    **options: Any,
) -> "WrittenDataset":
    """Writes the rows of the Parquet files of `source` to the dataset `output`, with their answers.

    source, output: folders, or addresses such as `s3://bucket/folder`, as of `bertrelay.encode_dataset`.
    question_column, context_column: of texts. The output has `row`, the columns of `keep`, both texts, what
        `answer_file` gives for a question, and `reason`: why a question cannot be asked, which has no answer then.
    cache, process_group, engine, overwrite: as of `bertrelay.encode_dataset`.
    options: `top`, `whole_words`, `precision` and `batch_tokens` of `AnswerOptions`.
    Killed and called again it resumes. Raises as `encode_dataset` does.
    """
    import pyarrow as pa

    from bertrelay.inference.run_model import add_columns

    asked = options_of(AnswerOptions, options)
    candidate = pa.struct([(name, kind) for name, kind in COLUMNS.items() if name not in ("id", "sentence")])
    kinds = {name: kind for name, kind in COLUMNS.items() if name != "id"}
    kinds |= {"nbest": pa.list_(candidate), "reason": pa.string()}
    texts, decisive = [question_column, context_column], asked.model_dump(include={"top", "whole_words"})
    return add_columns(
        model,
        source,
        output,
        texts,
        [pa.field(name, kind) for name, kind in kinds.items()],
        partial(_load_answerer, texts, asked),
        keep=keep,
        precision=asked.precision,
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
    from domain.biomedical.qa.predict import QuestionAnswerer

    answerer = QuestionAnswerer.load(folder, whole_words=options.whole_words)
    how: dict[str, Any] = {"top": options.top, "precision": precision, "batch_tokens": options.batch_tokens}

    def columns(block: Any) -> dict[str, list[Any]]:
        given = zip(*(block[column].to_pylist() for column in texts), strict=True)
        asked = [built("", 0, row, Question, str(row), *both) for row, both in enumerate(given)]
        replies = answerer.replies((each for each in asked if isinstance(each, Question)), **how)
        found: list[Row] = []
        for each in asked:
            if isinstance(each, Rejected):
                found.append({"reason": each.reason})
            else:
                question, reply = next(replies)
                found.append(_row(question, reply) if reply else {"reason": TOO_LONG})
        return {name: [row.get(name) for row in found] for name in (*COLUMNS, "nbest", "reason")}

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
            **options,
        )
    return dict(answered._asdict())


def _start(folder: Path, whole_words: bool | None, how: dict[str, Any]) -> Compute[list[Question], Iterator[str]]:
    from domain.biomedical.qa.predict import QuestionAnswerer

    answerer = QuestionAnswerer.load(folder, whole_words=whole_words)

    def lines(blocks: Iterable[list[Question]], bar: Bar) -> Iterator[Iterator[str]]:
        for questions in blocks:
            yield (json_line(_row(*answered)) for answered in answerer.replies(questions, **how))
            bar.advance(len(questions))

    return lines


def _row(question: Question, reply: "Reply | None") -> Row:
    """A question that is too long has no candidate, by which it is known in the end."""
    nbest = [
        {"answer": text, "start": start, "end": end, "probability": round(probability, DIGITS)}
        for text, start, end, probability in (reply.nbest if reply else ())
    ]
    best = nbest[0] if nbest else {"answer": "", "start": None, "end": None, "probability": None}
    sentence = reply.sentence if reply else ""
    return {"id": question.id, **best, "sentence": sentence, "nbest": nbest, **question.fields}


def _assemble(source: QuestionFile, shards: ShardFiles, output: Path, page: Path | None) -> tuple[int, list[str]]:
    """Writes the answers; how many questions have none in their contexts, and the ids of those that are too long."""
    if output.suffix == ".jsonl":
        shards.join(output)
    else:
        write_table(output, COLUMNS, (tuple(map(row.get, COLUMNS)) for row in shards.rows()))
    if page:
        answered = zip(source.questions(), shards.rows(), strict=True)
        with atomic_write(page) as building:
            building.write_text(answer_page(answered, f"Answers from {source.path.name}"), encoding="utf-8")
    without_answer = sum(bool(row["nbest"] and not row["answer"]) for row in shards.rows())
    return without_answer, [row["id"] for row in shards.rows() if not row["nbest"]]


# The page

TEMPLATE = Path(__file__).parent / "answers.html.jinja"
MAX_OF_SENTENCE = 0.6
"""An answer of a larger share of its sentence is not shown in it again."""


def answer_page(asked: Iterable[tuple[Question, Row]], title: str) -> str:
    """A page of questions and their answers, as `answer_file` writes them, grouped by context."""
    groups = groupby(asked, key=lambda answered: answered[0].context)
    articles = [_article(number, context, list(group)) for number, (context, group) in enumerate(groups, 1)]
    best = [answered["best"] for article in articles for answered in article["answered"]]
    without_answer = sum(not row["answer"] for row in best)
    return render(TEMPLATE, title=title, articles=articles, questions=len(best), without_answer=without_answer)


def _article(article: int, context: str, asked: Sequence[tuple[Question, Row]]) -> dict[str, Any]:
    answered, highlights = [], []
    for number, (question, row) in enumerate(asked, 1):
        hue, anchor = f"hue-{(number - 1) % HUES}", f"answer-{article}-{number}"
        shown_as = {"number": number, "question": question.question, "anchor": anchor, "hue": hue}
        sentence = _in_its_sentence(context, row, hue)
        answered.append({**shown_as, "best": row, "others": row["nbest"][1:], "sentence": sentence})
        if row["answer"]:
            highlights.append(Highlight(row["start"], row["end"], hue, str(number), question.question, anchor))
    document = asked[0][0].document
    name = document if document and not document.startswith("article-") else f"Context {article}"
    return {"name": name, "context": marked(context, highlights), "answered": answered}


def _in_its_sentence(context: str, row: Row, hue: str) -> Markup:
    """The sentence around an answer, with the answer marked in it; nothing where the answer is most of it."""
    start, end, sentence = row["start"], row["end"], row["sentence"]
    if len(row["answer"]) >= MAX_OF_SENTENCE * len(sentence):
        return Markup()
    offset = context.index(sentence, max(0, end - len(sentence)))  # an equal one may occur elsewhere
    before, answer, after = context[offset:start], context[start:end], context[end : offset + len(sentence)]
    return Markup('{}<mark class="{}">{}</mark>{}').format(shown(before), hue, shown(answer), shown(after))
