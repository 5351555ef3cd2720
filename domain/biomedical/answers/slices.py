"""How right answers are by how long the right one is, and by where in its text it stands."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bertrelay.evaluation.statistics import share, with_interval
from bertrelay.stage import Metrics
from domain.biomedical.answers.questions import Question
from domain.biomedical.answers.squad_metrics import Score

FIFTHS = 5
Slice = dict[str, str | float | None]


def slices(questions: Sequence[Question], score_of: Mapping[str, Score]) -> dict[str, list[Slice]]:
    """`answer_words` and `position`, each a list of slices in order: `name`, `questions`, `exact_match` and `f1`.

    Of questions with an answer in the text alone, by the first one in their file.
    """
    known = [question for question in questions if question.answers and question.id in score_of]
    ways: dict[str, Callable[[Question], str]] = {"answer_words": _words, "position": _position}
    return {name: _of(known, score_of, way) for name, way in ways.items()}


def _words(question: Question) -> str:
    """How many words the right answer has: 1, 2–3, 4–7, …"""
    low = 1 << (max(1, len(question.answers[0].text.split())).bit_length() - 1)
    return "1 word" if low == 1 else f"{low}–{2 * low - 1} words"


def _position(question: Question) -> str:
    """In which fifth of the text the right answer begins."""
    fifth = question.answers[0].start * FIFTHS // len(question.context)
    return f"{100 * fifth // FIFTHS}–{100 * (fifth + 1) // FIFTHS} %"


def _of(questions: Sequence[Question], score_of: Mapping[str, Score], way: Callable[[Question], str]) -> list[Slice]:
    members: dict[str, list[Score]] = {}
    for question in questions:
        members.setdefault(way(question), []).append(score_of[question.id])
    in_order = sorted(members.items(), key=lambda item: int(item[0].replace("–", " ").split()[0]))
    return [{"name": name, "questions": len(found), **_figures(found)} for name, found in in_order]


def _figures(found: Sequence[Score]) -> Metrics:
    told: Metrics = {}
    for name in Score._fields:
        told |= with_interval(name, share, np.array([getattr(score, name) for score in found]))
    return told
