"""Questions in and out of files: SQuAD's and BioASQ's JSON, and JSONL, which has everything of a question.

JSONL has a question in each line, named by its line where it has no `id`. A question of SQuAD's JSON without
`is_impossible` and with an empty list of answers is impossible in a file whose `version`, before `data`, is 2, as its
published script scores it. Of BioASQ's, factoid questions are read: each snippet becomes a context of its own, under
the question's id and the snippet's number (`5717fb557de986d80d000009_003`). An article without a name is named after
its text.
"""

import hashlib
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from bertrelay.data.records import Rejects
from bertrelay.data.tables import Unusable
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, write_error
from bertrelay.progress import log
from domain.biomedical.documents.document import (
    LeftOut,
    Unfit,
    log_left_out,
    numbered_lines,
    shown_id,
    usable,
    with_distinct_ids,
)
from domain.biomedical.documents.json_stream import NOT_JSON, Shape, fitted, json_window
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

Item = Question | Unusable | LeftOut
"""What a format's reader gives: questions, those that cannot be used, and what it reads over."""

SHAPE = 'expected {"id", "question", "context", "answers": [{"text", "start"}]}'
SHAPES = (
    "SQuAD's JSON has articles in 'data', BioASQ's has 'questions', and JSONL has an object with "
    "`question` and `context` in each line."
)
LISTS: dict[str, QuestionFormat] = {"data": "squad", "questions": "bioasq"}


def built(build: Callable[[], Question], file: str, line: int, name: object) -> Question | Unusable:
    """The question that `build` makes; an unusable record, by its `name`, where that or a check raises Unfit."""
    try:
        return checked(replace(build(), file=file, line=line))
    except Unfit as fault:
        return Unusable(file, line, fault.reason, fault.detail, shown_id(name))


def _id_of(value: object) -> object:
    return value.get("id") if isinstance(value, dict) else None


def _name_of(contexts: Iterable[str]) -> str:
    """A name for an article that has none, made of its text."""
    digest = hashlib.blake2b("\0".join(contexts).encode(errors="surrogatepass"), digest_size=8)
    return f"article-{digest.hexdigest()}"


# JSONL


class _JsonAnswer(Shape):
    text: str
    start: int


class _JsonQuestion(Shape):
    id: str | int | None = None
    question: str
    context: str | None = None
    answers: list[_JsonAnswer] = Field(default_factory=list)
    golds: list[str] = Field(default_factory=list)
    impossible: bool = False
    document: str = ""
    pool: str = ""
    synonyms: list[list[str]] = Field(default_factory=list)


def _read_jsonl(path: Path) -> Iterator[Item]:
    context = ""
    for row in numbered_lines(path):
        if isinstance(row, Unusable):
            yield row
        elif line := row.values[0].strip():
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                yield Unusable(row.file, row.line, NOT_JSON, "is the file cut off here?")
                continue
            item = built(partial(_of_json, value, row.line, context), row.file, row.line, _id_of(value))
            context = item.context if isinstance(item, Question) else context
            yield item


def _of_json(value: object, line: int, context_before: str) -> Question:
    try:
        found = fitted(_JsonQuestion, value if isinstance(value, dict) else {})
    except Unfit as fault:
        raise Unfit(fault.reason, f"{fault.detail}; {SHAPE}") from None
    if found.context is None:
        raise Unfit(NO_CONTEXT, "give the text that it is asked of as `context`")
    # Questions of one context follow one another, and contexts are long: they share one text in memory.
    context = context_before if found.context == context_before else found.context
    answers, lost, notes = placed_answers(context, [Answer(each.text, each.start) for each in found.answers])
    return Question(
        str(line if found.id is None else found.id),
        found.question,
        context,
        answers,
        golds=(*found.golds, *lost),
        impossible=found.impossible,
        document=found.document or _name_of([context]),
        pool=found.pool,
        synonyms=tuple(map(tuple, found.synonyms)),
        notes=notes,
    )


def line_of(question: Question) -> str:
    """The line of JSONL of a question, its end included."""
    value: dict[str, Any] = {"id": question.id, "question": question.question, "context": question.context}
    value["answers"] = [answer._asdict() for answer in question.answers]
    others = ("golds", "impossible", "document", "pool", "synonyms")
    value |= {name: getattr(question, name) for name in others if getattr(question, name)}
    return json.dumps(value, ensure_ascii=False) + "\n"


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
    is_impossible: bool | None = None


