"""`QuestionAnswerer`: questions and the texts that are asked, to answers at their places in the text."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

import torch

from bertrelay.data.texts import each_pair
from bertrelay.errors import RequestError
from bertrelay.hardware import as_device
from domain.biomedical.annotations import Span
from domain.biomedical.answers.answer_settings import CANDIDATES
from domain.biomedical.answers.finding import Asked, Found, find_answers
from domain.biomedical.answers.network import AnswerModel, load_model
from domain.sentences import sentence_spans

TOP = 5
"""Candidates that are told of a question when nobody asks for more."""


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
    sentence: what the answer stands in, a sentence or several; empty where there is no answer.
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

    def answer(
        self, question: str, context: str, *, top: int = TOP, precision: str = "auto", batch_tokens: int | None = None
    ) -> Reply:
        """What `context` answers to `question`.

        top: the most candidates told, 20 at most.
        batch_tokens: the most pieces in a batch, padding included; chosen by the device when not given.
        Raises RequestError for an empty question or context, and for a question that leaves a context no room.
        """
        (reply,) = self.answer_many([(question, context)], top=top, precision=precision, batch_tokens=batch_tokens)
        return reply

    def answer_many(
        self,
        asked: Iterable[tuple[str, str]],
        *,
        top: int = TOP,
        precision: str = "auto",
        batch_tokens: int | None = None,
    ) -> Iterator[Reply]:
        """Streams a reply for each (question, context) of `asked`, in their order; a block of them is read ahead.

        Questions of one context should follow one another: it is then cut into sentences once. Raises as `answer` does.
        """
        replies = self.replies(_checked(asked), top=top, precision=precision, batch_tokens=batch_tokens)
        return (reply for reply in replies if reply is not None)  # nobody takes refused questions, so they raise

    def replies(
        self,
        asked: Iterable[Asked],
        *,
        top: int = TOP,
        precision: str = "auto",
        batch_tokens: int | None = None,
        refused: Callable[[Asked], None] | None = None,
    ) -> Iterator[Reply | None]:
        """Streams a reply for each of `asked`, as `answer_many` does.

        refused: told of a question that leaves its context no room, which then has None; without it that raises.
        """
        if not 1 <= top <= CANDIDATES:
            raise RequestError(
                f"top: expected 1 to {CANDIDATES} candidates, found {top}; no more are kept of a question"
            )
        reading: deque[str] = deque()  # contexts: filled where blocks are read ahead, emptied here in the same order
        answered = find_answers(
            self.model,
            _remembered(asked, reading),
            top=top,
            precision=precision,
            batch_tokens=batch_tokens,
            refused=refused,
        )
        context, sentences = "", list[Span]()
        for found in answered:
            if (following := reading.popleft()) != context:
                context, sentences = following, sentence_spans(following)
            yield _reply(found, context, sentences) if found else None


def _checked(asked: Iterable[tuple[str, str]]) -> Iterator[Asked]:
    for place, (question, context) in enumerate(each_pair(asked, "answer")):
        for name, text in (("question", question), ("context", context)):
            if not text.strip():
                raise RequestError(f"answer: expected a {name}, found an empty one at position {place}; leave it out")
        yield Asked(question, context, str(place))


def _remembered(asked: Iterable[Asked], reading: "deque[str]") -> Iterator[Asked]:
    for each in asked:
        reading.append(each.context)
        yield each


def _reply(found: Sequence[Found], context: str, sentences: Sequence[Span]) -> Reply:
    nbest = [_candidate(each, context) for each in found]
    best = nbest[0]
    sentence = "" if best.start is None or best.end is None else _around(best.start, best.end, context, sentences)
    return Reply(nbest, sentence)


def _candidate(found: Found, context: str) -> Candidate:
    if found.start < 0:
        return Candidate("", None, None, found.probability)
    return Candidate(context[found.start : found.end], found.start, found.end, found.probability)


def _around(start: int, end: int, context: str, sentences: Sequence[Span]) -> str:
    """The sentences of `context` that its characters [start, end) are in."""
    starts = [first for first, _ in sentences]
    first, last = bisect_right(starts, start) - 1, bisect_left(starts, end) - 1
    return context[min(start, sentences[max(0, first)][0]) : max(end, sentences[max(0, last)][1])]
