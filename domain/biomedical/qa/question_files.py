"""The front door: questions in and out of files of any format."""

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from bertrelay.data.records import Rejects
from bertrelay.data.tables import Unusable
from bertrelay.errors import RequestError
from bertrelay.files import write_error
from bertrelay.progress import log
from domain.biomedical.documents.document import numbered, told_id
from domain.biomedical.qa import bioasq, jsonl, squad
from domain.biomedical.qa.questions import DUPLICATE, Item, Question, json_window

QuestionFormat = Literal["squad", "bioasq", "jsonl"]


class Format(NamedTuple):
    """How questions of a format are read, and how its files are written; None where they are not."""

    read: Callable[[Path], Iterator[Item]]
    write: Callable[[Path, Iterable[Question]], None] | None


FORMATS: dict[QuestionFormat, Format] = {
    "squad": Format(squad.read, squad.write),
    "bioasq": Format(bioasq.read, None),
    "jsonl": Format(jsonl.read, jsonl.write),
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

    Offsets that a shift of a few characters makes fit are mended. Of two questions with one id the second cannot be
    used; the ids are remembered, 100 bytes each.

    rejects: counts questions that cannot be used; without it the first one raises RequestError. The caller counts the
    used ones with `rejects.used()`.
    Raises RequestError for what concerns the whole file: not there, cut off, of another format, without a question.
    """
    return usable(question_items(path, format_name), rejects)


def usable(items: Iterable[Item], rejects: Rejects | None = None, tell: bool = True) -> Iterator[Question]:
    """The questions among the items of one file or several, each id once; what is read over is told in the end.

    tell: False for what was told of before, when the same files were read.
    """
    left_out: Counter[str] = Counter()
    for item in numbered(once(items)):
        if isinstance(item, Question):
            yield item
        elif isinstance(item, Unusable):
            refuse(item, rejects)
        else:
            left_out[item.reason] += 1
    if left_out and tell:
        log("read over: " + ", ".join(f"{count:,} × {reason}" for reason, count in left_out.most_common()))


def question_items(path: Path | str, format_name: QuestionFormat | None = None) -> Iterator[Item]:
    """Every question in its place, usable or not, and what is read over. Raises RequestError where there is nothing."""
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
    """What a file of questions is, told by its first keys; None for what is no such file.

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
    """The items; a question with the id of one before it becomes unusable."""
    seen: dict[int, tuple[str, int]] = {}
    for item in items:
        if isinstance(item, Question):
            key = hash(item.id)
            if key in seen:
                file, line = seen[key]
                detail = f"the first with it is in {file}, line {line:,}; give each question one of its own"
                yield Unusable(item.file, item.line, DUPLICATE, detail, told_id(item.id))
                continue
            seen[key] = (item.file, item.line)
        yield item


def refuse(fault: Unusable, rejects: Rejects | None) -> None:
    """Counts what cannot be used, or raises RequestError where nobody counts."""
    if rejects is None:
        raise RequestError(f"{told(fault)}. Mend or remove it.")
    rejects.add(fault.file, fault.line, fault.reason, fault.record, fault.detail)


def told(fault: Unusable) -> str:
    """File, line and id of a question that cannot be used, and what is wrong with it."""
    detail = f" ({fault.detail})" if fault.detail else ""
    return f"{place_of(fault)}: {fault.reason}{detail}"


def place_of(fault: Unusable) -> str:
    """File, line and id of a question that cannot be used."""
    record = f", question {fault.record}" if fault.record else ""
    return f"{fault.file}, line {fault.line:,}{record}"


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
