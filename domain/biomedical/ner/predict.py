"""Entities of sentences, texts and documents of any number and length: streamed, nothing cut, memory bounded."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray

from bertrelay.cache import Cache
from bertrelay.checks import iterate_texts
from bertrelay.device import as_device, resolve_precision
from bertrelay.inference.batches import compute_blocks
from bertrelay.model.graph import BackendChoice, check_backend
from domain.biomedical.documents.document import Document, Entity, Span
from domain.biomedical.documents.tags import TokenSpan
from domain.biomedical.ner.decoding import span_probabilities, spans_of, viterbi
from domain.biomedical.ner.model import EntityModel, load_model
from domain.biomedical.ner.subwords import SentenceSubwords, Words
from domain.text.sentences import iterate_sentences
from domain.text.windows import Floats, Integers, blocks, in_batches, ranges, window_outputs
from domain.text.words import word_spans

BLOCK_WORDS = 65_536
"""Words that are read, sorted and computed together, which bounds the memory."""


@dataclass(frozen=True)
class Decoded:
    """The best legal tags of a block of sentences.

    emissions: (words, tags). lengths: words of each sentence, (sentences,). tags: numbers of tags, (words,).
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
        """The entities of each sentence, as words of it."""
        spans, ends = spans_of(self.tags, self.model.labels), np.cumsum(self.lengths)
        sentences = np.searchsorted(ends, spans.starts, side="right")  # (entities,)
        firsts = (ends - self.lengths)[sentences]
        columns = (sentences, spans.starts - firsts, spans.ends - firsts, spans.types)
        entities: list[list[TokenSpan]] = [[] for _ in self.lengths]
        for sentence, start, end, kind in zip(*(column.tolist() for column in columns), strict=True):
            entities[sentence].append(TokenSpan(start, end, self.model.labels.types[kind]))
        return entities


def decode(model: EntityModel, subwords: SentenceSubwords, batch_tokens: int) -> Decoded:
    """The best tags of sentences; each word has the scores of the window in which it is most central."""
    windows = subwords.windows(model.max_tokens, model.overlap)
    words, scores = [np.zeros(0, np.int64)], [torch.zeros(0, len(model.labels), device=model.network.device)]
    lengths, batch = subwords.window_lengths(windows), partial(model.splitter.batch, subwords)
    for chosen, output in window_outputs(model.network, model.max_tokens, windows, lengths, batch, batch_tokens):
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
    """Yields the tags of blocks of `sentences`, in order, reading a block ahead.

    A sentence may be empty, or as long as a document.
    batch_tokens: most subwords in a batch, padding included; None lets the device choose.
    block_words: words that are computed together.
    """
    split_blocks = map(model.splitter, blocks(sentences, len, block_words))
    resolved = resolve_precision(precision, model.network.device)
    return compute_blocks(
        model.network, split_blocks, lambda subwords: len(subwords.ids), partial(decode, model), resolved, batch_tokens
    )


