"""Questions and their texts to answers, of any number and length: streamed, nothing cut, memory bounded."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self, overload

import numpy as np
import torch

from bertrelay.cpu_kernels import Packed, using
from bertrelay.data.sentences import each_pair
from bertrelay.errors import RequestError, check_count
from bertrelay.hardware import as_device, release_memory, resolve_precision
from bertrelay.inference import best_batch_tokens, computing, pack_for, sorted_batches
from bertrelay.progress import log
from domain.biomedical.documents.document import Span, shown_id
from domain.biomedical.qa.decoding import CandidateSpans, NBest, n_best, null_scores, spans_in_windows, with_no_answer
from domain.biomedical.qa.model import AnswerModel, load_model
from domain.biomedical.qa.settings import CANDIDATES
from domain.biomedical.qa.subwords import PairSplitter, PairSubwords
from domain.biomedical.windows import Integers, Windows, blocks, one_ahead
from domain.sentences import sentence_spans

BLOCK_CHARACTERS = 400_000
"""Questions and texts of as many characters are read, sorted and computed together; the unit of memory."""


class QuestionInput(NamedTuple):
    """A question and the text that should answer it.

    id: names it when something is wrong with it.
    """

    question: str
    context: str
    id: str = ""


class AnswerSpan(NamedTuple):
    """What may be an answer: characters [start, end) of the text, or −1 and −1 for none.

    score: the sum of two logits; those of different texts can be compared. probability: that it is the right one.
    """

    start: int
    end: int
    score: float
    probability: float


def find_answers(
    model: AnswerModel,
    questions: Iterable[QuestionInput],
    *,
    top: int = 5,
    precision: str = "auto",
    batch_tokens: int | None = None,
    block_characters: int = BLOCK_CHARACTERS,
    refused: Callable[[QuestionInput], None] | None = None,
) -> Iterator[list[AnswerSpan]]:
    """The best answers to each question, in the order of `questions`, which is read as a stream, a block ahead.

    top: how many, 21 at most; there is always one, and no answer may be among them, as the first too. Texts that
        several questions of a block are asked of are cut once.
    batch_tokens: the most subwords in a batch, padding included; chosen by the device when not given.
    refused: called with a question that leaves its text no space in a window, which then has an empty list; without it
        such a question raises RequestError.
    """
    found = predict_blocks(
        model,
        questions,
        precision=precision,
        batch_tokens=batch_tokens,
        block_characters=block_characters,
        refused=refused or (lambda asked: refuse_too_long(model, asked)),
    )
    for is_too_long, nbest in found:
        for answers, is_out in zip(answers_of(model, nbest, top), is_too_long, strict=True):
            yield [] if is_out else answers


def answers_of(model: AnswerModel, nbest: NBest, top: int) -> list[list[AnswerSpan]]:
    """The `top` best choices of each question with their calibrated probabilities."""
    choices = with_no_answer(nbest, model.threshold)
    columns = (choices.starts, choices.ends, choices.scores, choices.probabilities(model.temperature))
    rows = zip(*(column[:, :top].tolist() for column in columns), strict=True)
    return [[AnswerSpan(*each) for each in zip(*row, strict=True) if each[2] > -np.inf] for row in rows]


def predict_blocks(
    model: AnswerModel,
    questions: Iterable[QuestionInput],
    *,
    precision: str = "auto",
    batch_tokens: int | None = None,
    block_characters: int = BLOCK_CHARACTERS,
    refused: Callable[[QuestionInput], None],
) -> Iterator[tuple[list[bool], NBest]]:
    """Of each block which questions were too long, and the n-best of all; the next block is cut meanwhile."""
    precision, splitter = resolve_precision(precision, model.network.device), PairSplitter(model.tokenizer)
    batch_tokens = best_batch_tokens(model.network.device, batch_tokens)
    packed: Packed = {}
    for block, subwords in one_ahead(_cut(splitter, questions, block_characters)):
        is_too_long = subwords.too_long(model.max_tokens, model.stride).tolist()
        for asked, is_out in zip(block, is_too_long, strict=True):
            if is_out:
                refused(asked)
        packed = packed or pack_for(subwords.to_read, model.network.backbone, precision, batch_tokens)
        yield is_too_long, nbest_of(model, subwords, splitter, precision, batch_tokens, packed)
        release_memory()


def _cut(
    splitter: PairSplitter, questions: Iterable[QuestionInput], block_characters: int
) -> Iterator[tuple[list[QuestionInput], PairSubwords]]:
    for block in blocks(questions, lambda asked: len(asked.question) + len(asked.context), block_characters):
        yield block, splitter([asked.question for asked in block], [asked.context for asked in block])


def refuse_too_long(model: AnswerModel, asked: QuestionInput) -> None:
    """Raises RequestError for a question that leaves its text no space."""
    name = shown_id(asked.id)
    raise RequestError(f"question {name!r}: {too_long(model)}" if name else f"a question: {too_long(model)}")


def too_long(model: AnswerModel) -> str:
    """What is wrong with a question that leaves its text no space in a window of this model, and what to do."""
    return (
        f"too long: a window of {model.max_tokens} subwords must hold it and {model.stride} of the text at least, and "
        "nothing of a question is cut off. Shorten it, or train a model with a larger max_tokens or a smaller stride."
    )


def log_too_long(model: AnswerModel, ids: Sequence[str], where: str = "") -> None:
    """Says how many questions are too long for the model, where there are any, and what becomes of them."""
    if ids:
        summary = f"{where}{len(ids):,} questions count as not answered, {shown_id(ids[0])!r} the first"
        log(f"{summary}: {too_long(model)}")


def nbest_of(
    model: AnswerModel,
    subwords: PairSubwords,
    splitter: PairSplitter,
    precision: str,
    batch_tokens: int,
    packed: Packed,
) -> NBest:
    """The n-best of each question over all its windows, in characters; the windows of all share their batches."""
    network, windows = model.network, subwords.windows(model.max_tokens, model.stride)
    lengths = splitter.lengths(subwords, windows)
    nulls = np.full(len(subwords.context_of), np.inf)
    none = np.zeros(0, np.int64)
    parts = [CandidateSpans(none, none, none, none, np.zeros(0))]
    with computing(network, precision), using(packed):
        for rows, width, height in sorted_batches(lengths, batch_tokens, model.max_tokens):
            chosen = windows.chosen(rows)
            batch = splitter.batch(subwords, chosen, width, height)
            scores = network(**{name: tensor.to(network.device) for name, tensor in batch.items()})[: len(rows)]
            np.minimum.at(nulls, chosen.sequences, null_scores(scores))
            if model.whole_words:
                is_edge = splitter.edges(subwords, chosen, width).to(scores.device)
                scores = scores.masked_fill(~is_edge, -torch.inf)
            spans = spans_in_windows(scores, model.max_answer_tokens, CANDIDATES)
            parts.append(_in_characters(spans, subwords, chosen, splitter.begins(subwords, chosen)))
    return n_best(CandidateSpans(*map(np.concatenate, zip(*parts, strict=True))), nulls, CANDIDATES)


def _in_characters(spans: CandidateSpans, subwords: PairSubwords, windows: Windows, begins: Integers) -> CandidateSpans:
    """CandidateSpans of windows' columns as spans of questions' texts."""
    moved = (windows.starts - begins)[spans.owners]  # from a column to the subword of all contexts
    questions, contexts = windows.sequences[spans.owners], subwords.contexts
    starts, ends = contexts.starts[spans.starts + moved], contexts.ends[spans.ends - 1 + moved]
    return CandidateSpans(questions, questions, starts, ends, spans.scores)


TOP = 5
"""Candidates of a question by default."""


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
        self,
        asked: Iterable[tuple[str, str]],
        *,
        batch_size: int | None = None,
        top: int = TOP,
        precision: str = "auto",
        batch_tokens: int | None = None,
    ) -> Iterator[Reply]:
        """Streams a reply for each (question, context), in order; a block of them is read ahead.

        Questions of one context should follow one another: it is then cut into sentences once.
        batch_size: how many are computed together; some hundred thousand characters of them when not given.
        Other options, and what is raised, as of `answer`.
        """
        check_count("batch_size", batch_size)
        pairs = _checked(asked)
        blocks = iter([pairs]) if batch_size is None else iter(lambda: list(islice(pairs, batch_size)), [])
        for block in blocks:
            replies = self.replies(block, top=top, precision=precision, batch_tokens=batch_tokens)
            yield from (reply for reply in replies if reply is not None)  # without a callback refused ones raise

    def answer(
        self, question: str, context: str, *, top: int = TOP, precision: str = "auto", batch_tokens: int | None = None
    ) -> Reply:
        """What `context` answers to `question`.

        top: the most candidates in a reply, 20 at most.
        batch_tokens: the most subwords in a batch, padding included; chosen by the device when not given.
        Raises RequestError for an empty question or context, and for a question that leaves a context no space.
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
        """`pipe` with its default blocks."""
        return self.pipe(asked, top=top, precision=precision, batch_tokens=batch_tokens)

    def replies(
        self,
        asked: Iterable[QuestionInput],
        *,
        top: int = TOP,
        precision: str = "auto",
        batch_tokens: int | None = None,
        refused: Callable[[QuestionInput], None] | None = None,
    ) -> Iterator[Reply | None]:
        """Streams a reply for each of `asked`, as `answer_many` does.

        refused: called with a question that leaves its context no space, which then has None; without it that raises.
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


def _checked(asked: Iterable[tuple[str, str]]) -> Iterator[QuestionInput]:
    for place, (question, context) in enumerate(each_pair(asked, "answer")):
        for name, text in (("question", question), ("context", context)):
            if not text.strip():
                raise RequestError(f"answer: expected a {name}, found an empty one at position {place}; leave it out")
        yield QuestionInput(question, context, str(place))


def _remembered(asked: Iterable[QuestionInput], reading: "deque[str]") -> Iterator[QuestionInput]:
    for each in asked:
        reading.append(each.context)
        yield each


def _reply(found: Sequence[AnswerSpan], context: str, sentences: Sequence[Span]) -> Reply:
    nbest = [_candidate(each, context) for each in found]
    best = nbest[0]
    sentence = "" if best.start is None or best.end is None else _around(best.start, best.end, context, sentences)
    return Reply(nbest, sentence)


def _candidate(found: AnswerSpan, context: str) -> Candidate:
    if found.start < 0:
        return Candidate("", None, None, found.probability)
    return Candidate(context[found.start : found.end], found.start, found.end, found.probability)


def _around(start: int, end: int, context: str, sentences: Sequence[Span]) -> str:
    """The sentences of `context` that its characters [start, end) are in."""
    starts = [first for first, _ in sentences]
    first, last = bisect_right(starts, start) - 1, bisect_left(starts, end) - 1
    return context[min(start, sentences[max(0, first)][0]) : max(end, sentences[max(0, last)][1])]
