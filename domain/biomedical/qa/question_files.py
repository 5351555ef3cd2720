"""Files of questions: SQuAD's and BioASQ's JSON, and JSONL, which holds every field of a question.

JSONL has a question in each line. One without an `id` is named by its line. `answers` may also be the lists of a row of
the library `datasets`, `{"text": [...], "answer_start": [...]}`.

SQuAD's JSON: a question without `is_impossible` and with an empty list of answers is impossible in a file whose
`version`, which stands before `data`, is 2, as its published script scores it.

BioASQ's JSON: of its questions those of the requested types are read. Each snippet becomes a context of its own, under
the question's id and the snippet's number (`5717fb557de986d80d000009_003`).

An article without a name is named after its text.
"""

import hashlib
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeVar, get_args

from pydantic import AliasChoices, Field, field_validator, model_validator

from bertrelay.data.records import Rejects, log_copies
from bertrelay.data.sanity import check_swapped
from bertrelay.data.tables import Rejected
from bertrelay.data.writing import json_line, write_lines
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, check_location, refuse_packed
from bertrelay.progress import log
from domain.biomedical.documents.document import numbered_lines
from domain.biomedical.documents.json_stream import Flag, Shape, fitted, json_value, json_window
from domain.biomedical.qa.data import (
    ALIGNMENTS,
    DUPLICATE,
    NO_CONTEXT,
    Answer,
    Question,
    Synonyms,
    align_answer,
    check_question,
    place_answers,
)
from domain.biomedical.qa.settings import AnswerType, QuestionFormat, QuestionSource
from domain.reading import shown_id, usable, with_distinct_ids

Item = Question | Rejected
"""A question, a record that cannot be used, or one that a format's reader leaves out."""

SHAPE = 'expected {"id", "question", "context", "answers": [{"text", "start"}]}'
SHAPES = (
    "SQuAD's JSON has articles in 'data', BioASQ's has 'questions', and JSONL has an object with "
    "`question` and `context` in each line."
)
LISTS: dict[str, QuestionFormat] = {"data": "squad", "questions": "bioasq"}


class QuestionPath(NamedTuple):
    """A file of questions. format: by its content when None. types: of BioASQ's questions that are read."""

    path: Path | str
    format: QuestionFormat | None = None
    types: Sequence[AnswerType] = ("factoid",)


def build_question(
    file: str, line: int, name: object, build: Callable[..., Question], *values: Any
) -> Question | Rejected:
    """The question that `build` makes of `values`; an unusable record where it or `check_question` raises Rejected.

    name: the id of an unusable record.
    """
    try:
        return check_question(replace(build(*values), file=file, line=line))
    except Rejected as fault:
        return fault.at(file, line, shown_id(name))


def _id_of(value: object) -> object:
    return value.get("id") if isinstance(value, dict) else None


def _name_of(contexts: Iterable[str]) -> str:
    """A name for an article that has none, made of its text."""
    digest = hashlib.blake2b("\0".join(contexts).encode(errors="surrogatepass"), digest_size=8)
    return f"article-{digest.hexdigest()}"


class _Record(Shape):
    """Base of records in which an optional field may be null."""

    @model_validator(mode="before")
    @classmethod
    def _drop_null(cls, record: Any) -> Any:
        fields = cls.model_fields
        if not isinstance(record, dict):
            return record
        return {
            name: value
            for name, value in record.items()
            if value is not None or (name in fields and fields[name].is_required())
        }


class _JsonAnswer(Shape):
    text: str
    start: int


class _JsonQuestion(_Record):
    id: str | int | None = None
    question: str
    context: str | None = None
    answers: list[_JsonAnswer] = Field(default_factory=list)
    golds: list[str] = Field(default_factory=list)
    impossible: Flag = Field(default=False, validation_alias=AliasChoices("impossible", "is_impossible"))
    document: str = ""
    pool: str = ""
    synonyms: list[list[str]] = Field(default_factory=list)
    answer_type: AnswerType = "factoid"
    yes: bool | None = None

    @field_validator("answers", mode="before")
    @classmethod
    def _pair_lists(cls, answers: Any) -> Any:
        """Answers as a row of the library datasets has them, a list of texts and one of offsets, as a list of both."""
        texts, starts = map(answers.get, ("text", "answer_start")) if isinstance(answers, dict) else (None, None)
        if isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts):
            return [{"text": text, "start": start} for text, start in zip(texts, starts, strict=True)]
        return answers


