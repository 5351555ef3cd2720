"""Sentences of words to emissions, tags and entities, in blocks: nothing cut, memory bounded."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bertrelay.inference import computed
from domain.biomedical.documents.tokens import TokenSpan
from domain.biomedical.ner.decoding import span_probabilities, spans_of, viterbi
from domain.biomedical.ner.model import EntityModel, SentenceSubwords, Words
from domain.biomedical.windows import Floats, Integers, blocks, ranges, window_outputs

BLOCK_WORDS = 65_536
"""As many words are read, sorted and computed together; the unit of memory."""


class WordSpan(NamedTuple):
    """An entity as words [start, end) of its sentence, with the probability of exactly this span and type."""

    start: int
    end: int
    type: str
    confidence: float


@dataclass(frozen=True)
class Decoded:
    """The best legal tags of a block of sentences.

    emissions: (words, tags); lengths: words of each sentence, (sentences,); tags: (words,).
    """

    model: EntityModel
    emissions: NDArray[np.float32]
    lengths: Integers
    tags: Integers

    def confidences(self, temperature: float) -> Floats:
        """The probability of each entity when all scores are divided by `temperature`, (entities,)."""
        model = self.model
        return span_probabilities(self.emissions, self.lengths, model.chain, self.tags, model.labels, temperature)

    def token_spans(self) -> list[list[TokenSpan]]:
        """The entities of each sentence."""
        spans, ends = spans_of(self.tags, self.model.labels), np.cumsum(self.lengths)
        owners = np.searchsorted(ends, spans.starts, side="right")
        firsts = (ends - self.lengths)[owners]
        columns = (owners, spans.starts - firsts, spans.ends - firsts, spans.types)
        found: list[list[TokenSpan]] = [[] for _ in self.lengths]
        for owner, start, end, kind in zip(*(column.tolist() for column in columns), strict=True):
            found[owner].append(TokenSpan(start, end, self.model.labels.types[kind]))
        return found

    def by_sentence(self) -> list[list[WordSpan]]:
        """The entities of each sentence with their calibrated confidences."""
        confidences = iter(self.confidences(self.model.temperature).tolist())
        return [[WordSpan(*span, next(confidences)) for span in spans] for spans in self.token_spans()]


def decode(model: EntityModel, subwords: SentenceSubwords, batch_tokens: int) -> Decoded:
    """The best tags of sentences; each word is scored in the window in which it is most central."""
    windows = subwords.windows(model.max_tokens, model.overlap)
    words, scores = [np.zeros(0, np.int64)], [torch.zeros(0, len(model.labels), device=model.network.device)]
    lengths, batch = subwords.window_lengths(windows), partial(model.splitter.batch, subwords)
    for chosen, output in window_outputs(model, windows, lengths, batch, batch_tokens):
        words.append(ranges(*subwords.owned_words(chosen)))
        scores.append(output)
    emissions = np.empty((len(subwords.firsts), len(model.labels)), np.float32)
    emissions[np.concatenate(words)] = torch.cat(scores).float().cpu().numpy()
    return Decoded(model, emissions, subwords.words, viterbi(emissions, subwords.words, model.chain))


def decoded_blocks(
    model: EntityModel,
    sentences: Iterable[Words],
    *,
    precision: str = "auto",
    batch_tokens: int | None = None,
    block_words: int = BLOCK_WORDS,
) -> Iterator[Decoded]:
    """The entities of blocks of `sentences`, in order; they are read as a stream, a block ahead.

    A sentence may be of any length, a whole document's words for example, and may be empty.
    batch_tokens: the most subwords in a batch, padding included; chosen by the device when not given.
    """
    cut = map(model.splitter, blocks(sentences, len, block_words))
    decoding = partial(decode, model)
    return computed(model.network, cut, lambda subwords: len(subwords.ids), decoding, precision, batch_tokens)
