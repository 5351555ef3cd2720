"""SQuAD's JSON, 1.1 and 2.0: `data`, a list of articles with paragraphs, each a context and its questions.

An article without a title is named by its paragraphs' `document_id`, as in COVID-QA, else after its text.
Plausible answers of impossible questions are ignored.

A question is impossible where `is_impossible` is true. Where it is missing and `answers` is an empty list, it is
impossible in a file of version 2, as its published script scores it; the file's `version` must come before `data` for
that, as it does in SQuAD's own. In files of version 1.1 such a question can be asked and is not scored.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from bertrelay.data.tables import Unusable
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write
from domain.biomedical.documents.document import Unfit, shown_id
from domain.biomedical.documents.json_stream import Shape, fitted, json_window
from domain.biomedical.qa.questions import (
    NO_CONTEXT,
    Answer,
    Item,
    Question,
    checked,
    name_of,
    placed_answers,
)

ARTICLES, VERSION = "data", "version"


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


# Reading


def read(path: Path) -> Iterator[Item]:
    """Streams the questions of a file; memory holds one article at a time."""
    is_version_2 = False
    with json_window(path) as window:
        for key in window.members():
            if key == ARTICLES:
                for line, text in window.elements():
                    yield from _of_article(text, str(path), line, is_version_2)
            else:
                value = json.loads(window.value())
                is_version_2 = is_version_2 or (key == VERSION and str(value).lower().lstrip("v").startswith("2"))


def _of_article(text: str, file: str, line: int, is_version_2: bool) -> Iterator[Item]:
    try:
        article = fitted(_Article, json.loads(text))
    except Unfit as fault:
        yield Unusable(file, line, fault.reason, f"expected an article with `paragraphs`: {fault.detail}")
        return
    paragraphs = list[_Paragraph]()
    for number, value in enumerate(article.paragraphs, 1):
        try:
            paragraphs.append(fitted(_Paragraph, value))
        except Unfit as fault:
            detail = f"paragraph {number:,}: expected `context` and `qas`: {fault.detail}"
            yield Unusable(file, line, fault.reason, detail)
    document = article.title or _name(paragraphs)
    for paragraph in paragraphs:
        for value in paragraph.qas:
            yield _question(value, paragraph.context, document, file, line, is_version_2)


def _name(paragraphs: list[_Paragraph]) -> str:
    ids = [str(paragraph.document_id) for paragraph in paragraphs if paragraph.document_id is not None]
    return ids[0] if ids else name_of(paragraph.context or "" for paragraph in paragraphs)


def _question(
    value: object, context: str | None, document: str, file: str, line: int, is_version_2: bool
) -> Question | Unusable:
    try:
        asked = fitted(_SquadQuestion, value)
        if context is None:
            raise Unfit(NO_CONTEXT, "its paragraph has no `context`; give the text that it is asked of")
        given = [Answer(answer.text, answer.answer_start) for answer in asked.answers or ()]
        answers, golds, notes = placed_answers(context, given)
        unsaid = is_version_2 and asked.answers == []
        impossible = unsaid if asked.is_impossible is None else asked.is_impossible
        read = Question(str(asked.id), asked.question, context, answers, golds, impossible, document)
        return checked(replace(read, file=file, line=line, notes=notes))
    except Unfit as fault:
        name = shown_id(value.get("id")) if isinstance(value, dict) else ""
        return Unusable(file, line, fault.reason, fault.detail, name)


# Writing


def write(path: Path, questions: Iterable[Question]) -> None:
    """Writes a file, which is whole or not there; questions that follow one another share an article and a context.

    Raises RequestError for a question that the format cannot hold.
    """
    with atomic_write(path) as building, building.open("w", encoding="utf-8", newline="\n") as file:
        file.write('{"version": "v2.0", "data": [')
        between = "\n"
        for title, article in groupby(questions, key=lambda question: question.document):
            paragraphs = [
                {"context": context, "qas": [_qas(question) for question in asked]}
                for context, asked in groupby(article, key=lambda question: question.context)
            ]
            file.write(between + json.dumps({"title": title, "paragraphs": paragraphs}, ensure_ascii=False))
            between = ",\n"
        file.write("\n]}\n")


def _qas(question: Question) -> dict[str, Any]:
    if question.golds or question.pool or question.synonyms:
        raise RequestError(
            f"question {shown_id(question.id)!r}: SQuAD's JSON holds neither answers that are not in the "
            "context nor snippets that are pooled. Write JSONL."
        )
    answers = [{"text": answer.text, "answer_start": answer.start} for answer in question.answers]
    value = {"id": question.id, "question": question.question, "answers": answers}
    return {**value, "is_impossible": question.impossible}
