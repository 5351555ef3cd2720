"""Candidate spans of answers: the best pairs of a first and a last subword, as characters of their contexts.

Of spans with equal scores the one that begins first is the better one, and then the shorter one.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.special import softmax
from torch import Tensor
from torch.nn.functional import pad

from domain.biomedical.qa.settings import CANDIDATES
from domain.text.windows import Floats, Integers


class Spans(NamedTuple):
    """The candidate spans of one question, best first: characters [start, end) of its contexts.

    contexts: numbers of the contexts that they are in. A question that is pooled has several; others have one, 0.
    scores: the logits of a span's first and last subword, added. Those of different contexts can be compared.
    no_answer: the score of no answer, the lowest of all windows; None where there was nothing to read.
    yes: the log-odds of yes, as a model with a yes/no head has them on average over windows; None without them.
    """

    contexts: list[int]
    starts: list[int]
    ends: list[int]
    scores: list[float]
    no_answer: float | None
    yes: float | None = None

    @property
    def is_answerable(self) -> bool:
        """True if there is any span to answer with."""
        return bool(self.scores)

    @property
    def gap(self) -> float:
        """By how much the score of no answer is above that of the best span, of an answerable question."""
        assert self.no_answer is not None
        return self.no_answer - self.scores[0]

    def with_no_answer(self, threshold: float | None) -> "Spans":
        """The spans with "no answer" ranked among them, which has −1 as context, start and end.

        threshold: by how much its score must be above that of a span to rank before it. With None it is no candidate.
            A question that is not answerable has no other candidate, at any threshold; its score is then 0.
        For example, spans with scores 3 and 1 and no answer with 5 rank as 3, 2 (no answer), 1 at the threshold 3.
        """
        if not self.is_answerable:
            return Spans([-1], [-1], [-1], [0.0], self.no_answer, self.yes)
        if threshold is None or self.no_answer is None:
            return self
        score = self.no_answer - threshold
        rank = bisect_right(self.scores, -score, key=lambda better: -better)  # behind spans as good
        columns: tuple[list[int], ...] = self[:3]
        contexts, starts, ends = ([*column[:rank], -1, *column[rank:]] for column in columns)
        ranked = [*self.scores[:rank], score, *self.scores[rank:]]
        return Spans(contexts, starts, ends, ranked, self.no_answer, self.yes)

    def apart(self) -> "Spans":
        """The spans that overlap no better one: of [4, 9), [0, 5) and [0, 3), the best first, [4, 9) and [0, 3)."""
        chosen = list[int]()
        for rank, (context, start, end) in enumerate(zip(*self[:3], strict=True)):
            others = ((self.contexts[better], self.starts[better], self.ends[better]) for better in chosen)
            if not any(other == context and start < last and first < end for other, first, last in others):
                chosen.append(rank)
        contexts, starts, ends = ([column[rank] for rank in chosen] for column in self[:3])
        return self._replace(contexts=contexts, starts=starts, ends=ends, scores=[self.scores[rank] for rank in chosen])

    def text(self, rank: int, contexts: Sequence[str]) -> str:
        """The text of the candidate at `rank`, from 0, in the question's `contexts`; "" for no answer."""
        start, end = self.starts[rank], self.ends[rank]
        return contexts[self.contexts[rank]][start:end] if start >= 0 else ""


NO_SPANS = Spans([], [], [], [], None)


def probabilities(ranked: Sequence[Spans], temperature: float) -> Floats:
    """The probability of each candidate among those of its question, (questions, CANDIDATES + 1); then zeros.

    ranked: the candidates of each question, no answer among them. temperature: divides their scores.
    """
    scores = np.full((len(ranked), CANDIDATES + 1), -np.inf)
    for row, spans in zip(scores, ranked, strict=True):
        row[: len(spans.scores)] = spans.scores
    values: Floats = softmax(scores / temperature, axis=1)
    return values


