"""Contexts with the answers to questions about them, marked: a page of its own, and pieces of HTML for a report.

A mark bears the number of its question beside its colour, so that nobody depends on colours. Marks may overlap.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from domain.biomedical.ner.page import HUES, shown
from domain.biomedical.ner.page import style as entity_style
from domain.biomedical.qa.questions import Question

ROOM = Path(__file__).parent

MOST_OF_A_SENTENCE = 0.6

Row = dict[str, Any]


class Mark(NamedTuple):
    """Characters [start, end) of a text. classes: of the style sheet. label: what stands behind the last character."""

    start: int
    end: int
    classes: str
    label: str = ""
    title: str = ""
    anchor: str = ""


# Pieces


def style() -> Markup:
    """The style sheet of everything that this room draws."""
    return entity_style() + Markup((ROOM / "answers.css").read_text(encoding="utf-8"))


def marked(text: str, marks: Sequence[Mark]) -> Markup:
    """The text as a paragraph of HTML with `marks` in it; where they overlap, the first of them gives the colour."""
    borders = sorted({0, len(text), *(border for mark in marks for border in mark[:2])})
    pieces = [
        _piece(text, start, end, [mark for mark in marks if mark.start <= start and end <= mark.end])
        for start, end in pairwise(borders)
    ]
    return Markup('<p class="marked" dir="auto">{}</p>').format(Markup().join(pieces))


def _piece(text: str, start: int, end: int, over: Sequence[Mark]) -> Markup:
    """The characters [start, end), over all of which lie the same marks."""
    inside = shown(text[start:end])
    if not over:
        return inside
    begun = [mark.anchor for mark in over if mark.anchor and mark.start == start]
    anchors = [Markup('<span class="anchor" id="{}"></span>').format(anchor) for anchor in begun]
    classes = [over[0].classes, *(["shared"] if len(over) > 1 else []), *(["joined"] if over[0].start < start else [])]
    labels = [mark.label for mark in over if mark.end == end and mark.label]
    label = Markup(' data-label="{}"').format(", ".join(labels)) if labels else Markup()
    title = "; ".join(mark.title for mark in over if mark.title)
    mark = Markup('<mark class="{}" title="{}"{}>{}</mark>').format(" ".join(classes), title, label, inside)
    return Markup().join([*anchors, mark])


def percent(probability: float) -> str:
    """`93 %`; what is almost nothing or almost certain is not called 0 or 100."""
    if 0 < probability < 0.01:
        return "< 1 %"
    return "> 99 %" if 0.99 < probability < 1 else f"{probability:.0%}".replace("%", " %")


# Pages


class Answered(NamedTuple):
    """A question, and what its context answers, for the page."""

    number: int
    question: str
    best: Row
    others: list[Row]
    sentence: Markup
    anchor: str
    hue: str


class Article(NamedTuple):
    """A context and the questions about it."""

    name: str
    context: Markup
    answered: list[Answered]


def page(asked: Iterable[tuple[Question, Row]], title: str) -> str:
    """A page of questions and their answers, as `answer_file` writes them; those of one context stand together."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    groups = groupby(asked, key=lambda each: each[0].context)
    articles = [_article(number, context, list(found)) for number, (context, found) in enumerate(groups, 1)]
    answered = [each for article in articles for each in article.answered]
    environment = Environment(
        loader=FileSystemLoader(ROOM), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["percent"] = percent
    return environment.get_template("page.html.jinja").render(
        title=title,
        articles=articles,
        questions=len(answered),
        without_answer=sum(not each.best["answer"] for each in answered),
        style=style(),
    )


def _article(number: int, context: str, asked: Sequence[tuple[Question, Row]]) -> Article:
    answered = [_answered(number, place, question, row) for place, (question, row) in enumerate(asked, 1)]
    marks = [
        Mark(each.best["start"], each.best["end"], each.hue, str(each.number), each.question, each.anchor)
        for each in answered
        if each.best["answer"]
    ]
    document = asked[0][0].document
    name = document if document and not document.startswith("article-") else f"Context {number}"
    return Article(name, marked(context, marks), answered)


def _answered(article: int, number: int, question: Question, row: Row) -> Answered:
    others = row["nbest"][1:]
    hue = f"hue-{(number - 1) % HUES}"
    sentence = _in_its_sentence(question.context, row, hue)
    return Answered(number, question.question, row, others, sentence, f"answer-{article}-{number}", hue)


def _in_its_sentence(context: str, row: Row, hue: str) -> Markup:
    """The sentence around an answer, with the answer marked in it; nothing where the answer says as much alone."""
    start, end, sentence = row["start"], row["end"], row["sentence"]
    if len(row["answer"]) >= MOST_OF_A_SENTENCE * len(sentence):
        return Markup()
    offset = context.index(sentence, max(0, end - len(sentence)))  # an equal one may stand elsewhere
    before, answer, after = context[offset:start], context[start:end], context[end : offset + len(sentence)]
    return Markup('{}<mark class="{}">{}</mark>{}').format(shown(before), hue, shown(answer), shown(after))
