"""Scores of subwords to the spans that may be the answer, the best first, and how likely each of them is.

Of spans with equal scores the one that begins first is the better one, and then the shorter one.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from torch import Tensor
from torch.nn.functional import pad

from domain.biomedical.qa.metrics import Score, scores
from domain.biomedical.qa.questions import Question
from domain.biomedical.windows import Integers

Floats = NDArray[np.float64]


class CandidateSpans(NamedTuple):
    """Spans that may be answers, all (spans,).

    owners: whose answers they are, those of a window, then of a question. texts: which text they are in.
    starts, ends: [start, end) there. scores: those of the first and the last subword, added.
    """

    owners: Integers
    texts: Integers
    starts: Integers
    ends: Integers
    scores: Floats

    def chosen(self, which: NDArray[np.generic]) -> "CandidateSpans":
        """Some of the spans."""
        return CandidateSpans(*(each[which] for each in self))


class Choice(NamedTuple):
    """What may be the answer: characters [start, end) of the text of question `asked`; all −1 for no answer.

    score: the sum of two logits; those of different texts can be compared. probability: that it is the right one.
    """

    asked: int
    start: int
    end: int
    score: float
    probability: float


class Choices(NamedTuple):
    """What may be the answer to each question, best first, all (questions, top + 1); −1 and −1 mean no answer."""

    texts: Integers
    starts: Integers
    ends: Integers
    scores: Floats

    def probabilities(self, temperature: float) -> Floats:
        """Of each choice among them, when scores are divided by `temperature`, (questions, top + 1)."""
        found: Floats = softmax(self.scores / temperature, axis=1)
        return found

    def ranked(self, temperature: float, top: int | None = None) -> list[list[Choice]]:
        """The choices of each question, the best first."""
        rows = zip(*(each[:, :top].tolist() for each in (*self, self.probabilities(temperature))), strict=True)
        return [[Choice(*each) for each in zip(*row, strict=True) if each[3] > -np.inf] for row in rows]


class NBest(NamedTuple):
    """The best spans of each question, best first.

    texts, starts, ends, scores: (questions, top); the score is −inf where a question has fewer.
    nulls: the score of no answer, (questions,); +inf where nothing was read.
    """

    texts: Integers
    starts: Integers
    ends: Integers
    scores: Floats
    nulls: Floats

    @property
    def gaps(self) -> Floats:
        """By how much the score of no answer is above that of the best span, (questions,); +inf without any."""
        return self.nulls - self.scores[:, 0]

    def with_no_answer(self, threshold: float | None) -> Choices:
        """The choices, no answer at its place among them.

        threshold: by how much no answer must be above the best span; None where it is no choice. It always is where
        there is no span.
        """
        has_span = self.scores[:, 0] > -np.inf
        nothing = np.where(has_span, -np.inf if threshold is None else self.nulls - threshold, 0.0)
        scores = np.column_stack([self.scores, nothing])
        order = np.argsort(-scores, axis=1, kind="stable")  # of equals the span
        places = (np.pad(each, ((0, 0), (0, 1)), constant_values=-1) for each in self[:3])
        texts, starts, ends = (np.take_along_axis(each, order, 1) for each in places)
        return Choices(texts, starts, ends, np.take_along_axis(scores, order, 1))


def spans_in_windows(scores: Tensor, longest: int, top: int) -> CandidateSpans:
    """The best spans of each window for scores (windows, tokens, 2), `top` of them and what is as good as the last.

    longest: subwords of a span at most. starts and ends count columns; column 0 means no answer and is in none.
    """
    longest = min(longest, scores.shape[1])
    starts, ends = scores.unbind(-1)  # (windows, tokens)
    starts = starts.index_fill(1, torch.zeros(1, dtype=torch.int64, device=starts.device), -torch.inf)
    last = pad(ends, (0, longest - 1), value=-torch.inf).unfold(1, longest, 1)  # (windows, tokens, longest)
    sums = (starts[..., None] + last).flatten(1)  # (windows, tokens · longest)
    least = sums.topk(min(top, sums.shape[1])).values[:, -1:]  # (windows, 1)
    places = ((sums >= least) & (sums > -torch.inf)).nonzero(as_tuple=True)
    windows, flat, found = (each.cpu().numpy() for each in (*places, sums[places]))
    firsts = flat // longest
    return CandidateSpans(windows, windows, firsts, firsts + flat % longest + 1, found.astype(np.float64))


def n_best(spans: CandidateSpans, nulls: Floats, top: int) -> NBest:
    """The `top` best of each owner's spans; of equal ones, found in several windows, the best one alone.

    nulls: the scores of no answer, (owners,).
    """
    spans = spans.chosen(np.lexsort((-spans.scores, spans.ends, spans.starts, spans.texts, spans.owners)))
    spans = spans.chosen(np.any([np.diff(each, prepend=-1) != 0 for each in spans[:4]], axis=0))
    spans = spans.chosen(np.lexsort((-spans.scores, spans.owners)))
    ranks = np.arange(len(spans.owners)) - np.searchsorted(spans.owners, spans.owners)
    spans, ranks = spans.chosen(ranks < top), ranks[ranks < top]
    texts, starts, ends = (np.full((len(nulls), top), -1) for _ in range(3))
    scores = np.full((len(nulls), top), -np.inf)
    for matrix, values in zip((texts, starts, ends, scores), spans[1:], strict=True):
        matrix[spans.owners, ranks] = values
    return NBest(texts, starts, ends, scores, nulls)


def best_threshold(gaps: Floats, answered: Floats, unanswered: Floats) -> float:
    """The threshold at which questions score most together, (questions,).

    gaps: by how much no answer is above the best span. answered, unanswered: what a question scores with its best span
    and without an answer.
    """
    is_open = np.isfinite(gaps)
    order = np.argsort(gaps[is_open], kind="stable")
    ordered, gains = gaps[is_open][order], (answered - unanswered)[is_open][order]
    if not len(ordered):
        return 0.0
    borders = np.flatnonzero(np.diff(ordered, prepend=-np.inf, append=np.inf) > 0)  # between unequal gaps
    best = borders[np.append(0.0, np.cumsum(gains))[borders].argmax()]  # so many are answered
    around = np.concatenate([[ordered[0] - 1], ordered, [ordered[-1] + 1]])
    return float((around[best] + around[best + 1]) / 2)


@dataclass(frozen=True)
class Pools:
    """Questions as they are scored: what is asked of several texts is one question.

    asked: of each text. scored: each with everything that is right in any of its texts. pool_of: which of these each
    of those belongs to, (asked,).
    """

    asked: Sequence[Question]
    scored: list[Question]
    pool_of: Integers

    @classmethod
    def of(cls, questions: Sequence[Question]) -> "Pools":
        members = defaultdict[str, list[Question]](list)
        for question in questions:
            members[question.scored_as].append(question)
        place = {name: number for number, name in enumerate(members)}
        pool_of = np.array([place[question.scored_as] for question in questions], dtype=np.int64)
        return cls(questions, [_joined(name, each) for name, each in members.items()], pool_of)

    @property
    def known(self) -> Integers:
        """The places of the scored questions with gold answers."""
        return np.flatnonzero([question.has_gold for question in self.scored])

    def nbest(self, found: NBest) -> NBest:
        """The n-best of what is asked as that of what is scored; no answer is as likely as where it is least so."""
        rows, ranks = np.nonzero(found.scores > -np.inf)
        texts, starts, ends = (each[rows, ranks] for each in (found.texts, found.starts, found.ends))
        spans = CandidateSpans(self.pool_of[rows], texts, starts, ends, found.scores[rows, ranks])
        nulls = np.full(len(self.scored), np.inf)
        np.minimum.at(nulls, self.pool_of, found.nulls)
        return n_best(spans, nulls, found.scores.shape[1])

    def text(self, asked: int, start: int, end: int) -> str:
        """The text of a choice, "" for no answer."""
        return self.asked[asked].context[start:end] if start >= 0 else ""

    def scores_at(self, nbest: NBest, threshold: float | None) -> dict[str, Score]:
        """How right the best choices are, by id; of questions with gold answers alone."""
        best = zip(*(each[:, 0].tolist() for each in nbest.with_no_answer(threshold)[:3]), strict=True)
        answers = {each.id: self.text(*place) for each, place in zip(self.scored, best, strict=True)}
        return scores(answers, self.scored)


def _joined(name: str, members: Sequence[Question]) -> Question:
    if len(members) == 1 and members[0].id == name:
        return members[0]
    golds = dict.fromkeys(text for each in members if each.answers or each.golds for text in each.gold_texts)
    is_impossible = not golds and any(each.impossible for each in members)
    return replace(members[0], id=name, answers=(), golds=tuple(golds), impossible=is_impossible)