def _read_squad(path: Path) -> Iterator[Item]:
    """Memory has one article at a time."""
    is_version_2 = False
    with json_window(path) as window:
        for key in window.members():
            if key == "data":
                for line, text in window.elements():
                    yield from _of_article(json.loads(text), str(path), line, is_version_2)
            else:
                value = json.loads(window.value())
                is_version_2 = is_version_2 or (key == "version" and str(value).lower().lstrip("v").startswith("2"))


def _of_article(value: object, file: str, line: int, is_version_2: bool) -> Iterator[Item]:
    try:
        article = fitted(_Article, value)
    except Unfit as fault:
        yield Unusable(file, line, fault.reason, f"expected an article with `paragraphs`: {fault.detail}")
        return
    paragraphs = list[_Paragraph]()
    for number, given in enumerate(article.paragraphs, 1):
        try:
            paragraphs.append(fitted(_Paragraph, given))
        except Unfit as fault:
            detail = f"paragraph {number:,}: expected `context` and `qas`: {fault.detail}"
            yield Unusable(file, line, fault.reason, detail)
    ids = [str(each.document_id) for each in paragraphs if each.document_id is not None]
    document = article.title or next(iter(ids), "") or _name_of(each.context or "" for each in paragraphs)
    for paragraph in paragraphs:
        for asked in paragraph.qas:
            build = partial(_of_squad, asked, paragraph.context, document, is_version_2)
            yield built(build, file, line, _id_of(asked))


def _of_squad(value: object, context: str | None, document: str, is_version_2: bool) -> Question:
    asked = fitted(_SquadQuestion, value)
    if context is None:
        raise Unfit(NO_CONTEXT, "its paragraph has no `context`; give the text that it is asked of")
    given = [Answer(answer.text, answer.answer_start) for answer in asked.answers or ()]
    answers, golds, notes = placed_answers(context, given)
    unsaid = is_version_2 and asked.answers == []
    impossible = unsaid if asked.is_impossible is None else asked.is_impossible
    return Question(str(asked.id), asked.question, context, answers, golds, impossible, document, notes=notes)


def _squad_text(questions: Iterable[Question]) -> Iterator[str]:
    """Questions that follow one another share an article and a context."""
    yield '{"version": "v2.0", "data": ['
    between = "\n"
    for title, article in groupby(questions, key=lambda question: question.document):
        paragraphs = [
            {"context": context, "qas": [_to_squad(question) for question in asked]}
            for context, asked in groupby(article, key=lambda question: question.context)
        ]
        yield between + json.dumps({"title": title, "paragraphs": paragraphs}, ensure_ascii=False)
        between = ",\n"
    yield "\n]}\n"


def _to_squad(question: Question) -> dict[str, Any]:
    if question.golds or question.pool or question.synonyms:
        raise RequestError(
            f"question {shown_id(question.id)!r}: SQuAD's JSON holds neither answers that are not in the "
            "context nor snippets that are pooled. Write JSONL."
        )
    answers = [{"text": answer.text, "answer_start": answer.start} for answer in question.answers]
    value = {"id": question.id, "question": question.question, "answers": answers}
    return {**value, "is_impossible": question.impossible}


# BioASQ


class _Snippet(Shape):
    text: str
    document: str = ""


class _BioasqQuestion(Shape):
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
    for line, value in _bioasq_values(path):
        try:
            asked = fitted(_BioasqQuestion, value)
            if asked.type != "factoid":
                yield LeftOut(f"a question of the type {asked.type}")
                continue
            if (first := lines.get(str(asked.id))) is not None:
                raise Unfit(DUPLICATE, f"the first with it is in line {first:,}; give each question one of its own")
            lines[str(asked.id)] = line
            if not asked.snippets:
                raise Unfit("a question without snippets", "there is no text to search for the answer")
        except Unfit as fault:
            yield Unusable(file, line, fault.reason, fault.detail, shown_id(_id_of(value)))
            continue
        for number, snippet in enumerate(asked.snippets, 1):
            name = f"{asked.id}_{number:03}"
            yield built(partial(_of_snippet, asked, name, snippet), file, line, name)


def _bioasq_values(path: Path) -> Iterator[tuple[int, Any]]:
    with json_window(path) as window:
        for key in window.members():
            if key == "questions":
                yield from ((line, json.loads(text)) for line, text in window.elements())
            else:
                window.value()


def _of_snippet(asked: _BioasqQuestion, name: str, snippet: _Snippet) -> Question:
    golds = asked.golds
    found = [aligned(snippet.text, wordings) for wordings in golds]
    answers = tuple(dict.fromkeys(answer for mentions, _ in found for answer in mentions))
    present = {answer.text for answer in answers}
    others = tuple(dict.fromkeys(text for wordings in golds for text in wordings if text not in present))
    document, notes = snippet.document or _name_of([snippet.text]), tuple(how for _, how in found)
    return Question(name, asked.body, snippet.text, answers, others, False, document, str(asked.id), golds, notes=notes)