NO_ANSWERS: dict[str, list[object]] = {"text": [], "answer_start": []}
"""An impossible question of SQuAD 2.0 as the library datasets has it."""


def _read_jsonl(path: Path, prefix: str = "") -> Iterator[Item]:
    """prefix: stands before the line in the name of a question without an id."""
    context = ""
    for row in numbered_lines(path):
        if isinstance(row, Rejected):
            yield row
        elif line := row.values[0].strip():
            try:
                value = json_value(line)
            except Rejected as fault:
                yield fault.at(row.file, row.line)
                continue
            name = f"{prefix}{row.line}"
            item = build_question(row.file, row.line, _id_of(value), _from_jsonl, value, name, context)
            context = item.context if isinstance(item, Question) else context
            yield item


def _from_jsonl(value: Any, name: str, context_before: str) -> Question:
    try:
        record = fitted(_JsonQuestion, value)
    except Rejected as fault:
        raise Rejected(fault.reason, f"{fault.detail}; {SHAPE}") from None
    if record.context is None:
        raise Rejected(NO_CONTEXT, "give the text that answers it as `context`")
    # Questions of one context follow one another, and contexts are long: they share one text in memory.
    context = context_before if record.context == context_before else record.context
    answers, absent, notes = place_answers(context, [Answer(answer.text, answer.start) for answer in record.answers])
    return Question(
        name if record.id is None else str(record.id),
        record.question,
        context,
        answers,
        golds=(*record.golds, *absent),
        impossible=record.impossible or value.get("answers") == NO_ANSWERS,
        document=record.document or _name_of([context]),
        pool=record.pool,
        synonyms=tuple(map(tuple, record.synonyms)),
        answer_type=record.answer_type,
        yes=record.yes,
        notes=notes,
    )


def line_of(question: Question) -> str:
    """The line of JSONL of a question, its end included."""
    value = {"id": question.id, "question": question.question, "context": question.context}
    others = {name: getattr(question, name) for name in ("golds", "impossible", "document", "pool", "synonyms")}
    answers = [answer._asdict() for answer in question.answers]
    if question.answer_type != "factoid":
        others |= {"answer_type": question.answer_type}
    others = {name: field for name, field in others.items() if field}
    if question.yes is not None:
        others |= {"yes": question.yes}
    return json_line({**value, "answers": answers, **others})


class _Article(Shape):
    title: str | None = None
    paragraphs: list[Any]


class _Paragraph(Shape):
    context: str | None = None
    document_id: str | int | None = None
    qas: list[Any]


class _SquadAnswer(Shape):
    text: str
    answer_start: int


class _SquadQuestion(Shape):
    id: str | int
    question: str
    answers: list[_SquadAnswer] | None = None
    is_impossible: Flag | None = None


def _read_squad(path: Path) -> Iterator[Item]:
    """Memory has one article at a time."""
    file = str(path)
    for line, value, version in _listed(path, "data"):
        is_version_2 = version.lower().lstrip("v").startswith("2")
        try:
            article = fitted(_Article, value)
        except Rejected as fault:
            yield Rejected(fault.reason, f"expected an article with `paragraphs`: {fault.detail}", file=file, line=line)
            continue
        paragraphs = list[_Paragraph]()
        for number, paragraph in enumerate(article.paragraphs, 1):
            try:
                paragraphs.append(fitted(_Paragraph, paragraph))
            except Rejected as fault:
                detail = f"paragraph {number:,}: expected `context` and `qas`: {fault.detail}"
                yield Rejected(fault.reason, detail, file=file, line=line)
        ids = [str(paragraph.document_id) for paragraph in paragraphs if paragraph.document_id is not None]
        document = article.title or next(iter(ids), "") or _name_of(paragraph.context or "" for paragraph in paragraphs)
        for paragraph in paragraphs:
            values = paragraph.context, document, is_version_2
            for record in paragraph.qas:
                yield build_question(file, line, _id_of(record), _from_squad, record, *values)


def _from_squad(value: object, context: str | None, document: str, is_version_2: bool) -> Question:
    record = fitted(_SquadQuestion, value)
    if context is None:
        raise Rejected(NO_CONTEXT, "its paragraph has no `context`; give the text that answers it")
    golds = [Answer(answer.text, answer.answer_start) for answer in record.answers or ()]
    answers, absent, notes = place_answers(context, golds)
    has_none = is_version_2 and record.answers == []
    impossible = has_none if record.is_impossible is None else record.is_impossible
    return Question(str(record.id), record.question, context, answers, absent, impossible, document, notes=notes)


