"""Questions in and out of files: SQuAD's and BioASQ's JSON, and JSONL, which has everything of a question.

JSONL has a question in each line, named by its line where it has no `id`; `answers` may also be the lists of a row of
the library `datasets`, `{"text": [...], "answer_start": [...]}`. A question of SQuAD's JSON without
`is_impossible` and with an empty list of answers is impossible in a file whose `version`, before `data`, is 2, as its
published script scores it. Of BioASQ's, factoid questions are read: each snippet becomes a context of its own, under
the question's id and the snippet's number (`5717fb557de986d80d000009_003`). An article without a name is named after
its text.
"""

import hashlib
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, Field, field_validator, model_validator

from bertrelay.data.records import Rejects, log_copies
from bertrelay.data.sanity import check_swapped
from bertrelay.data.tables import Rejected
from bertrelay.data.writing import json_line, write_lines
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, refuse_packed
from bertrelay.progress import log
from domain.biomedical.documents.document import numbered_lines
from domain.biomedical.documents.json_stream import Flag, Shape, fitted, json_value, json_window
from domain.biomedical.qa.questions import (
    ALIGNMENTS,
    DUPLICATE,
    NO_CONTEXT,
    Answer,
    Question,
    Synonyms,
    aligned,
    checked,
    placed_answers,
)
from domain.biomedical.qa.settings import QuestionFormat, QuestionSource
from domain.reading import shown_id, usable, with_distinct_ids

Item = Question | Rejected
"""What a format's reader gives: questions, those that cannot be used, and what it reads over."""

SHAPE = 'expected {"id", "question", "context", "answers": [{"text", "start"}]}'
SHAPES = (
    "SQuAD's JSON has articles in 'data', BioASQ's has 'questions', and JSONL has an object with "
    "`question` and `context` in each line."
)
LISTS: dict[str, QuestionFormat] = {"data": "squad", "questions": "bioasq"}


def built(file: str, line: int, name: object, build: Callable[..., Question], *values: Any) -> Question | Rejected:
    """The question that `build` makes of `values`; a fault with the id `name` where it or a check raises one."""
    try:
        return checked(replace(build(*values), file=file, line=line))
    except Rejected as fault:
        return fault.at(file, line, shown_id(name))


def _id_of(value: object) -> object:
    return value.get("id") if isinstance(value, dict) else None


def _name_of(contexts: Iterable[str]) -> str:
    """A name for an article that has none, made of its text."""
    digest = hashlib.blake2b("\0".join(contexts).encode(errors="surrogatepass"), digest_size=8)
    return f"article-{digest.hexdigest()}"


# JSONL


class _Record(Shape):
    """Base of what may be null where it may be absent."""

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, given: Any) -> Any:
        fields = cls.model_fields
        if not isinstance(given, dict):
            return given
        return {
            name: value
            for name, value in given.items()
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

    @field_validator("answers", mode="before")
    @classmethod
    def _of_lists(cls, given: Any) -> Any:
        texts, starts = map(given.get, ("text", "answer_start")) if isinstance(given, dict) else (None, None)
        if isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts):
            return [{"text": text, "start": start} for text, start in zip(texts, starts, strict=True)]
        return given


NO_ANSWERS: dict[str, list[object]] = {"text": [], "answer_start": []}
"""An impossible question of SQuAD 2.0 as the library datasets has it."""


def _read_jsonl(path: Path, prefix: str = "") -> Iterator[Item]:
    """prefix: of the lines that name questions without an id."""
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
            item = built(row.file, row.line, _id_of(value), _of_json, value, f"{prefix}{row.line}", context)
            context = item.context if isinstance(item, Question) else context
            yield item


def _of_json(value: Any, name: str, context_before: str) -> Question:
    try:
        asked = fitted(_JsonQuestion, value)
    except Rejected as fault:
        raise Rejected(fault.reason, f"{fault.detail}; {SHAPE}") from None
    if asked.context is None:
        raise Rejected(NO_CONTEXT, "give the text that it is asked of as `context`")
    # Questions of one context follow one another, and contexts are long: they share one text in memory.
    context = context_before if asked.context == context_before else asked.context
    answers, lost, notes = placed_answers(context, [Answer(answer.text, answer.start) for answer in asked.answers])
    return Question(
        name if asked.id is None else str(asked.id),
        asked.question,
        context,
        answers,
        golds=(*asked.golds, *lost),
        impossible=asked.impossible or value.get("answers") == NO_ANSWERS,
        document=asked.document or _name_of([context]),
        pool=asked.pool,
        synonyms=tuple(map(tuple, asked.synonyms)),
        notes=notes,
    )


def line_of(question: Question) -> str:
    """The line of JSONL of a question, its end included."""
    value = {"id": question.id, "question": question.question, "context": question.context}
    others = {name: getattr(question, name) for name in ("golds", "impossible", "document", "pool", "synonyms")}
    answers = [answer._asdict() for answer in question.answers]
    return json_line({**value, "answers": answers, **{name: found for name, found in others.items() if found}})


