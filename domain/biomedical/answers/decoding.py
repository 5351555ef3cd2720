"""Scores of pieces to the spans that may be the answer, the best first, and how likely each of them is.

Of spans with equal scores the one that begins first is the better one, and then the shorter one.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from torch import Tensor
from torch.nn.functional import pad

from domain.biomedical.windows import Integers

Floats = NDArray[np.float64]


class Spans(NamedTuple):
    """Spans that may be answers, all (spans,).

    owners: whose answers they are, those of a window, then of a question. texts: which text they stand in.
    starts, ends: [start, end) there. scores: those of the first and the last piece, added.
    """

    owners: Integers
    texts: Integers
    starts: Integers
    ends: Integers
    scores: Floats

    def chosen(self, which: NDArray[np.generic]) -> "Spans":
        """Some of the spans."""
        return Spans(*(each[which] for each in self))


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


class Choices(NamedTuple):
    """What may be the answer to each question, best first, all (questions, top + 1); −1 and −1 stand for no answer."""

    texts: Integers
    starts: Integers
    ends: Integers
    scores: Floats

    def probabilities(self, temperature: float) -> Floats:
        """Of each choice among them, when scores are divided by `temperature`, (questions, top + 1)."""
        found: Floats = softmax(self.scores / temperature, axis=1)
        return found


def spans_in_windows(scores: Tensor, longest: int, top: int) -> Spans:
    """The best spans of each window for scores (windows, tokens, 2), `top` of them and what is as good as the last.

    longest: pieces of a span at most. starts and ends count columns; column 0 stands for no answer and is in none.
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
    return Spans(windows, windows, firsts, firsts + flat % longest + 1, found.astype(np.float64))


def null_scores(scores: Tensor) -> Floats:
    """The score of no answer in each window, (windows,), for scores (windows, tokens, 2)."""
    return scores[:, 0].sum(-1).double().cpu().numpy()


def n_best(spans: Spans, nulls: Floats, top: int) -> NBest:
    """The `top` best of each owner's spans; of equal ones, found in several windows, the best one alone.

    nulls: the scores of no answer, (owners,).
    """
    order = np.lexsort((-spans.scores, spans.ends, spans.starts, spans.texts, spans.owners))
    spans = spans.chosen(order)
    is_new = np.any([np.diff(each, prepend=-1) != 0 for each in spans[:4]], axis=0)
    spans = spans.chosen(is_new)
    spans = spans.chosen(np.lexsort((-spans.scores, spans.owners)))
    ranks = np.arange(len(spans.owners)) - np.searchsorted(spans.owners, spans.owners)
    spans, ranks = spans.chosen(ranks < top), ranks[ranks < top]
    texts, starts, ends = (np.full((len(nulls), top), -1) for _ in range(3))
    scores = np.full((len(nulls), top), -np.inf)
    for matrix, values in zip((texts, starts, ends, scores), spans[1:], strict=True):
        matrix[spans.owners, ranks] = values
    return NBest(texts, starts, ends, scores, nulls)


def pooled(found: NBest, pool_of: Integers, pools: int) -> NBest:
    """The n-best of pools of questions, by their scores; no answer is as likely as where it is least so.

    pool_of: which pool each question belongs to, (questions,).
    """
    rows, ranks = np.nonzero(found.scores > -np.inf)
    texts, starts, ends = (each[rows, ranks] for each in found[:3])
    spans = Spans(pool_of[rows], texts, starts, ends, found.scores[rows, ranks])
    nulls = np.full(pools, np.inf)
    np.minimum.at(nulls, pool_of, found.nulls)
    return n_best(spans, nulls, found.scores.shape[1])


def with_no_answer(found: NBest, threshold: float | None) -> Choices:
    """The n-best with no answer at its place among them.

    threshold: by how much no answer must be above the best span; None where it is no choice. It always is where there
    is no span.
    """
    has_span = found.scores[:, 0] > -np.inf
    nothing = np.where(has_span, -np.inf if threshold is None else found.nulls - (threshold or 0.0), 0.0)
    scores = np.column_stack([found.scores, nothing])
    order = np.argsort(-scores, axis=1, kind="stable")  # of equals the span
    places = (np.pad(each, ((0, 0), (0, 1)), constant_values=-1) for each in found[:3])
    texts, starts, ends = (np.take_along_axis(each, order, 1) for each in places)
    return Choices(texts, starts, ends, np.take_along_axis(scores, order, 1))


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