def _squad_text(questions: Iterable[Question]) -> Iterator[str]:
    """The text of a file of `questions`; neighbours with the same article or context share one."""

    def record(question: Question) -> dict[str, Any]:
        is_more = question.golds or question.pool or question.synonyms or question.answer_type != "factoid"
        if is_more or not question.is_registered:
            raise RequestError(
                f"question {shown_id(question.id)!r}: SQuAD's JSON holds neither answers that are not in the context, "
                "nor pooled snippets, nor lists, nor yes or no, nor questions without gold answers, which its script "
                "counts as impossible. Write JSONL."
            )
        answers = [{"text": answer.text, "answer_start": answer.start} for answer in question.answers]
        value = {"id": question.id, "question": question.question, "answers": answers}
        return {**value, "is_impossible": question.impossible}

    yield '{"version": "v2.0", "data": ['
    between = "\n"
    for title, article in groupby(questions, key=lambda question: question.document):
        by_context = groupby(article, key=lambda question: question.context)
        paragraphs = [{"context": context, "qas": list(map(record, group))} for context, group in by_context]
        yield between + json.dumps({"title": title, "paragraphs": paragraphs}, ensure_ascii=False)
        between = ",\n"
    yield "\n]}\n"


BioasqType = Literal[AnswerType, "summary"]
BIOASQ_TYPES = get_args(BioasqType)


class _Snippet(_Record):
    text: str
    document: str = ""


class BioasqQuestion(_Record):
    """A question of BioASQ's JSON, of phase B: with its snippets, and in a golden file with its exact answer."""

    id: str | int
    body: str
    type: BioasqType
    exact_answer: list[str | list[str]] | str | None = None
    snippets: list[_Snippet] = Field(default_factory=list)

    @model_validator(mode="after")
    def _is_yes_or_no(self) -> Self:
        answer = self.exact_answer
        is_known = answer is None or (isinstance(answer, str) and yes_or_no(answer) != "none")
        if self.type == "yesno" and not is_known:
            raise ValueError("exact_answer: expected yes or no, as the question's type is yesno")
        return self

    @property
    def golds(self) -> tuple[Synonyms, ...]:
        """The gold answers with synonyms: `["a", "b"]` is one in two wordings, `[["a"], ["b"]]` are two answers."""
        if self.type == "yesno":
            return ()
        listed = [self.exact_answer] if isinstance(self.exact_answer, str) else self.exact_answer or []
        plain = [wording for wording in listed if isinstance(wording, str)]
        nested = [wordings for wordings in listed if not isinstance(wordings, str)]
        if self.type == "list":
            plain, nested = [], [*([wording] for wording in plain), *nested]
        answers = [tuple(wording for wording in wordings if wording.strip()) for wordings in [plain, *nested]]
        return tuple(answer for answer in answers if answer)

    @property
    def yes(self) -> bool | None:
        """The right answer to a yes/no question; None for another one, and where it is not known."""
        is_known = self.type == "yesno" and isinstance(self.exact_answer, str)
        return yes_or_no(str(self.exact_answer)) == "yes" if is_known else None


def yes_or_no(answer: str) -> Literal["yes", "no", "none"]:
    """An answer as BioASQ's evaluator reads it: "yes" if it has that in it, else "no" if it has that, else "none"."""
    lowered = answer.lower()
    return "yes" if "yes" in lowered else "no" if "no" in lowered else "none"


def _read_bioasq(path: Path, types: Sequence[AnswerType] = ("factoid",)) -> Iterator[Item]:
    """Memory has one question at a time, and ids: a second question of an id would be pooled with the first."""
    lines, file = dict[str, int](), str(path)
    for line, value, _ in _listed(path, "questions"):
        kind = value.get("type") if isinstance(value, dict) else None
        if kind in BIOASQ_TYPES and kind not in types:
            yield Rejected(f"a question of the type {kind}", is_fault=False)
            continue
        try:
            record = fitted(BioasqQuestion, value)
            if (first := lines.get(str(record.id))) is not None:
                raise Rejected(DUPLICATE, f"the first with it is in line {first:,}; give each question one of its own")
            lines[str(record.id)] = line
            if not record.snippets:
                raise Rejected("a question without snippets", "there is no text to search for the answer")
        except Rejected as fault:
            yield fault.at(file, line, shown_id(_id_of(value)))
            continue
        for number, snippet in enumerate(record.snippets, 1):
            name = f"{record.id}_{number:03}"
            yield build_question(file, line, name, _from_snippet, record, name, snippet)


