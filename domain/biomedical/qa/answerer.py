"""Questions and their texts to answers, of any number and length: streamed, nothing cut, memory bounded."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self, overload

import numpy as np
import torch

from bertrelay.data.sentences import each_pair
from bertrelay.errors import RequestError
from bertrelay.hardware import as_device
from bertrelay.progress import log
from domain.biomedical.documents.document import Span, shown_id
from domain.biomedical.qa.decoding import CandidateSpans, Choice, NBest, n_best, spans_in_windows
from domain.biomedical.qa.model import AnswerModel, load_model
from domain.biomedical.qa.questions import Question
from domain.biomedical.qa.settings import CANDIDATES
from domain.biomedical.qa.subwords import Flags, PairSplitter, PairSubwords
from domain.biomedical.windows import blocks, computed, in_batches, window_outputs
from domain.sentences import sentence_spans

BLOCK_CHARACTERS = 400_000
"""Questions and texts of as many characters are read, sorted and computed together; the unit of memory."""


class AnsweredBlock(NamedTuple):
    """Questions, which of them leave their text no space in a window, (questions,), and the n-best of all."""

    questions: list[Question]
    is_too_long: Flags
    nbest: NBest


def answered_blocks(
    model: AnswerModel,
    questions: Iterable[Question],
    *,
    precision: str = "auto",
    batch_tokens: int | None = None,
    block_characters: int = BLOCK_CHARACTERS,
) -> Iterator[AnsweredBlock]:
    """Blocks of `questions` in order; they are read as a stream, a block ahead.

    Texts that several questions of a block are asked of are cut once.
    batch_tokens: the most subwords in a batch, padding included; chosen by the device when not given.
    """
    splitter = PairSplitter(model.tokenizer)
    grouped = blocks(questions, lambda asked: len(asked.question) + len(asked.context), block_characters)
    cut = ((block, splitter(block)) for block in grouped)
    for block, (is_too_long, nbest) in computed(
        model, cut, partial(_answered, model, splitter), precision, batch_tokens
    ):
        yield AnsweredBlock(block, is_too_long, nbest)


def _answered(
    model: AnswerModel, splitter: PairSplitter, subwords: PairSubwords, batch_tokens: int
) -> tuple[Flags, NBest]:
    is_too_long = subwords.too_long(model.max_tokens, model.stride)
    return is_too_long, nbest_of(model, splitter, subwords, batch_tokens)


def nbest_of(model: AnswerModel, splitter: PairSplitter, subwords: PairSubwords, batch_tokens: int) -> NBest:
    """The n-best of each question over all its windows, in characters; the windows of all share their batches."""
    windows, contexts = subwords.windows(model.max_tokens, model.stride), subwords.contexts
    nulls, none = np.full(len(subwords.context_of), np.inf), np.zeros(0, np.int64)
    parts = [CandidateSpans(none, none, none, none, np.zeros(0))]
    for chosen, output in window_outputs(model, subwords, windows, splitter.batch, batch_tokens):
        scores = output[: len(chosen.starts)]  # (windows, tokens, 2)
        np.minimum.at(nulls, chosen.sequences, scores[:, 0].sum(-1).double().cpu().numpy())
        if model.whole_words:
            is_edge = splitter.edges(subwords, chosen, scores.shape[1]).to(scores.device)
            scores = scores.masked_fill(~is_edge, -torch.inf)
        found = spans_in_windows(scores, model.max_answer_tokens, CANDIDATES)
        moved = (chosen.starts - subwords.begins(chosen))[found.owners]  # from a column to the subword of all contexts
        starts, ends = contexts.starts[found.starts + moved], contexts.ends[found.ends - 1 + moved]
        asked = chosen.sequences[found.owners]
        parts.append(CandidateSpans(asked, asked, starts, ends, found.scores))
    return n_best(CandidateSpans(*map(np.concatenate, zip(*parts, strict=True))), nulls, CANDIDATES)


def too_long(model: AnswerModel) -> str:
    """What is wrong with a question that leaves its text no space in a window of this model, and what to do."""
    return (
        f"too long: a window of {model.max_tokens} subwords must hold it and {model.stride} of the text at least, and "
        "nothing of a question is cut off. Shorten it, or train a model with a larger max_tokens or a smaller stride."
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


@dataclass(frozen=True)
class Reply:
    """What a context answers to a question.

    nbest: the candidates, the best first; that the context does not answer may be one of them, the first too.
    sentence: the sentence or sentences that the answer is in; empty where there is no answer.
    """

    nbest: Sequence[Candidate]
    sentence: str

    @property
    def answer(self) -> str:
        """The text of the best candidate; empty where the context does not answer."""
        return self.nbest[0].text

    @property
    def start(self) -> int | None:
        return self.nbest[0].start

    @property
    def end(self) -> int | None:
        return self.nbest[0].end

    @property
    def probability(self) -> float:
        """How sure it is that `answer` is right, which may be that there is none."""
        return self.nbest[0].probability


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
        cache_dir: Path | None = None,
        whole_words: bool | None = None,
    ) -> Self:
        """The answerer of a model folder or hub id.

        device: as of `SentenceEncoder.load`.
        whole_words: whether an answer may neither begin nor end inside a word; as the model has it when not given.
        Raises RequestError for what is not there, damaged, or no model that answers questions.
        """
        device = as_device(device)
        model = load_model(source, cache_dir=cache_dir)
        if whole_words is not None:
            model = replace(model, whole_words=whole_words)
        model.network.to(device)
        return cls(model)

    @overload
    def __call__(self, question: str, context: str, **options: Any) -> Reply: ...

    @overload
    def __call__(self, question: list[tuple[str, str]], context: None = None, **options: Any) -> list[Reply]: ...

    @overload
    def __call__(
        self, question: Iterator[tuple[str, str]], context: None = None, **options: Any
    ) -> Iterator[Reply]: ...

    def __call__(
        self, question: str | Iterable[tuple[str, str]], context: str | None = None, **options: Any
    ) -> Reply | list[Reply] | Iterator[Reply]:
        """What `context` answers to `question`; of (question, context) pairs a list, and of an iterator a stream.

        options: of `pipe`.
        """
        if isinstance(question, str):
            if context is None:
                raise RequestError("answer: expected a question and its context, found one text; give both")
            return next(self.pipe([(question, context)], **options))
        replies = self.pipe(question, **options)
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
        for block in in_batches(_questions(asked), batch_size):
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
        for block in answered_blocks(model, questions, precision=precision, batch_tokens=batch_tokens):
            ranked = block.nbest.with_no_answer(model.threshold).ranked(model.temperature, top)
            for question, is_out, choices in zip(block.questions, block.is_too_long, ranked, strict=True):
                if question.context != context:
                    context, sentences = question.context, sentence_spans(question.context)
                yield question, None if is_out else _reply(choices, context, sentences)


def _questions(asked: Iterable[tuple[str, str]]) -> Iterator[Question]:
    for place, (question, context) in enumerate(each_pair(asked, "answer")):
        for name, text in (("question", question), ("context", context)):
            if not text.strip():
                raise RequestError(f"answer: expected a {name}, found an empty one at position {place}; leave it out")
        yield Question(str(place), question, context)


def _reply(choices: Sequence[Choice], context: str, sentences: Sequence[Span]) -> Reply:
    nbest = [
        Candidate(context[start:end], start, end, probability) if start >= 0 else Candidate("", None, None, probability)
        for _, start, end, _, probability in choices
    ]
    _, start, end, *_ = choices[0]
    return Reply(nbest, _around(start, end, context, sentences) if start >= 0 else "")


def _around(start: int, end: int, context: str, sentences: Sequence[Span]) -> str:
    """The sentences of `context` that its characters [start, end) are in."""
    starts = [first for first, _ in sentences]
    first, last = bisect_right(starts, start) - 1, bisect_left(starts, end) - 1
    return context[min(start, sentences[max(0, first)][0]) : max(end, sentences[max(0, last)][1])]