def pool_spans(spans_of_contexts: Sequence[Spans]) -> Spans:
    """The best spans of one question in all its contexts, from those in each; these are numbered in order.

    No answer has the score that it has in the context where it is least likely, yes the mean log-odds of contexts.
    """
    if len(spans_of_contexts) == 1:
        return spans_of_contexts[0]
    rows = sorted(
        (-score, (context, start, end))
        for context, spans in enumerate(spans_of_contexts)
        for start, end, score in zip(spans.starts, spans.ends, spans.scores, strict=True)
    )[:CANDIDATES]
    no_answer = [spans.no_answer for spans in spans_of_contexts if spans.no_answer is not None]
    contexts, starts, ends = ([position[column] for _, position in rows] for column in range(3))
    log_odds = [spans.yes for spans in spans_of_contexts if spans.yes is not None]
    yes = sum(log_odds) / len(log_odds) if log_odds else None
    return Spans(contexts, starts, ends, [-score for score, _ in rows], min(no_answer, default=None), yes)


def allowed_pairs(scores: Tensor, longest: int) -> Tensor:
    """The score of each span of up to `longest` subwords, (windows, tokens, longest): by its first one and its length.

    scores: those of each subword as first and as last one, (windows, tokens, 2); −inf where no answer may begin or end.
    Column 0, which stands for no answer, begins no span. What is no span has the score −inf.
    For example, subwords with the scores 1 and 2 as first ones and 3 and 5 as last ones, behind column 0, have spans of
    up to 2 with the scores `[[−inf, −inf], [1 + 3, 1 + 5], [2 + 5, −inf]]`.
    """
    longest = min(longest, scores.shape[1])
    starts, ends = scores.unbind(-1)  # (windows, tokens)
    starts = starts.index_fill(1, torch.zeros(1, dtype=torch.int64, device=starts.device), -torch.inf)
    last = pad(ends, (0, longest - 1), value=-torch.inf).unfold(1, longest, 1)  # (windows, tokens, longest)
    return starts[..., None] + last


def top_with_ties(pairs: Tensor, top: int) -> tuple[Integers, Integers, Integers, Floats]:
    """The `top` best spans of each window, and all that are as good as the last of them, (spans,).

    They are windows, columns of the first and of the last subword, and scores. pairs: of `allowed_pairs`.
    Ties matter: which of equal spans `topk` takes differs between devices and batches. With all of them, `n_best` can
    choose by position, and a question has the same answers in whatever batch it is read.
    """
    least = pairs.flatten(1).topk(min(top, pairs[0].numel())).values[:, -1]  # (windows,)
    chosen = ((pairs >= least[:, None, None]) & (pairs > -torch.inf)).nonzero(as_tuple=True)
    windows, firsts, lengths, values = (column.cpu().numpy() for column in (*chosen, pairs[chosen]))
    return windows, firsts, firsts + lengths, values.astype(np.float64)


def n_best(
    questions: Integers, starts: Integers, ends: Integers, scores: Floats, no_answer: Sequence[float | None], top: int
) -> list[Spans]:
    """The `top` best spans of each question in its context, from those of all its windows, (spans,).

    questions: numbers of the questions that spans may answer. no_answer: the score of no answer to each question.
    A span that several windows hold counts once, with its best score: with [4, 9) in one window at 2.5 and in the next
    at 3, it has 3.
    """
    frame = pd.DataFrame({"question": questions, "start": starts, "end": ends, "score": scores})
    frame = frame.sort_values(["question", "score", "start", "end"], ascending=[True, False, True, True])
    frame = frame.drop_duplicates(["question", "start", "end"]).groupby("question").head(top)
    borders = np.searchsorted(frame["question"], np.arange(len(no_answer) + 1)).tolist()
    columns = [frame[name].tolist() for name in ("start", "end", "score")]
    best = list[Spans]()
    for first, last, score in zip(borders, borders[1:], no_answer, strict=False):
        span_starts, span_ends, span_scores = (column[first:last] for column in columns)
        best.append(Spans([0] * len(span_starts), span_starts, span_ends, span_scores, score))
    return best