def _from_snippet(record: BioasqQuestion, name: str, snippet: _Snippet) -> Question:
    golds, document = record.golds, snippet.document or _name_of([snippet.text])
    aligned = [align_answer(snippet.text, wordings) for wordings in golds]
    answers = tuple(dict.fromkeys(answer for mentions, _ in aligned for answer in mentions))
    present = {answer.text for answer in answers}
    others = tuple(dict.fromkeys(text for wordings in golds for text in wordings if text not in present))
    return Question(
        name,
        record.body,
        snippet.text,
        answers,
        others,
        document=document,
        pool=str(record.id),
        synonyms=golds,
        answer_type=record.type if record.type != "summary" else "factoid",
        yes=record.yes,
        notes=tuple(note for _, note in aligned),
    )


AnyRecord = TypeVar("AnyRecord", bound=Shape)


def bioasq_records(path: Path | str, shape: type[AnyRecord]) -> dict[str, AnyRecord]:
    """The questions of a BioASQ file as `shape` has them, by id in their order; none may be left out.

    Raises RequestError for a file of another kind or without a question, and for the first question that does not fit,
    or has the id of an earlier one, with its line and id.
    """
    path, records = Path(path), dict[str, AnyRecord]()
    for line, value, _ in _listed(path, "questions"):
        name = str(_id_of(value))
        try:
            if name in records:
                raise Rejected(DUPLICATE, "give each question one of its own")
            records[name] = fitted(shape, value)
        except Rejected as fault:
            raise RequestError(f"{fault.at(str(path), line, shown_id(_id_of(value)))}. Correct it") from None
    if not records:
        raise RequestError(f"{path}: expected BioASQ's questions, found none. Is it the right file, and complete?")
    return records


def bioasq_golds(path: Path, types: Sequence[AnswerType] = ("factoid",)) -> dict[str, BioasqQuestion]:
    """The questions of these types that have a gold answer, by id; those that cannot be asked are among them."""
    golds = dict[str, BioasqQuestion]()
    for _, value, _ in _listed(path, "questions"):
        with suppress(Rejected):
            record = fitted(BioasqQuestion, value)
            if record.type in types and (record.golds or record.yes is not None):
                golds.setdefault(str(record.id), record)
    return golds


def _listed(path: Path, key: str) -> Iterator[tuple[int, Any, str]]:
    """Line and value of each element of the list `key` in a file of one object, and the `version` before it."""
    version = ""
    with json_window(path) as window:
        for name in window.members():
            if name == key:
                yield from ((line, json.loads(text), version) for line, text in window.elements())
            else:
                value = window.value()
                version = str(json.loads(value)) if name == "version" else version


def read_questions(
    path: Path | str, format_name: QuestionFormat | None = None, rejects: Rejects | None = None
) -> Iterator[Question]:
    """Streams the questions of a file; its format is recognised by its content when absent.

    Offsets that are a few characters off are corrected. The second of two questions with one id is unusable.

    rejects: counts the used and the unusable questions; without it the first unusable one raises RequestError.
    Raises RequestError for a file that is missing, cut off, of another format, or without a question.
    """
    return usable(question_items(QuestionPath(path, format_name)), rejects)


def read_all(
    sources: Sequence[QuestionSource], rejects: Rejects, once: bool = False, max_swapped: float = 1.0
) -> list[Question]:
    """The questions of all `sources`; logs corrected offsets.

    once: only the first of questions that differ in nothing but their ids counts, as in training. A score is over all,
        as the published scripts compute it.
    Raises RequestError where there are none, and where more than `max_swapped` are longer than their contexts.
    """
    questions = list(usable(source_items(sources), rejects))
    distinct = {_content(question): question for question in reversed(questions)}
    but = "and count once" if once else "and are scored each"
    log_copies(len(questions) - len(distinct), len(questions), "questions", "with context and answers", but)
    questions = list(reversed(distinct.values())) if once else questions
    if not questions:
        files = ", ".join(str(source.path) for source in sources)
        raise RequestError(f"{files}: expected questions, found none that can be used")
    check_longer(", ".join(str(source.path) for source in sources), questions, max_swapped)
    log_notes(Counter(note for question in questions for note in question.notes))
    return questions


