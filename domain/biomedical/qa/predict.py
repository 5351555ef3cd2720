"""Questions and their texts to answers, of any number and length: streamed, nothing cut, memory bounded.

Of spans with equal scores the one that begins first is the better one, and then the shorter one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from torch import Tensor
from torch.nn.functional import pad

from bertrelay.cache import Cache
from bertrelay.checks import iterate_pairs, iterate_texts
from bertrelay.device import as_device, resolve_precision
from bertrelay.errors import RequestError
from bertrelay.inference.batches import compute_blocks
from bertrelay.inference.run_model import BLOCK_CHARACTERS
from bertrelay.model.graph import BackendChoice, check_backend
from bertrelay.progress import log
from domain.biomedical.documents.document import Span
from domain.biomedical.qa.model import AnswerModel, load_model
from domain.biomedical.qa.questions import Question
from domain.biomedical.qa.settings import CANDIDATES
from domain.biomedical.qa.subwords import PairSplitter, PairSubwords
from domain.reading import shown_id
from domain.text.sentences import sentence_spans
from domain.text.windows import Flags, Floats, Integers, blocks, in_batches, window_outputs

Cut = tuple[list[Question], PairSubwords]


# Scores of subwords to spans


class CandidateSpans(NamedTuple):
    """Spans that may be answers.

    owners: whose answers they are, those of a window, then of a question, (spans,).
    places: which text they are in, and [start, end) there, (spans, 3).
    scores: those of the first and the last subword, added, (spans,).
    """

    owners: Integers
    places: Integers
    scores: Floats

    def chosen(self, which: NDArray[np.generic]) -> "CandidateSpans":
        return CandidateSpans(*(column[which] for column in self))


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
    """What may be the answer to each question, best first: places (questions, top + 1, 3), scores (questions, top + 1).

    A place is a text, and [start, end) there; all −1 for no answer.
    """

    places: Integers
    scores: Floats

    def probabilities(self, temperature: float) -> Floats:
        """Of each choice among them, when scores are divided by `temperature`, (questions, top + 1)."""
        found: Floats = softmax(self.scores / temperature, axis=1)
        return found

    def ranked(self, temperature: float, top: int | None = None) -> list[list[Choice]]:
        """The choices of each question, the best first."""
        columns = (self.places, self.scores, self.probabilities(temperature))
        rows = zip(*(column[:, :top].tolist() for column in columns), strict=True)
        return [
            [Choice(*place, *values) for place, *values in zip(*row, strict=True) if values[0] > -np.inf]
            for row in rows
        ]


class NBest(NamedTuple):
    """The best spans of each question, best first.

    places: texts, starts and ends, (questions, top, 3). scores: (questions, top); −inf where a question has fewer.
    nulls: the score of no answer, (questions,); +inf where nothing was read.
    """

    places: Integers
    scores: Floats
    nulls: Floats

    @property
    def gaps(self) -> Floats:
        """By how much the score of no answer is above that of the best span, (questions,); +inf without any."""
        return self.nulls - self.scores[:, 0]

    def spans(self) -> CandidateSpans:
        """All spans, those of a question in order."""
        questions, ranks = np.nonzero(self.scores > -np.inf)
        return CandidateSpans(questions, self.places[questions, ranks], self.scores[questions, ranks])

    def with_no_answer(self, threshold: float | None) -> Choices:
        """The choices, no answer at its place among them.

        threshold: by how much no answer must be above the best span; None where it is no choice. It always is where
        there is no span.
        """
        has_span = self.scores[:, 0] > -np.inf
        nothing = np.where(has_span, -np.inf if threshold is None else self.nulls - threshold, 0.0)
        scores = np.column_stack([self.scores, nothing])
        order = np.argsort(-scores, axis=1, kind="stable")  # of equals the span
        places = np.pad(self.places, ((0, 0), (0, 1), (0, 0)), constant_values=-1)
        return Choices(np.take_along_axis(places, order[..., None], axis=1), np.take_along_axis(scores, order, axis=1))


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
    found = ((sums >= least) & (sums > -torch.inf)).nonzero(as_tuple=True)
    windows, flat, values = (each.cpu().numpy() for each in (*found, sums[found]))
    firsts = flat // longest
    places = np.stack([windows, firsts, firsts + flat % longest + 1], axis=1)
    return CandidateSpans(windows, places, values.astype(np.float64))


def n_best(spans: CandidateSpans, nulls: Floats, top: int) -> NBest:
    """The `top` best of each owner's spans; of equal ones, found in several windows, the best one alone.

    nulls: the scores of no answer, (owners,).
    """
    spans = spans.chosen(np.lexsort((-spans.scores, *spans.places.T[::-1], spans.owners)))
    keys = np.column_stack([spans.owners, spans.places])
    spans = spans.chosen(np.append(True, np.any(keys[1:] != keys[:-1], axis=1))[: len(keys)])
    spans = spans.chosen(np.lexsort((-spans.scores, spans.owners)))
    ranks = np.arange(len(spans.owners)) - np.searchsorted(spans.owners, spans.owners)
    spans, ranks = spans.chosen(ranks < top), ranks[ranks < top]
    best = NBest(np.full((len(nulls), top, 3), -1), np.full((len(nulls), top), -np.inf), nulls)
    best.places[spans.owners, ranks] = spans.places
    best.scores[spans.owners, ranks] = spans.scores
    return best


# Answers


def answered_blocks(
    model: AnswerModel,
    questions: Iterable[Question],
    *,
    precision: str = "auto",
    batch_tokens: int | None = None,
    block_characters: int = BLOCK_CHARACTERS,
) -> Iterator[tuple[list[Question], Flags, NBest]]:
    """Blocks of `questions` in order, read as a stream, a block ahead.

    With each block which of its questions leave their text no space in a window, (questions,), and the n-best of all.
    Texts that several questions of a block are asked of are cut once.
    batch_tokens: the most subwords in a batch, padding included; chosen by the device when not given.
    block_characters: so many of questions and texts are read, sorted and computed together; the unit of memory.
    """
    splitter = PairSplitter(model.tokenizer)

    def compute(cut: Cut, batch_tokens: int) -> tuple[list[Question], Flags, NBest]:
        block, subwords = cut
        is_too_long = subwords.too_long(model.max_tokens, model.overlap)
        return block, is_too_long, nbest_of(model, splitter, subwords, batch_tokens)

    grouped = blocks(questions, lambda asked: len(asked.question) + len(asked.context), block_characters)
    cuts = ((block, splitter(block)) for block in grouped)
    resolved = resolve_precision(precision, model.network.device)
    return compute_blocks(model.network, cuts, lambda cut: cut[1].to_read, compute, resolved, batch_tokens)


def nbest_of(model: AnswerModel, splitter: PairSplitter, subwords: PairSubwords, batch_tokens: int) -> NBest:
    """The n-best of each question over all its windows, in characters; the windows of all share their batches."""
    windows, contexts = subwords.windows(model.max_tokens, model.overlap), subwords.contexts
    nulls = np.full(len(subwords.context_of), np.inf)
    parts = [CandidateSpans(np.zeros(0, np.int64), np.zeros((0, 3), np.int64), np.zeros(0))]
    lengths, batch = subwords.window_lengths(windows), partial(splitter.batch, subwords)
    for chosen, output in window_outputs(model.network, model.max_tokens, windows, lengths, batch, batch_tokens):
        scores = output[: len(chosen.starts)]  # (windows, tokens, 2)
        np.minimum.at(nulls, chosen.sequences, scores[:, 0].sum(-1).double().cpu().numpy())
        if model.whole_words:
            is_edge = subwords.flags(chosen, scores.shape[1], contexts.edges).to(scores.device)
            scores = scores.masked_fill(~is_edge, -torch.inf)
        found = spans_in_windows(scores, model.max_answer_tokens, CANDIDATES)
        moved = (chosen.starts - subwords.begins(chosen))[found.owners]  # from a column to the subword of all contexts
        asked, (_, starts, ends) = chosen.sequences[found.owners], found.places.T
        places = np.stack([asked, contexts.starts[starts + moved], contexts.ends[ends - 1 + moved]], axis=1)
        parts.append(CandidateSpans(asked, places, found.scores))
    return n_best(CandidateSpans(*map(np.concatenate, zip(*parts, strict=True))), nulls, CANDIDATES)


def too_long(model: AnswerModel) -> str:
    """What is wrong with a question that leaves its text no space in a window of this model, and what to do."""
    return (
        f"too long: with special tokens it must fit into the {model.overlap} subwords that neighbouring windows share, "
        "as nothing of a question is cut off. Shorten it, or train a model with a larger overlap."
    )


def log_too_long(model: AnswerModel, questions: Sequence[Question], where: str = "") -> None:
    """Logs how many questions are too long for the model, where there are any, and what becomes of them."""
    if questions:
        summary = f"{where}{len(questions):,} questions count as not answered, {shown_id(questions[0].id)!r} the first"
        log(f"{summary}: {too_long(model)}")


class Candidate(NamedTuple):
    """What may be the answer: the characters [start, end) of its context. No answer has no text, and no place."""

    text: str
    start: int | None
    end: int | None
    probability: float


class Reply(NamedTuple):
    """What a context answers to a question: its best candidate, and the others.

    answer: empty where the context does not answer; start and end are then None.
    probability: how sure it is that `answer` is right, which may be that there is none.
    sentence: the sentence or sentences that the answer is in; empty where there is no answer.
    nbest: the candidates, the best first; that the context does not answer may be one of them, the first too.
    """

    answer: str
    start: int | None
    end: int | None
    probability: float
    sentence: str
    nbest: Sequence[Candidate]


class QuestionAnswerer:
    """Answers questions from texts of any length, which are read in overlapping windows."""

    def __init__(self, model: AnswerModel) -> None:
        self.model = model

    @classmethod
    def load(
        cls,
        source: str | Path,
        device: str | torch.device | None = None,
        *,
        backend: BackendChoice = None,
        cache: Cache | None = None,
        whole_words: bool | None = None,
    ) -> Self:
        """The answerer of a model folder or hub id.

        device, backend: as of `SentenceEncoder.load`.
        whole_words: whether an answer may neither begin nor end inside a word; as the model has it when not given.
        Raises RequestError for what is not there, damaged, or no model that answers questions.
        """
        check_backend(backend, device)
        place = as_device(device)
        model = load_model(source, cache, backend)
        model.network.to(place)
        return cls(model if whole_words is None else replace(model, whole_words=whole_words))

    @overload
    def __call__(self, question: str, context: str, **options: Any) -> Reply: ...

    @overload
    def __call__(self, question: list[tuple[str, str]], context: None = None, **options: Any) -> list[Reply]: ...

    @overload
    def __call__(self, question: list[str], context: str, **options: Any) -> list[Reply]: ...

    @overload
    def __call__(
        self, question: Iterator[tuple[str, str]], context: None = None, **options: Any
    ) -> Iterator[Reply]: ...

    @overload
    def __call__(self, question: Iterator[str], context: str, **options: Any) -> Iterator[Reply]: ...

    def __call__(
        self, question: str | Iterable[str] | Iterable[tuple[str, str]], context: str | None = None, **options: Any
    ) -> Reply | list[Reply] | Iterator[Reply]:
        """What `context` answers to `question`, or to each of several; of (question, context) pairs a list.

        Of an iterator it is a stream. options: of `pipe`.
        """
        if isinstance(question, str):
            if context is None:
                raise RequestError("answer: expected a question and its context, found one text; give both")
            return next(self.pipe([(question, context)], **options))
        asked: Any = question
        if context is not None:
            asked = ((text, context) for text in iterate_texts(asked, "answer: questions of the context"))
        replies = self.pipe(asked, **options)
        return replies if isinstance(question, Iterator) else list(replies)

    def pipe(
        self, asked: Iterable[tuple[str, str]], *, batch_size: int | None = None, **options: Any
    ) -> Iterator[Reply]:
        """Streams a reply for each (question, context), in order; a block of them is read ahead.

        Questions of one context should follow one another: it is then cut into sentences once.
        batch_size: how many are computed together; some hundred thousand characters of them when not given.
        options: `top`, `precision` and `batch_tokens`, as of `replies`.
        Raises RequestError for an empty question or context, and for a question that leaves a context no space.
        """

        def questions() -> Iterator[Question]:
            for place, pair in enumerate(iterate_pairs(asked, "answer")):
                for name, text in zip(("question", "context"), pair, strict=True):
                    if not text.strip():
                        found = f"found an empty one at position {place}"
                        raise RequestError(f"answer: expected a {name}, {found}; leave it out")
                yield Question(str(place), *pair)

        for block in in_batches(questions(), batch_size):
            for question, reply in self.replies(block, **options):
                if reply is None:
                    raise RequestError(f"question {shown_id(question.id)!r}: {too_long(self.model)}")
                yield reply

    def replies(
        self, questions: Iterable[Question], *, top: int = 5, precision: str = "auto", batch_tokens: int | None = None
    ) -> Iterator[tuple[Question, Reply | None]]:
        """Streams `questions` with their replies; None for one that leaves its context no space in a window.

        top: the most candidates in a reply, 20 at most.
        batch_tokens: the most subwords in a batch, padding included; chosen by the device when not given.
        """
        if not 1 <= top <= CANDIDATES:
            raise RequestError(
                f"top: expected 1 to {CANDIDATES} candidates, found {top}; no more are kept of a question"
            )
        context, sentences, model = "", list[Span](), self.model
        options: dict[str, Any] = {"precision": precision, "batch_tokens": batch_tokens}
        for block, is_too_long, nbest in answered_blocks(model, questions, **options):
            ranked = nbest.with_no_answer(model.threshold).ranked(model.temperature, top)
            for question, is_out, choices in zip(block, is_too_long, ranked, strict=True):
                if question.context != context:
                    context, sentences = question.context, sentence_spans(question.context)
                yield question, None if is_out else _reply(choices, context, sentences)


def _reply(choices: Sequence[Choice], context: str, sentences: Sequence[Span]) -> Reply:
    nbest = [
        Candidate(context[start:end], start, end, probability) if start >= 0 else Candidate("", None, None, probability)
        for _, start, end, _, probability in choices
    ]
    _, start, end, *_ = choices[0]
    return Reply(*nbest[0], _around(start, end, context, sentences) if start >= 0 else "", nbest)


def _around(start: int, end: int, context: str, sentences: Sequence[Span]) -> str:
    """The sentences of `context` that its characters [start, end) are in."""
    starts = [first for first, _ in sentences]
    first, last = bisect_right(starts, start) - 1, bisect_left(starts, end) - 1
    return context[min(start, sentences[max(0, first)][0]) : max(end, sentences[max(0, last)][1])]
