"""Questions with their answers marked in the texts they are answered from, as a page."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from domain.biomedical.documents.page import HUES, Highlight, marked, render, shown
from domain.biomedical.qa.questions import Question

TEMPLATE = Path(__file__).parent / "answers.html.jinja"
MAX_OF_SENTENCE = 0.6
"""An answer of a larger share of its sentence is not shown in it again."""

Row = dict[str, Any]


class AnsweredQuestion(NamedTuple):
    """A question, and what its context answers, for the page."""

    number: int
    question: str
    best: Row
    others: list[Row]
    sentence: Markup
    anchor: str
    hue: str


def answer_page(asked: Iterable[tuple[Question, Row]], title: str) -> str:
    """A page of questions and their answers, as `answer_file` writes them, grouped by context."""
    groups = groupby(asked, key=lambda each: each[0].context)
    articles = [_article(number, context, list(found)) for number, (context, found) in enumerate(groups, 1)]
    answered = [each for article in articles for each in article["answered"]]
    without_answer = sum(not each.best["answer"] for each in answered)
    return render(TEMPLATE, title=title, articles=articles, questions=len(answered), without_answer=without_answer)


def _article(article: int, context: str, asked: Sequence[tuple[Question, Row]]) -> dict[str, Any]:
    """A context and the questions about it."""
    answered = []
    for number, (question, row) in enumerate(asked, 1):
        hue, anchor = f"hue-{(number - 1) % HUES}", f"answer-{article}-{number}"
        sentence = _in_its_sentence(context, row, hue)
        answered.append(AnsweredQuestion(number, question.question, row, row["nbest"][1:], sentence, anchor, hue))
    highlights = [
        Highlight(each.best["start"], each.best["end"], each.hue, str(each.number), each.question, each.anchor)
        for each in answered
        if each.best["answer"]
    ]
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