def bioasq_golds(path: Path) -> dict[str, tuple[Synonyms, ...]]:
    """The gold answers of every factoid question of a file that has some, by its id: of unusable ones too."""
    found = dict[str, tuple[Synonyms, ...]]()
    for _, value in _bioasq_values(path):
        with suppress(Unfit):
            asked = fitted(_BioasqQuestion, value)
            if asked.type == "factoid" and asked.golds:
                found.setdefault(str(asked.id), asked.golds)
    return found


# Any format

READERS: dict[QuestionFormat, Callable[[Path], Iterator[Item]]] = {
    "squad": _read_squad,
    "bioasq": _read_bioasq,
    "jsonl": _read_jsonl,
}
"""Of each format what streams the questions of a file."""
WRITERS: Mapping[QuestionFormat, Callable[[Iterable[Question]], Iterable[str]]] = {
    "squad": _squad_text,
    "jsonl": partial(map, line_of),
}


def read_questions(
    path: Path | str, format_name: QuestionFormat | None = None, rejects: Rejects | None = None
) -> Iterator[Question]:
    """Streams the questions of a file, of the format that it is found to have where none is given.

    Offsets that a shift of a few characters corrects are corrected. Of two questions with one id the second is
    unusable.

    rejects: counts the used and the unusable questions; without it the first unusable one raises RequestError.
    Raises RequestError for what concerns the whole file: not there, cut off, of another format, without a question.
    """
    return usable_questions(question_items(path, format_name), rejects)


def read_all(sources: Sequence[QuestionSource], rejects: Rejects) -> list[Question]:
    """The questions of all `sources`; logs corrected offsets. Raises RequestError where there are none."""
    found = list(usable_questions(source_items(sources), rejects))
    if not found:
        files = ", ".join(str(source.path) for source in sources)
        raise RequestError(f"{files}: expected questions, found none that can be used")
    log_notes(Counter(note for question in found for note in question.notes))
    return found


def usable_questions(items: Iterable[Item], rejects: Rejects | None = None, quiet: bool = False) -> Iterator[Question]:
    """The questions among the items of one file or several, each id once.

    quiet: whether what is left out was logged before, when the same files were read.
    """
    left_out: Counter[str] = Counter()
    yield from usable(once(items), rejects, left_out)
    if not quiet:
        log_left_out("left out", left_out)


def once(items: Iterable[Item]) -> Iterator[Item]:
    """The items; a question with the id of an earlier one becomes unusable."""
    return with_distinct_ids(items, DUPLICATE)


def source_items(sources: Sequence[QuestionSource]) -> Iterator[Item]:
    """The items of several files."""
    return chain.from_iterable(question_items(source.path, source.format) for source in sources)


def question_items(path: Path | str, format_name: QuestionFormat | None = None) -> Iterator[Item]:
    """Every question in its place, usable or not, and what is left out. Raises RequestError where there is nothing."""
    path = Path(path)
    if not path.is_file():
        raise RequestError(f"there is no file {path}. Check the path; in a recipe it counts from its folder.")
    name = format_name or question_format_of(path)
    if name is None:
        raise RequestError(f"{path}: expected questions, found JSON of another shape or none at all. {SHAPES}")
    empty = True
    for item in READERS[name](path):
        empty = False
        yield item
    if empty:
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

    Raises RequestError for a question that the format cannot hold, and for `bioasq`, which is only read.
    """
    path = Path(path)
    if format_name not in WRITERS:
        raise RequestError(f"{path}: {format_name} is only read. Write one of {', '.join(WRITERS)}.")
    try:
        with atomic_write(path) as building, building.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(WRITERS[format_name](questions))
    except OSError as error:
        raise write_error(path, error) from error


def log_notes(notes: Mapping[str, int], more: str = "") -> None:
    """Logs how answers were located, by the notes of their questions: corrected, not found, aligned.

    notes: the number of each. more: what to add where answers were located by their words.
    """
    counts = Counter(notes)
    if corrected := counts["corrected"]:
        log(f"corrected the offsets of {corrected:,} answers, which were a few characters off")
    if nowhere := counts["nowhere"]:
        log(f"{nowhere:,} further answers are not in their context: scored by, not trained on")
    if any(counts[how] for how in ALIGNMENTS):
        found = ", ".join(f"{counts[how]:,} {how}" for how in ALIGNMENTS)
        log(f"located the answers in every snippet: {found}{more}")