# SQuAD


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
        for number, given in enumerate(article.paragraphs, 1):
            try:
                paragraphs.append(fitted(_Paragraph, given))
            except Rejected as fault:
                detail = f"paragraph {number:,}: expected `context` and `qas`: {fault.detail}"
                yield Rejected(fault.reason, detail, file=file, line=line)
        ids = [str(paragraph.document_id) for paragraph in paragraphs if paragraph.document_id is not None]
        document = article.title or next(iter(ids), "") or _name_of(paragraph.context or "" for paragraph in paragraphs)
        for paragraph in paragraphs:
            for asked in paragraph.qas:
                yield built(file, line, _id_of(asked), _of_squad, asked, paragraph.context, document, is_version_2)


def _of_squad(value: object, context: str | None, document: str, is_version_2: bool) -> Question:
    asked = fitted(_SquadQuestion, value)
    if context is None:
        raise Rejected(NO_CONTEXT, "its paragraph has no `context`; give the text that it is asked of")
    given = [Answer(answer.text, answer.answer_start) for answer in asked.answers or ()]
    answers, golds, notes = placed_answers(context, given)
    has_none = is_version_2 and asked.answers == []
    impossible = has_none if asked.is_impossible is None else asked.is_impossible
    return Question(str(asked.id), asked.question, context, answers, golds, impossible, document, notes=notes)


def _squad_text(questions: Iterable[Question]) -> Iterator[str]:
    """Questions that follow one another share an article and a context."""

    def asked(question: Question) -> dict[str, Any]:
        if question.golds or question.pool or question.synonyms or not question.is_registered:
            raise RequestError(
                f"question {shown_id(question.id)!r}: SQuAD's JSON holds neither answers that are not in the context, "
                "nor snippets that are pooled, nor questions of which nothing is known, which its script takes for "
                "impossible. Write JSONL."
            )
        answers = [{"text": answer.text, "answer_start": answer.start} for answer in question.answers]
        value = {"id": question.id, "question": question.question, "answers": answers}
        return {**value, "is_impossible": question.impossible}

    yield '{"version": "v2.0", "data": ['
    between = "\n"
    for title, article in groupby(questions, key=lambda question: question.document):
        by_context = groupby(article, key=lambda question: question.context)
        paragraphs = [{"context": context, "qas": list(map(asked, group))} for context, group in by_context]
        yield between + json.dumps({"title": title, "paragraphs": paragraphs}, ensure_ascii=False)
        between = ",\n"
    yield "\n]}\n"


# BioASQ


class _Snippet(_Record):
    text: str
    document: str = ""


class _BioasqQuestion(_Record):
    id: str | int
    body: str
    type: Literal["factoid", "list", "yesno", "summary"]
    exact_answer: list[str | list[str]] | str | None = None
    snippets: list[_Snippet] = Field(default_factory=list)

    @property
    def golds(self) -> tuple[Synonyms, ...]:
        """The right answers with synonyms: `["a", "b"]` is one in two wordings, `[["a"], ["b"]]` are two answers."""
        given = [self.exact_answer] if isinstance(self.exact_answer, str) else self.exact_answer or []
        plain = [wording for wording in given if isinstance(wording, str)]
        nested = [wordings for wordings in given if not isinstance(wordings, str)]
        answers = [tuple(wording for wording in wordings if wording.strip()) for wordings in [plain, *nested]]
        return tuple(answer for answer in answers if answer)


def _read_bioasq(path: Path) -> Iterator[Item]:
    """Memory has one question at a time, and ids: a second question of an id would be pooled with the first."""
    lines, file = dict[str, int](), str(path)
    for line, value, _ in _listed(path, "questions"):
        try:
            asked = fitted(_BioasqQuestion, value)
            if asked.type != "factoid":
                yield Rejected(f"a question of the type {asked.type}", is_fault=False)
                continue
            if (first := lines.get(str(asked.id))) is not None:
                raise Rejected(DUPLICATE, f"the first with it is in line {first:,}; give each question one of its own")
            lines[str(asked.id)] = line
            if not asked.snippets:
                raise Rejected("a question without snippets", "there is no text to search for the answer")
        except Rejected as fault:
            yield fault.at(file, line, shown_id(_id_of(value)))
            continue
        for number, snippet in enumerate(asked.snippets, 1):
            name = f"{asked.id}_{number:03}"
            yield built(file, line, name, _of_snippet, asked, name, snippet)


def _of_snippet(asked: _BioasqQuestion, name: str, snippet: _Snippet) -> Question:
    golds = asked.golds
    places = [aligned(snippet.text, wordings) for wordings in golds]
    answers = tuple(dict.fromkeys(answer for mentions, _ in places for answer in mentions))
    present = {answer.text for answer in answers}
    others = tuple(dict.fromkeys(text for wordings in golds for text in wordings if text not in present))
    document, notes = snippet.document or _name_of([snippet.text]), tuple(how for _, how in places)
    return Question(name, asked.body, snippet.text, answers, others, False, document, str(asked.id), golds, notes=notes)