def _content(question: Question) -> tuple[object, ...]:
    """All fields in which copies of a question are equal."""
    answers = question.answers, question.golds, question.synonyms, question.impossible, question.yes
    return question.question, question.context, question.pool, *answers


def check_longer(name: str, questions: Sequence[Question], limit: float) -> None:
    """Raises RequestError where more than `limit` of the questions are longer than their contexts."""
    with_context = [question for question in questions if question.context.strip()]
    longer = sum(len(question.question) > len(question.context) for question in with_context)
    check_swapped(name, longer, len(with_context), "questions are longer than their contexts", limit)


def source_items(sources: Sequence[QuestionSource]) -> Iterator[Item]:
    """`question_items` of the files that settings name."""
    return question_items(*(QuestionPath(source.path, source.format, source.types) for source in sources))


def question_items(*files: QuestionPath) -> Iterator[Item]:
    """Streams the questions of all files, and in their order what is unusable or left out.

    Only the first question of an id is usable. A question of JSONL without an id is named by its line, of several files
    by the file's name and the line: `train:7`.
    Raises RequestError for a file without any.
    """
    stems = [Path(file.path).name.partition(".")[0] for file in files]
    distinct = [stem if stems.count(stem) == 1 else f"{stem}-{number}" for number, stem in enumerate(stems, 1)]
    prefixes = [f"{stem}:" for stem in distinct] if len(files) > 1 else [""]
    items = (_items(file, prefix) for file, prefix in zip(files, prefixes, strict=False))
    return with_distinct_ids(chain.from_iterable(items), DUPLICATE)


def _items(file: QuestionPath, prefix: str) -> Iterator[Item]:
    path = Path(file.path)
    name = file.format or question_format_of(path)
    if name is None:
        raise RequestError(f"{path}: expected questions, found JSON of another shape or none at all. {SHAPES}")
    readers: dict[QuestionFormat, Callable[[], Iterator[Item]]] = {
        "squad": partial(_read_squad, path),
        "bioasq": partial(_read_bioasq, path, file.types),
        "jsonl": partial(_read_jsonl, path, prefix),
    }
    item = None
    for item in readers[name]():
        yield item
    if item is None:
        raise RequestError(f"{path}: expected questions ({name}), found none. Is it the right file, and complete?")


def question_format_of(path: Path) -> QuestionFormat | None:
    """The format of a file of questions, by its first keys; None for other files.

    Raises RequestError for a list of questions, which is of no format.
    """
    with json_window(path) as window:
        if window.peek() == "[":
            first = next((json.loads(text) for _, text in window.elements()), None)
            if isinstance(first, dict) and "question" in first:
                raise RequestError(
                    f"{path}: expected an object, found a list of questions. {SHAPES} Write each on a line of its own."
                )
        if window.peek() != "{":
            return None
        keys = set[str]()
        for key in window.members():
            keys.add(key)
            if keys >= {"question", "context"}:
                return "jsonl"
            if window.peek() != "[":
                window.value()
            elif key in LISTS:
                return LISTS[key]
            else:
                deque(window.elements(), maxlen=0)  # one after the other, as a list may be the whole file
    return None


def write_questions(
    path: Path | str, questions: Iterable[Question], format_name: QuestionFormat = "jsonl", overwrite: bool = False
) -> None:
    """Writes questions to a file, atomically.

    overwrite: replace an existing file, which is an error otherwise.
    Raises RequestError for a question that the format cannot hold, for `bioasq`, which is only read, and for a `.gz`.
    """
    path = Path(path)
    refuse_packed(path)
    check_location(path, overwrite=overwrite)
    if format_name == "bioasq":
        raise RequestError(f"{path}: {format_name} is only read. Write one of squad, jsonl.")
    with atomic_write(path) as building:
        write_lines(building, _squad_text(questions) if format_name == "squad" else map(line_of, questions))


def log_notes(notes: Counter[str], more: str = "") -> None:
    """Logs how many answers were corrected, not found, and aligned, by the counts of the notes of their questions.

    more: is added to the line about aligned answers.
    """
    if corrected := notes["corrected"]:
        log(f"corrected the offsets of {corrected:,} answers, which were a few characters off")
    if nowhere := notes["nowhere"]:
        log(f"{nowhere:,} further answers are not in their context: scored by, not trained on")
    if any(notes[note] for note in ALIGNMENTS):
        located = ", ".join(f"{notes[note]:,} {note}" for note in ALIGNMENTS)
        log(f"located the answers in every snippet: {located}{more}")
