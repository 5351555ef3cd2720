"""Questions and their texts to answers, of any number and length: streamed, nothing cut, memory bounded."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from bertrelay.cpu_kernels import Packed, using
from bertrelay.errors import RequestError
from bertrelay.hardware import release_memory, resolve_precision
from bertrelay.inference import best_batch_tokens, computing, pack_for, sorted_batches
from bertrelay.progress import log
from domain.biomedical.answers.answer_settings import CANDIDATES
from domain.biomedical.answers.decoding import NBest, Spans, n_best, null_scores, spans_in_windows, with_no_answer
from domain.biomedical.answers.network import AnswerModel
from domain.biomedical.answers.pieces import Cutter, Pieces
from domain.biomedical.formats.items import told_id
from domain.biomedical.streaming import blocks, one_ahead
from domain.biomedical.windows import Integers, Windows

BLOCK_CHARACTERS = 400_000
"""Questions and texts of as many characters are read, sorted and computed together; the unit of memory."""


class Asked(NamedTuple):
    """A question and the text that should answer it.

    id: names it when something is wrong with it.
    """

    question: str
    context: str
    id: str = ""


class Found(NamedTuple):
    """What may be an answer: characters [start, end) of the text, or −1 and −1 for none.

    score: the sum of two logits; those of different texts can be compared. probability: that it is the right one.
    """

    start: int
    end: int
    score: float
    probability: float


def find_answers(
    model: AnswerModel,
    questions: Iterable[Asked],
    *,
    top: int = 5,
    precision: str = "auto",
    batch_tokens: int | None = None,
    block_characters: int = BLOCK_CHARACTERS,
    refused: Callable[[Asked], None] | None = None,
) -> Iterator[list[Found]]:
    """The best answers to each question, in the order of `questions`, which is read as a stream, a block ahead.

    top: how many, 21 at most; there is always one, and no answer may be among them, as the first too. Texts that
        several questions of a block are asked of are cut once.
    batch_tokens: the most pieces in a batch, padding included; chosen by the device when not given.
    refused: told of a question that leaves its text no room in a window, which then has an empty list; without it
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


def answers_of(model: AnswerModel, nbest: NBest, top: int) -> list[list[Found]]:
    """The `top` best choices of each question with their calibrated probabilities."""
    choices = with_no_answer(nbest, model.threshold)
    columns = (choices.starts, choices.ends, choices.scores, choices.probabilities(model.temperature))
    rows = zip(*(column[:, :top].tolist() for column in columns), strict=True)
    return [[Found(*each) for each in zip(*row, strict=True) if each[2] > -np.inf] for row in rows]


def predict_blocks(
    model: AnswerModel,
    questions: Iterable[Asked],
    *,
    precision: str = "auto",
    batch_tokens: int | None = None,
    block_characters: int = BLOCK_CHARACTERS,
    refused: Callable[[Asked], None],
) -> Iterator[tuple[list[bool], NBest]]:
    """Of each block which questions were too long, and the n-best of all; the next block is cut meanwhile."""
    precision, cutter = resolve_precision(precision, model.network.device), Cutter(model.tokenizer)
    batch_tokens = best_batch_tokens(model.network.device, batch_tokens)
    packed: Packed = {}
    for block, pieces in one_ahead(_cut(cutter, questions, block_characters)):
        is_too_long = pieces.too_long(model.max_tokens, model.stride).tolist()
        for asked, is_out in zip(block, is_too_long, strict=True):
            if is_out:
                refused(asked)
        packed = packed or pack_for(pieces.to_read, model.network.network.base_model, precision, batch_tokens)
        yield is_too_long, nbest_of(model, pieces, cutter, precision, batch_tokens, packed)
        release_memory()


def _cut(cutter: Cutter, questions: Iterable[Asked], block_characters: int) -> Iterator[tuple[list[Asked], Pieces]]:
    for block in blocks(questions, lambda asked: len(asked.question) + len(asked.context), block_characters):
        yield block, cutter([asked.question for asked in block], [asked.context for asked in block])


def refuse_too_long(model: AnswerModel, asked: Asked) -> None:
    """Raises RequestError for a question that leaves its text no room."""
    name = told_id(asked.id)
    raise RequestError(f"question {name!r}: {too_long(model)}" if name else f"a question: {too_long(model)}")


def too_long(model: AnswerModel) -> str:
    """What is wrong with a question that leaves its text no room in a window of this model, and what to do."""
    return (
        f"too long: a window of {model.max_tokens} pieces must hold it and {model.stride} of the text at least, and "
        "nothing of a question is cut off. Shorten it, or train a model with a larger max_tokens or a smaller stride."
    )


def tell_refused(model: AnswerModel, ids: Sequence[str], where: str = "") -> None:
    """Says how many questions are too long for the model, where there are any, and what becomes of them."""
    if ids:
        said = f"{where}{len(ids):,} questions count as not answered, {told_id(ids[0])!r} the first"
        log(f"{said}: {too_long(model)}")


def nbest_of(
    model: AnswerModel, pieces: Pieces, cutter: Cutter, precision: str, batch_tokens: int, packed: Packed
) -> NBest:
    """The n-best of each question over all its windows, in characters; the windows of all share their batches."""
    network, windows = model.network, pieces.windows(model.max_tokens, model.stride)
    lengths = cutter.lengths(pieces, windows)
    nulls = np.full(len(pieces.context_of), np.inf)
    none = np.zeros(0, np.int64)
    parts = [Spans(none, none, none, none, np.zeros(0))]
    with computing(network, precision), using(packed):
        for rows, width, height in sorted_batches(lengths, batch_tokens, model.max_tokens):
            chosen = windows.chosen(rows)
            batch = cutter.batch(pieces, chosen, width, height)
            scores = network(**{name: tensor.to(network.device) for name, tensor in batch.items()})[: len(rows)]
            np.minimum.at(nulls, chosen.sequences, null_scores(scores))
            if model.whole_words:
                is_edge = cutter.edges(pieces, chosen, width).to(scores.device)
                scores = scores.masked_fill(~is_edge, -torch.inf)
            spans = spans_in_windows(scores, model.max_answer_tokens, CANDIDATES)
            parts.append(_in_characters(spans, pieces, chosen, cutter.begins(pieces, chosen)))
    return n_best(Spans(*map(np.concatenate, zip(*parts, strict=True))), nulls, CANDIDATES)


def _in_characters(spans: Spans, pieces: Pieces, windows: Windows, begins: Integers) -> Spans:
    """Spans of windows' columns as spans of questions' texts."""
    moved = (windows.starts - begins)[spans.owners]  # from a column to the piece of all contexts
    questions, contexts = windows.sequences[spans.owners], pieces.contexts
    starts, ends = contexts.starts[spans.starts + moved], contexts.ends[spans.ends - 1 + moved]
    return Spans(questions, questions, starts, ends, spans.scores)