def bioasq_golds(path: Path) -> dict[str, tuple[Synonyms, ...]]:
    """The gold answers of every factoid question of a file that has some, by its id: of unusable ones too."""
    golds = dict[str, tuple[Synonyms, ...]]()
    for _, value, _ in _listed(path, "questions"):
        with suppress(Rejected):
            asked = fitted(_BioasqQuestion, value)
            if asked.type == "factoid" and asked.golds:
                golds.setdefault(str(asked.id), asked.golds)
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


# Any format

READERS: dict[QuestionFormat, Callable[[Path], Iterator[Item]]] = {
    "squad": _read_squad,
    "bioasq": _read_bioasq,
    "jsonl": _read_jsonl,
}
"""Of each format what streams the questions of a file."""


def read_questions(
    path: Path | str, format_name: QuestionFormat | None = None, rejects: Rejects | None = None
) -> Iterator[Question]:
    """Streams the questions of a file, of the format that it is found to have where none is given.

    Offsets that a shift of a few characters corrects are corrected. Of two questions with one id the second is
    unusable.

    rejects: counts the used and the unusable questions; without it the first unusable one raises RequestError.
    Raises RequestError for what concerns the whole file: not there, cut off, of another format, without a question.
    """
    return usable(question_items((path, format_name)), rejects)


def read_all(
    sources: Sequence[QuestionSource], rejects: Rejects, once: bool = False, max_swapped: float = 1.0
) -> list[Question]:
    """The questions of all `sources`; logs corrected offsets.

    once: whether of questions that are equal but for their ids the first counts alone, as in training; a score is over
        all, as the published scripts compute it.
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
    """What questions that are copies of one another share."""
    answered = question.answers, question.golds, question.synonyms, question.impossible
    return question.question, question.context, question.pool, *answered


def check_longer(name: str, questions: Sequence[Question], limit: float) -> None:
    """Raises RequestError where more than `limit` of the questions are longer than their contexts."""
    with_context = [each for each in questions if each.context.strip()]
    longer = sum(len(each.question) > len(each.context) for each in with_context)
    check_swapped(name, longer, len(with_context), "questions are longer than their contexts", limit)


def source_items(sources: Sequence[QuestionSource]) -> Iterator[Item]:
    """`question_items` of the files that settings name."""
    return question_items(*((source.path, source.format) for source in sources))


def question_items(*files: tuple[Path | str, QuestionFormat | None]) -> Iterator[Item]:
    """Every question of all files in its place, usable or not, and what is left out; of one id the first is usable.

    One without an id is named by its line in JSONL, and of several files by the name and the line: `train:7`.
    Raises RequestError for a file without any.
    """
    stems = [Path(path).name.partition(".")[0] for path, _ in files]
    unlike = [stem if stems.count(stem) == 1 else f"{stem}-{number}" for number, stem in enumerate(stems, 1)]
    prefixes = [f"{stem}:" for stem in unlike] if len(files) > 1 else [""]
    items = (_items(Path(path), name, prefix) for (path, name), prefix in zip(files, prefixes, strict=False))
    return with_distinct_ids(chain.from_iterable(items), DUPLICATE)


def _items(path: Path, format_name: QuestionFormat | None, prefix: str) -> Iterator[Item]:
    name = format_name or question_format_of(path)
    if name is None:
        raise RequestError(f"{path}: expected questions, found JSON of another shape or none at all. {SHAPES}")
    item = None
    for item in _read_jsonl(path, prefix) if name == "jsonl" else READERS[name](path):
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


def write_questions(path: Path | str, questions: Iterable[Question], format_name: QuestionFormat = "jsonl") -> None:
    """Writes questions to a file, which is whole or not there.

    Raises RequestError for a question that the format cannot hold, for `bioasq`, which is only read, and for a `.gz`.
    """
    path = Path(path)
    refuse_packed(path)
    if format_name == "bioasq":
        raise RequestError(f"{path}: {format_name} is only read. Write one of squad, jsonl.")
    with atomic_write(path) as building:
        write_lines(building, _squad_text(questions) if format_name == "squad" else map(line_of, questions))


def log_notes(notes: Counter[str], more: str = "") -> None:
    """Logs how answers were located, by the notes of their questions: corrected, not found, aligned.

    notes: the number of each. more: what to add where answers were located by their words.
    """
    if corrected := notes["corrected"]:
        log(f"corrected the offsets of {corrected:,} answers, which were a few characters off")
    if nowhere := notes["nowhere"]:
        log(f"{nowhere:,} further answers are not in their context: scored by, not trained on")
    if any(notes[how] for how in ALIGNMENTS):
        located = ", ".join(f"{notes[how]:,} {how}" for how in ALIGNMENTS)
        log(f"located the answers in every snippet: {located}{more}")
