"""BioASQ's JSON: `questions` with `body`, `type`, `exact_answer` and `snippets`. Factoid questions are read.

Each snippet of a question becomes a context of its own, under the question's id and the snippet's number
(`5717fb557de986d80d000009_003`); `pool` is the question's id. Right answers come without offsets, and are found by
their words. A second question under the id of another cannot be used: its snippets would be pooled with those of the
first.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from bertrelay.data.tables import Unusable
from domain.biomedical.documents.document import LeftOut, Unfit, shown_id
from domain.biomedical.documents.json_stream import Shape, fitted, json_window
from domain.biomedical.qa.questions import DUPLICATE, Item, Question, Synonyms, aligned, checked, name_of

QUESTIONS = "questions"
NO_SNIPPETS = "a question without snippets"
Type = Literal["factoid", "list", "yesno", "summary"]


class _Snippet(Shape):
    text: str
    document: str = ""


class _BioasqQuestion(Shape):
    id: str | int
    body: str
    type: Type
    exact_answer: list[str | list[str]] | str | None = None
    snippets: list[_Snippet] = Field(default_factory=list)


def read(path: Path) -> Iterator[Item]:
    """Streams the factoid questions of a file, one for each snippet; memory holds one question at a time, and ids."""
    lines = dict[str, int]()  # of the question with an id
    for line, value in _values(path):
        yield from _items(value, str(path), line, lines)


def golds_in(path: Path) -> dict[str, tuple[Synonyms, ...]]:
    """The gold answers of every factoid question that has some, by its id: of those too that cannot be asked."""
    found = dict[str, tuple[Synonyms, ...]]()
    for _, value in _values(path):
        with suppress(Unfit):
            asked = fitted(_BioasqQuestion, value)
            golds = golds_of(asked.exact_answer) if asked.type == "factoid" else ()
            if golds:
                found.setdefault(str(asked.id), golds)
    return found


def _values(path: Path) -> Iterator[tuple[int, Any]]:
    with json_window(path) as window:
        for key in window.members():
            if key == QUESTIONS:
                yield from ((line, json.loads(text)) for line, text in window.elements())
            else:
                window.value()


def _items(value: Any, file: str, line: int, lines: dict[str, int]) -> Iterator[Item]:
    name = shown_id(value.get("id")) if isinstance(value, dict) else ""
    try:
        asked = fitted(_BioasqQuestion, value)
        if asked.type != "factoid":
            yield LeftOut(f"a question of the type {asked.type}")
            return
        if (first := lines.get(str(asked.id))) is not None:
            raise Unfit(DUPLICATE, f"the first with it is in line {first:,}; give each question one of its own")
        lines[str(asked.id)] = line
        if not asked.snippets:
            raise Unfit(NO_SNIPPETS, "there is no text to search for the answer")
        golds = golds_of(asked.exact_answer)
    except Unfit as fault:
        yield Unusable(file, line, fault.reason, fault.detail, name)
        return
    for number, snippet in enumerate(asked.snippets, 1):
        yield _question(asked, golds, number, snippet, file, line)


def golds_of(exact_answer: list[str | list[str]] | str | None) -> tuple[Synonyms, ...]:
    """The right answers with their synonyms: `["a", "b"]` is one in two wordings, `[["a"], ["b"]]` are two answers."""
    if exact_answer is None:
        return ()
    listed = [exact_answer] if isinstance(exact_answer, str) else exact_answer
    plain = tuple(wording for wording in listed if isinstance(wording, str))
    nested = [tuple(wordings) for wordings in listed if not isinstance(wordings, str)]
    answers = [tuple(wording for wording in wordings if wording.strip()) for wordings in [plain, *nested]]
    return tuple(answer for answer in answers if answer)


def _question(
    asked: _BioasqQuestion, golds: tuple[Synonyms, ...], number: int, snippet: _Snippet, file: str, line: int
) -> Question | Unusable:
    name = f"{asked.id}_{number:03}"
    found = [aligned(snippet.text, wordings) for wordings in golds]
    answers = tuple(dict.fromkeys(answer for mentions, _ in found for answer in mentions))
    present = {answer.text for answer in answers}
    others = tuple(dict.fromkeys(text for wordings in golds for text in wordings if text not in present))
    document = snippet.document or name_of([snippet.text])
    read = Question(name, asked.body, snippet.text, answers, others, False, document, str(asked.id), golds)
    try:
        return checked(replace(read, file=file, line=line, notes=tuple(how for _, how in found)))
    except Unfit as fault:
        return Unusable(file, line, fault.reason, fault.detail, shown_id(name))
