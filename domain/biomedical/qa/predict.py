"""Answers of a model to questions, from contexts of any number and length; streamed, in bounded memory."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
import torch

from bertrelay.cache import Cache
from bertrelay.checks import iterate_pairs, iterate_texts
from bertrelay.device import as_device, resolve_precision
from bertrelay.errors import RequestError
from bertrelay.inference.batches import compute_blocks
from bertrelay.inference.run_model import BLOCK_CHARACTERS
from bertrelay.model.graph import BackendChoice, check_backend
from bertrelay.progress import log
from domain.biomedical.documents.document import Span
from domain.biomedical.qa.data import Candidate, Question, Reply
from domain.biomedical.qa.model import AnswerModel, load_model
from domain.biomedical.qa.settings import CANDIDATES
from domain.biomedical.qa.spans import NO_SPANS, Spans, allowed_pairs, n_best, probabilities, top_with_ties
from domain.biomedical.qa.subwords import PairSplitter, PairSubwords
from domain.reading import shown_id
from domain.text.sentences import sentence_spans
from domain.text.windows import Floats, Integers, blocks, in_batches, window_outputs


def answer_blocks(
    model: AnswerModel,
    questions: Iterable[Question],
    *,
    precision: str = "auto",
    batch_tokens: int | None = None,
    block_characters: int = BLOCK_CHARACTERS,
) -> Iterator[list[tuple[Question, Spans | None]]]:
    """Streams blocks of `questions` in order, each question with its spans; None for one that is too long.

    A block is read ahead. A context that several questions of a block have is cut into subwords once.
    batch_tokens: the most subwords in a batch, padding included; chosen by the device when absent.
    block_characters: so many of questions and contexts are read, sorted and computed together; the unit of memory.
    """
    splitter = PairSplitter(model.tokenizer)

    def compute(cut: tuple[list[Question], PairSubwords], batch_tokens: int) -> list[tuple[Question, Spans | None]]:
        block, subwords = cut
        rows = zip(
            block,
            subwords.too_long(model.max_tokens, model.overlap).tolist(),
            find_spans(model, splitter, subwords, batch_tokens),
            strict=True,
        )
        return [(question, None if is_too_long else spans) for question, is_too_long, spans in rows]

    grouped = blocks(questions, lambda question: len(question.question) + len(question.context), block_characters)
    cuts = ((block, splitter(block)) for block in grouped)
    resolved = resolve_precision(precision, model.network.device)
    return compute_blocks(model.network, cuts, lambda cut: cut[1].to_read, compute, resolved, batch_tokens)


def find_spans(model: AnswerModel, splitter: PairSplitter, subwords: PairSubwords, batch_tokens: int) -> list[Spans]:
    """The best spans of each question, from all its windows; the windows of all questions share their batches."""
    windows, contexts = subwords.windows(model.max_tokens, model.overlap), subwords.contexts
    no_answer = np.full(len(subwords.context_of), np.inf)  # stays so where nothing is read
    log_odds = np.zeros(len(subwords.context_of))  # of yes, summed over windows
    empty = np.zeros(0, np.int64)
    parts: list[tuple[Integers, Integers, Integers, Floats]] = [(empty, empty, empty, np.zeros(0))]
    lengths, batch = subwords.window_lengths(windows), partial(splitter.batch, subwords)
    for chosen, output in window_outputs(model.network, model.max_tokens, windows, lengths, batch, batch_tokens):
        scores = output[: len(chosen.starts), :, :2]  # (windows, tokens, 2)
        if model.network.yesno is not None:
            np.add.at(log_odds, chosen.sequences, output[: len(chosen.starts), 0, 2].double().cpu().numpy())
        np.minimum.at(no_answer, chosen.sequences, scores[:, 0].sum(-1).double().cpu().numpy())
        if model.whole_words:
            is_edge = subwords.flags(chosen, scores.shape[1], contexts.edges).to(scores.device)
            scores = scores.masked_fill(~is_edge, -torch.inf)
        rows, firsts, lasts, values = top_with_ties(allowed_pairs(scores, model.max_answer_tokens), CANDIDATES)
        parts.append((chosen.sequences[rows], *subwords.characters(chosen, rows, firsts, lasts), values))
    questions, starts, ends, values = map(np.concatenate, zip(*parts, strict=True))
    no_answers = [None if score == np.inf else score for score in no_answer.tolist()]
    best = n_best(questions, starts, ends, values, no_answers, CANDIDATES)
    if model.network.yesno is None:
        return best
    counts = np.bincount(windows.sequences, minlength=len(best)).tolist()
    summed = zip(best, log_odds.tolist(), counts, strict=True)
    return [spans._replace(yes=total / count) if count else spans for spans, total, count in summed]


def too_long(model: AnswerModel) -> str:
    """The reason why a question cannot be asked that leaves its context no space in a window, and the remedy."""
    return (
        f"too long: with special tokens it must fit into the {model.overlap} subwords that neighbouring windows share, "
        "as nothing of a question is cut off. Shorten it, or train a model with a larger overlap."
    )


def log_too_long(model: AnswerModel, questions: Sequence[Question], where: str = "") -> None:
    """Logs how many questions are too long for the model, if any, and the first of them."""
    if questions:
        summary = f"{where}{len(questions):,} questions count as not answered, {shown_id(questions[0].id)!r} the first"
        log(f"{summary}: {too_long(model)}")


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
        whole_words: give no answer that begins or ends inside a word; as the model has it when absent.
        Raises RequestError for a folder that is missing or damaged, or has no model that answers questions.
        """
        check_backend(backend, device)
        target = as_device(device)
        model = load_model(source, cache, backend)
        model.network.to(target)
        return cls(model if whole_words is None else replace(model, whole_words=whole_words))

    @overload
    def __call__(
        self, question: str, context: str, *, top: int = 5, precision: str = "auto", batch_tokens: int | None = None
    ) -> Reply: ...

    @overload
    def __call__(
        self,
        question: list[str] | list[tuple[str, str]],
        context: str | None = None,
        *,
        batch_size: int | None = None,
        top: int = 5,
        precision: str = "auto",
        batch_tokens: int | None = None,
    ) -> list[Reply]: ...

    @overload
    def __call__(
        self,
        question: Iterator[str] | Iterator[tuple[str, str]],
        context: str | None = None,
        *,
        batch_size: int | None = None,
        top: int = 5,
        precision: str = "auto",
        batch_tokens: int | None = None,
    ) -> Iterator[Reply]: ...

    def __call__(
        self,
        question: str | Iterable[str] | Iterable[tuple[str, str]],
        context: str | None = None,
        *,
        batch_size: int | None = None,
        top: int = 5,
        precision: str = "auto",
        batch_tokens: int | None = None,
    ) -> Reply | list[Reply] | Iterator[Reply]:
        """Answers a question from `context`, a list of questions from `context`, or a list of (question, context).

        Gives a reply, a list of them, or, for an iterator, a stream. The other arguments are those of `pipe`.
        """
        pairs: Any = question
        if isinstance(question, str):
            if context is None:
                raise RequestError("answer: expected a question and its context, found one text; give both")
            pairs = [(question, context)]
        elif context is not None:
            pairs = ((text, context) for text in iterate_texts(pairs, "answer: questions of the context"))
        replies = self.pipe(pairs, batch_size=batch_size, top=top, precision=precision, batch_tokens=batch_tokens)
        if isinstance(question, str):
            return next(replies)
        return replies if isinstance(question, Iterator) else list(replies)

    def pipe(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        batch_size: int | None = None,
        top: int = 5,
        precision: str = "auto",
        batch_tokens: int | None = None,
    ) -> Iterator[Reply]:
        """Streams a reply for each (question, context), in order; a block of them is read ahead.

        Questions of one context should follow one another: it is then cut into sentences once.
        batch_size: how many are computed together; some hundred thousand characters of them when absent.
        top, precision, batch_tokens: as of `replies`.
        Raises RequestError for an empty question or context, and for a question that leaves a context no space.
        """

        def questions() -> Iterator[Question]:
            for position, pair in enumerate(iterate_pairs(pairs, "answer")):
                for name, text in zip(("question", "context"), pair, strict=True):
                    if not text.strip():
                        raise RequestError(
                            f"answer: expected a {name}, found an empty one at position {position}; leave it out"
                        )
                yield Question(str(position), *pair)

        for block in in_batches(questions(), batch_size):
            replies = self.replies(block, top=top, precision=precision, batch_tokens=batch_tokens)
            for question, reply in replies:
                if reply is None:
                    raise RequestError(f"question {shown_id(question.id)!r}: {too_long(self.model)}")
                yield reply

    def count_tokens(self, question: Question) -> int:
        """The subwords that the network reads of a question and its context, with special ones and overlaps."""
        model = self.model
        subwords = PairSplitter(model.tokenizer)([question])
        return int(subwords.window_lengths(subwords.windows(model.max_tokens, model.overlap)).sum())

    def replies(
        self, questions: Iterable[Question], *, top: int = 5, precision: str = "auto", batch_tokens: int | None = None
    ) -> Iterator[tuple[Question, Reply | None]]:
        """Streams `questions` with their replies; None for one that leaves its context no space in a window.

        top: the most candidates in a reply, 20 at most.
        batch_tokens: the most subwords in a batch, padding included; chosen by the device when absent.
        """
        if not 1 <= top <= CANDIDATES:
            raise RequestError(
                f"top: expected 1 to {CANDIDATES} candidates, found {top}; a question has no more of them"
            )
        context, sentences, model = "", list[Span](), self.model
        for block in answer_blocks(model, questions, precision=precision, batch_tokens=batch_tokens):
            ranked = [(spans or NO_SPANS).with_no_answer(model.threshold) for _, spans in block]
            chances = probabilities(ranked, model.temperature)[:, :top].tolist()
            for (question, spans), candidates, chance in zip(block, ranked, chances, strict=True):
                if question.context != context:
                    context, sentences = question.context, sentence_spans(question.context)
                yield question, None if spans is None else _reply(candidates, chance, context, sentences)


def _reply(ranked: Spans, chances: Sequence[float], context: str, sentences: Sequence[Span]) -> Reply:
    """chances: the probabilities of as many candidates as the reply is to have, or of all."""
    nbest = [
        Candidate(context[start:end], start, end, chance) if start >= 0 else Candidate("", None, None, chance)
        for start, end, chance in zip(ranked.starts, ranked.ends, chances, strict=False)
    ]
    start, end = ranked.starts[0], ranked.ends[0]
    return Reply(*nbest[0], sentences_around(start, end, context, sentences) if start >= 0 else "", nbest)


def sentences_around(start: int, end: int, context: str, sentences: Sequence[Span]) -> str:
    """The sentences of `context` that its characters [start, end) are in; `sentences` are in order."""
    starts = [first for first, _ in sentences]
    first, last = bisect_right(starts, start) - 1, bisect_left(starts, end) - 1
    return context[min(start, sentences[max(0, first)][0]) : max(end, sentences[max(0, last)][1])]