class EntityTagger:
    """Finds the entities of texts, sentence by sentence; a long sentence is read in overlapping windows."""

    def __init__(self, model: EntityModel) -> None:
        self.model = model

    @classmethod
    def load(
        cls,
        source: str | Path,
        device: str | torch.device | None = None,
        *,
        backend: BackendChoice = None,
        cache: Cache | None = None,
    ) -> Self:
        """The tagger of a model folder or hub id.

        device, backend: as in `SentenceEncoder.load`.
        Raises RequestError for a model that is missing, damaged, or does not tag entities.
        """
        check_backend(backend, device)
        target = as_device(device)
        model = load_model(source, cache, backend)
        model.network.to(target)
        return cls(model)

    @overload
    def __call__(self, texts: str, *, precision: str = ..., batch_tokens: int | None = ...) -> Document: ...

    @overload
    def __call__(
        self, texts: list[str] | tuple[str, ...], *, precision: str = ..., batch_tokens: int | None = ...
    ) -> list[Document]: ...

    @overload
    def __call__(
        self,
        texts: Iterator[str],
        *,
        batch_size: int | None = ...,
        precision: str = ...,
        batch_tokens: int | None = ...,
    ) -> Iterator[Document]: ...

    def __call__(
        self,
        texts: str | Iterable[str],
        *,
        batch_size: int | None = None,
        precision: str = "auto",
        batch_tokens: int | None = None,
    ) -> Document | list[Document] | Iterator[Document]:
        """The document of a text, a list for a list of texts, or a stream for an iterator; options as in `pipe`."""
        listed = [texts] if isinstance(texts, str) else texts
        documents = self.pipe(listed, batch_size=batch_size, precision=precision, batch_tokens=batch_tokens)
        if isinstance(texts, str):
            return next(documents)
        return documents if isinstance(texts, Iterator) else list(documents)

    def pipe(
        self,
        texts: Iterable[str],
        *,
        batch_size: int | None = None,
        precision: str = "auto",
        batch_tokens: int | None = None,
    ) -> Iterator[Document]:
        """Streams a document with entities for each of `texts`; ids count from 0.

        batch_size: texts that are computed together; None takes some thousand words of them.
        precision, batch_tokens: as in `tag_documents`.
        Raises RequestError if `texts` is one string, or has an item that is not text.
        """
        documents = (Document(str(number), text) for number, text in enumerate(iterate_texts(texts, "tag")))
        for block in in_batches(documents, batch_size):
            yield from self.tag_documents(block, precision=precision, batch_tokens=batch_tokens)

    def count_tokens(self, text: str) -> int:
        """The subwords that the network reads of a text, with special ones and the overlaps of windows."""
        model = self.model
        subwords = model.splitter(list(_words([Document("", text)], deque())))
        return int(subwords.window_lengths(subwords.windows(model.max_tokens, model.overlap)).sum())

    def tag_documents(
        self,
        documents: Iterable[Document],
        *,
        precision: str = "auto",
        batch_tokens: int | None = None,
        types: Collection[str] = (),
        min_confidence: float = 0.0,
        block_words: int = 16_384,
    ) -> Iterator[Document]:
        """Streams `documents` with the entities that the model finds in place of their own.

        Documents with tokens keep them; of others the words of each sentence are tagged.
        precision: of the computation; `auto` lets the device choose.
        batch_tokens: most subwords in a batch, padding included; None lets the device choose.
        types, min_confidence: of entities that are given, as in `TagOptions`.
        block_words: words that are sorted by the length of their sentences and computed together; memory holds the
            sentences of two such blocks and their documents.
        """
        reading: deque[_Sentence] = deque()  # filled by the thread that reads ahead, emptied here in the same order
        entities: list[Entity] = []
        for block in decoded_blocks(
            self.model,
            _words(documents, reading),
            precision=precision,
            batch_tokens=batch_tokens,
            block_words=block_words,
        ):
            confidences = iter(block.confidences(self.model.temperature).tolist())
            for spans in block.token_spans():
                document, tokens, is_last = reading.popleft()
                entities += [
                    Entity(tokens[start][0], tokens[end - 1][1], kind, confidence)
                    for (start, end, kind), confidence in zip(spans, confidences, strict=False)
                    if confidence >= min_confidence and (not types or kind in types)
                ]
                if is_last:
                    yield replace(document, entities=tuple(entities), relations=())
                    entities = []


class _Sentence(NamedTuple):
    """A sentence in work: its document and the spans of its words; an empty one ends every document."""

    document: Document
    tokens: Sequence[Span]
    is_last: bool = False


def _words(documents: Iterable[Document], reading: "deque[_Sentence]") -> Iterator[list[str]]:
    """Yields the words of every sentence; `reading` takes the sentence."""
    for document in documents:
        text = document.text
        sentences = document.sentences or (word_spans(text, start, end) for start, end in iterate_sentences(text))
        for tokens in sentences:
            reading.append(_Sentence(document, tokens))
            yield [text[start:end] for start, end in tokens]
        reading.append(_Sentence(document, (), is_last=True))
        yield []
