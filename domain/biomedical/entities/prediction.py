"""Sentences of words to emissions and entities, of any number and length: streamed, nothing cut, memory bounded."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bertrelay.cpu_kernels import Packed, using
from bertrelay.hardware import release_memory, resolve_precision
from bertrelay.inference import best_batch_tokens, computing, pack_for, sorted_batches
from domain.biomedical.entities.decoding import Spans, span_probabilities, spans_of, viterbi
from domain.biomedical.entities.network import EntityModel
from domain.biomedical.entities.pieces import SPECIALS, Cutter, Pieces, Words, owned_words
from domain.biomedical.streaming import blocks, one_ahead
from domain.biomedical.tags import TokenSpan
from domain.biomedical.windows import Windows, stretches

BLOCK_WORDS = 65_536
"""As many words are read, sorted and computed together; the unit of memory."""


class WordSpan(NamedTuple):
    """An entity as words [start, end) of its sentence, with the probability that exactly it stands there."""

    start: int
    end: int
    type: str
    confidence: float


def find_entities(
    model: EntityModel,
    sentences: Iterable[Words],
    *,
    precision: str = "auto",
    batch_tokens: int | None = None,
    block_words: int = BLOCK_WORDS,
) -> Iterator[list[WordSpan]]:
    """The entities of each sentence, in the order of `sentences`, which is read as a stream, a block ahead.

    A sentence may be of any length, a whole document's words for example, and may be empty.
    batch_tokens: the most pieces in a batch, padding included; chosen by the device when not given.
    """
    for block, emissions in predict_blocks(
        model, sentences, precision=precision, batch_tokens=batch_tokens, block_words=block_words
    ):
        lengths = np.array([len(words) for words in block], dtype=np.int64)
        yield from decode(model, emissions, lengths).by_sentence()


@dataclass(frozen=True)
class Decoded:
    """The best legal tags of a block of sentences, and the entities in them.

    emissions: (words, tags); lengths: words of each sentence, (sentences,); tags: (words,).
    """

    model: EntityModel
    emissions: NDArray[np.float32]
    lengths: NDArray[np.int64]
    tags: NDArray[np.int64]
    spans: Spans

    def confidences(self, temperature: float) -> NDArray[np.float64]:
        """The probability of each entity when all scores are divided by `temperature`, (entities,)."""
        chain, labels = self.model.chain, self.model.labels
        return span_probabilities(self.emissions, self.lengths, chain, self.tags, self.spans, labels, temperature)

    def token_spans(self) -> list[list[TokenSpan]]:
        """The entities of each sentence."""
        ends = np.cumsum(self.lengths)
        owners = np.searchsorted(ends, self.spans.starts, side="right")
        firsts = (ends - self.lengths)[owners]
        columns = (owners, self.spans.starts - firsts, self.spans.ends - firsts, self.spans.types)
        found: list[list[TokenSpan]] = [[] for _ in self.lengths]
        for owner, start, end, kind in zip(*(column.tolist() for column in columns), strict=True):
            found[owner].append(TokenSpan(start, end, self.model.labels.types[kind]))
        return found

    def by_sentence(self) -> list[list[WordSpan]]:
        """The entities of each sentence with their calibrated confidences."""
        confidences = iter(self.confidences(self.model.temperature).tolist())
        return [[WordSpan(*span, next(confidences)) for span in spans] for spans in self.token_spans()]


def decode(model: EntityModel, emissions: NDArray[np.float32], lengths: NDArray[np.int64]) -> Decoded:
    """Emissions of sentences end to end, (words, tags), to entities."""
    tags = viterbi(emissions, lengths, model.chain)
    return Decoded(model, emissions, lengths, tags, spans_of(tags, model.labels))


def predict_blocks(
    model: EntityModel,
    sentences: Iterable[Words],
    *,
    precision: str = "auto",
    batch_tokens: int | None = None,
    block_words: int = BLOCK_WORDS,
) -> Iterator[tuple[list[Words], NDArray[np.float32]]]:
    """Blocks of `sentences` and the emissions of all their words, (words, tags); the next one is cut meanwhile."""
    precision, cutter = resolve_precision(precision, model.network.device), model.make_cutter()
    batch_tokens = best_batch_tokens(model.network.device, batch_tokens)
    cut = ((block, cutter(block)) for block in blocks(sentences, len, block_words))
    packed: Packed = {}
    for block, pieces in one_ahead(cut):
        packed = packed or pack_for(len(pieces.ids), model.network.network.base_model, precision, batch_tokens)
        yield block, emissions_of(model, pieces, cutter, precision, batch_tokens, packed)
        release_memory()


def emissions_of(
    model: EntityModel, pieces: Pieces, cutter: Cutter, precision: str, batch_tokens: int, packed: Packed
) -> NDArray[np.float32]:
    """The scores of every word's tags, (words, tags): each from the window in which the word is most central."""
    network = model.network
    windows = pieces.windows(model.max_tokens, model.overlap)
    parts: list[torch.Tensor] = []
    order = [np.zeros(0, np.int64)]
    with computing(network, precision), using(packed):
        for rows, width, height in sorted_batches(windows.lengths + SPECIALS, batch_tokens, model.max_tokens):
            batch = cutter.batch(pieces, windows.chosen(rows), width, height)
            parts.append(network(**{name: tensor.to(network.device) for name, tensor in batch.items()}))
            order.append(rows)
    return _in_order(parts, pieces, windows.chosen(np.concatenate(order)), len(model.labels))


def _in_order(parts: Sequence[torch.Tensor], pieces: Pieces, windows: Windows, tags: int) -> NDArray[np.float32]:
    """What was computed window by window, in the order of the words."""
    emissions = np.empty((len(pieces.firsts), tags), np.float32)
    if parts:
        emissions[stretches(*owned_words(pieces, windows))] = torch.cat(list(parts)).float().cpu().numpy()
    return emissions
