"""Questions in and out of files: SQuAD's and BioASQ's JSON, and JSONL, which holds everything of a question.

JSONL has a question in each line, `{"id", "question", "context", "answers": [{"text", "start"}]}`; `golds`,
`impossible`, `document`, `pool` and `synonyms` are written where there are any. Other keys are ignored. A question
without `id` is named by its line, one without `document` after its context.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertrelay.data.records import Rejects
from bertrelay.data.tables import Unusable
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, write_error
from domain.biomedical.documents.document import (
    Unfit,
    log_left_out,
    numbered_lines,
    shown_id,
    usable,
    with_distinct_ids,
)
from domain.biomedical.documents.json_stream import NOT_JSON, Shape, json_window, parsed
from domain.biomedical.qa import bioasq, squad
from domain.biomedical.qa.questions import (
    DUPLICATE,
    NO_CONTEXT,
    Answer,
    Item,
    Question,
    Synonyms,
    checked,
    name_of,
    placed_answers,
)

SHAPE = 'expected {"id", "question", "context", "answers": [{"text", "start"}]}'


class _JsonAnswer(Shape):
    text: str
    start: int


class _JsonQuestion(Shape):
    id: str | int | None = None
    question: str
    context: str | None = None
    answers: tuple[_JsonAnswer, ...] = ()
    golds: tuple[str, ...] = ()
    impossible: bool = False
    document: str = ""
    pool: str = ""
    synonyms: tuple[Synonyms, ...] = ()


def read_jsonl(path: Path) -> Iterator[Item]:
    """Streams the questions of a file, one in each line that is not blank."""
    context = ""
    for row in numbered_lines(path):
        if isinstance(row, Unusable):
            yield row
        elif row.values[0].strip():
            item = _json_item(row.values[0], context, row.file, row.line)
            context = item.context if isinstance(item, Question) else context
            yield item


def _json_item(line: str, context_before: str, file: str, number: int) -> Question | Unusable:
    try:
        found = parsed(_JsonQuestion, line)
    except Unfit as fault:
        if fault.reason == NOT_JSON:
            return Unusable(file, number, fault.reason, fault.detail)
        value = json.loads(line)
        name = shown_id(value.get("id")) if isinstance(value, dict) else ""
        return Unusable(file, number, fault.reason, f"{fault.detail}; {SHAPE}", name)
    name = str(number if found.id is None else found.id)
    try:
        return checked(replace(_of_json(found, name, context_before), file=file, line=number))
    except Unfit as fault:
        return Unusable(file, number, fault.reason, fault.detail, shown_id(name))


def _of_json(found: _JsonQuestion, name: str, context_before: str) -> Question:
    if found.context is None:
        raise Unfit(NO_CONTEXT, "give the text that it is asked of as `context`")
    # Questions of one context follow one another, and contexts are long: they share one text in memory.
    context = context_before if found.context == context_before else found.context
    answers, lost, notes = placed_answers(context, [Answer(answer.text, answer.start) for answer in found.answers])
    golds, document = (*found.golds, *lost), found.document or name_of([context])
    read = Question(name, found.question, context, answers, golds, found.impossible, document, found.pool)
    return replace(read, synonyms=found.synonyms, notes=notes)


def write_jsonl(path: Path, questions: Iterable[Question]) -> None:
    """Writes a file, which is whole or not there."""
    with atomic_write(path) as building, building.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(map(line_of, questions))


def line_of(question: Question) -> str:
    """The line of a question, its end included."""
    value: dict[str, Any] = {"id": question.id, "question": question.question, "context": question.context}
    value["answers"] = [answer._asdict() for answer in question.answers]
    others = ("golds", "impossible", "document", "pool", "synonyms")
    value |= {name: getattr(question, name) for name in others if getattr(question, name)}
    return json.dumps(value, ensure_ascii=False) + "\n"


QuestionFormat = Literal["squad", "bioasq", "jsonl"]


class QuestionFileFormat(NamedTuple):
    """How questions of a format are read, and how its files are written; None where they are not."""

    read: Callable[[Path], Iterator[Item]]
    write: Callable[[Path, Iterable[Question]], None] | None


FORMATS: dict[QuestionFormat, QuestionFileFormat] = {
    "squad": QuestionFileFormat(squad.read, squad.write),
    "bioasq": QuestionFileFormat(bioasq.read, None),
    "jsonl": QuestionFileFormat(read_jsonl, write_jsonl),
}

LISTS: dict[str, QuestionFormat] = {squad.ARTICLES: "squad", bioasq.QUESTIONS: "bioasq"}
OURS = {"question", "context"}
SHAPES = (
    f"SQuAD's JSON has articles in {squad.ARTICLES!r}, BioASQ's has {bioasq.QUESTIONS!r}, and JSONL has an object with "
    "`question` and `context` in each line."
)


def read_questions(
    path: Path | str, format_name: QuestionFormat | None = None, rejects: Rejects | None = None
) -> Iterator[Question]:
    """Streams the questions of a file; a format not given is found by what the file holds.

    Offsets that a shift of a few characters corrects are corrected. Of two questions with one id the second is
    unusable; 150 bytes are kept of each.

    rejects: counts the used and the unusable questions; without it the first unusable one raises RequestError.
    Raises RequestError for what concerns the whole file: not there, cut off, of another format, without a question.
    """
    return usable_questions(question_items(path, format_name), rejects)


def usable_questions(items: Iterable[Item], rejects: Rejects | None = None, quiet: bool = False) -> Iterator[Question]:
    """The questions among the items of one file or several, each id once.

    quiet: whether what is left out was logged before, when the same files were read.
    """
    left_out: Counter[str] = Counter()
    yield from usable(once(items), rejects, left_out)
    if not quiet:
        log_left_out("left out", left_out)


def question_items(path: Path | str, format_name: QuestionFormat | None = None) -> Iterator[Item]:
    """Every question in its place, usable or not, and what is left out. Raises RequestError where there is nothing."""
    path = Path(path)
    if not path.is_file():
        raise RequestError(f"there is no file {path}. Check the path; in a recipe it counts from its folder.")
    name = format_name or question_format_of(path)
    if name is None:
        raise RequestError(f"{path}: expected questions, found JSON of another shape or none at all. {SHAPES}")
    empty = True
    for item in FORMATS[name].read(path):
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
            if keys >= OURS:
                return "jsonl"
            if window.peek() != "[":
                window.value()
            elif key in LISTS:
                return LISTS[key]
            else:
                deque(window.elements(), maxlen=0)  # one after the other, as a list may be the whole file
    return None


def once(items: Iterable[Item]) -> Iterator[Item]:
    """The items; a question with the id of an earlier one becomes unusable."""
    return with_distinct_ids(items, DUPLICATE)


def write_questions(path: Path | str, questions: Iterable[Question], format_name: QuestionFormat = "jsonl") -> None:
    """Writes questions to a file, which is whole or not there.

    Raises RequestError for a question that the format cannot hold, and for `bioasq`, which is only read.
    """
    path, write = Path(path), FORMATS[format_name].write
    if write is None:
        writable = ", ".join(name for name, found in FORMATS.items() if found.write)
        raise RequestError(f"{path}: {format_name} is only read. Write one of {writable}.")
    try:
        write(path, questions)
    except OSError as error:
        raise write_error(path, error) from error
