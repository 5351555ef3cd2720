"""JSONL: a question in each line, `{"id", "question", "context", "answers": [{"text", "start"}]}`.

It holds all that a question is: `golds`, `impossible`, `document`, `pool` and `synonyms` stand where there are any.
Other keys are read over. A question without `id` is named by its line, one without `document` after its context.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertrelay.data.tables import Unusable
from bertrelay.files import atomic_write
from domain.biomedical.documents.document import Unfit, numbered_lines, told_id
from domain.biomedical.documents.json_stream import NOT_JSON, Shape, parsed
from domain.biomedical.qa.questions import (
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


class _Answer(Shape):
    text: str
    start: int


class _Question(Shape):
    id: str | int | None = None
    question: str
    context: str | None = None
    answers: tuple[_Answer, ...] = ()
    golds: tuple[str, ...] = ()
    impossible: bool = False
    document: str = ""
    pool: str = ""
    synonyms: tuple[Synonyms, ...] = ()


def read(path: Path) -> Iterator[Item]:
    """Streams the questions of a file, one in each line that is not blank."""
    context = ""
    for row in numbered_lines(path):
        if isinstance(row, Unusable):
            yield row
        elif row.values[0].strip():
            item = _item(row.values[0], context, row.file, row.line)
            context = item.context if isinstance(item, Question) else context
            yield item


def _item(line: str, context_before: str, file: str, number: int) -> Question | Unusable:
    try:
        found = parsed(_Question, line)
    except Unfit as fault:
        if fault.reason == NOT_JSON:
            return Unusable(file, number, fault.reason, fault.detail)
        value = json.loads(line)
        name = told_id(value.get("id")) if isinstance(value, dict) else ""
        return Unusable(file, number, fault.reason, f"{fault.detail}; {SHAPE}", name)
    name = str(number if found.id is None else found.id)
    try:
        return checked(replace(_question(found, name, context_before), file=file, line=number))
    except Unfit as fault:
        return Unusable(file, number, fault.reason, fault.detail, told_id(name))


def _question(found: _Question, name: str, context_before: str) -> Question:
    if found.context is None:
        raise Unfit(NO_CONTEXT, "give the text that it is asked of as `context`")
    # Questions of one context follow one another, and contexts are long: they share one text in memory.
    context = context_before if found.context == context_before else found.context
    answers, lost, notes = placed_answers(context, [Answer(answer.text, answer.start) for answer in found.answers])
    golds, document = (*found.golds, *lost), found.document or name_of([context])
    read = Question(name, found.question, context, answers, golds, found.impossible, document, found.pool)
    return replace(read, synonyms=found.synonyms, notes=notes)


def write(path: Path, questions: Iterable[Question]) -> None:
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
