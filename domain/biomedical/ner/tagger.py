"""Sentences of words to emissions and entities, of any number and length: streamed, nothing cut, memory bounded."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray

from bertrelay.cpu_kernels import Packed, using
from bertrelay.data.sentences import each_text, texts_of
from bertrelay.errors import check_count
from bertrelay.hardware import as_device, release_memory, resolve_precision
from bertrelay.inference import best_batch_tokens, computing, pack_for, sorted_batches
from domain.biomedical.documents.document import Document, Entity, Span
from domain.biomedical.documents.tokens import TokenSpan, word_spans
from domain.biomedical.ner.decoding import EntitySpans, span_probabilities, spans_of, viterbi
from domain.biomedical.ner.model import (
    SPECIALS,
    EntityModel,
    SentenceSubwords,
    Words,
    WordSplitter,
    load_model,
    owned_words,
)
from domain.biomedical.windows import Windows, blocks, one_ahead, ranges
from domain.sentences import each_sentence

BLOCK_WORDS = 65_536
"""As many words are read, sorted and computed together; the unit of memory."""


class WordSpan(NamedTuple):
    """An entity as words [start, end) of its sentence, with the probability of exactly this span and type."""

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
    batch_tokens: the most subwords in a batch, padding included; chosen by the device when not given.
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
    spans: EntitySpans

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
    precision, splitter = resolve_precision(precision, model.network.device), model.make_splitter()
    batch_tokens = best_batch_tokens(model.network.device, batch_tokens)
    cut = ((block, splitter(block)) for block in blocks(sentences, len, block_words))
    packed: Packed = {}
    for block, subwords in one_ahead(cut):
        packed = packed or pack_for(len(subwords.ids), model.network.backbone, precision, batch_tokens)
        yield block, emissions_of(model, subwords, splitter, precision, batch_tokens, packed)
        release_memory()


def emissions_of(
    model: EntityModel,
    subwords: SentenceSubwords,
    splitter: WordSplitter,
    precision: str,
    batch_tokens: int,
    packed: Packed,
) -> NDArray[np.float32]:
    """The scores of every word's tags, (words, tags): each from the window in which the word is most central."""
    network = model.network
    windows = subwords.windows(model.max_tokens, model.overlap)
    parts: list[torch.Tensor] = []
    order = [np.zeros(0, np.int64)]
    with computing(network, precision), using(packed):
        for rows, width, height in sorted_batches(windows.lengths + SPECIALS, batch_tokens, model.max_tokens):
            batch = splitter.batch(subwords, windows.chosen(rows), width, height)
            parts.append(network(**{name: tensor.to(network.device) for name, tensor in batch.items()}))
            order.append(rows)
    return _in_order(parts, subwords, windows.chosen(np.concatenate(order)), len(model.labels))


def _in_order(
    parts: Sequence[torch.Tensor], subwords: SentenceSubwords, windows: Windows, tags: int
) -> NDArray[np.float32]:
    """What was computed window by window, in the order of the words."""
    emissions = np.empty((len(subwords.firsts), tags), np.float32)
    if parts:
        emissions[ranges(*owned_words(subwords, windows))] = torch.cat(list(parts)).float().cpu().numpy()
    return emissions


TAG_BLOCK_WORDS = 16_384
"""So many words are sorted by the length of their sentences and computed together, and as many are read ahead."""


class EntityTagger:
    """Finds the entities of texts. A text is read sentence by sentence, and a long sentence in overlapping windows."""

    def __init__(self, model: EntityModel) -> None:
        self.model = model

    @classmethod
    def load(
        cls, source: str | Path, device: str | torch.device | None = None, *, cache_dir: Path | None = None
    ) -> Self:
        """The tagger of a model folder or hub id.

        device: as of `SentenceEncoder.load`.
        Raises RequestError for what is not there, damaged, or no model that tags entities.
        """
        device = as_device(device)
        model = load_model(source, cache_dir)
        model.network.to(device)
        return cls(model)

    @overload
    def __call__(self, texts: str, **options: Any) -> Document: ...

    @overload
    def __call__(self, texts: list[str] | tuple[str, ...], **options: Any) -> list[Document]: ...

    @overload
    def __call__(self, texts: Iterator[str], **options: Any) -> Iterator[Document]: ...

    def __call__(self, texts: str | Iterable[str], **options: Any) -> Document | list[Document] | Iterator[Document]:
        """The document of a text, the list of those of a list, and of an iterator a stream of them.

        options: of `pipe`.
        """
        if isinstance(texts, str):
            return next(self.pipe([texts], **options))
        return self.pipe(texts, **options) if isinstance(texts, Iterator) else list(self.pipe(texts, **options))

    def pipe(
        self,
        texts: Iterable[str],
        *,
        batch_size: int | None = None,
        precision: str = "auto",
        batch_tokens: int | None = None,
    ) -> Iterator[Document]:
        """Streams a document with entities for each of `texts`; ids count from 0.

        batch_size: how many texts are computed together; some thousand words of them when not given.
        batch_tokens: the most subwords in a batch, padding included; chosen by the device when not given.
        Raises RequestError when `texts` is one string, or holds something that is none.
        """
        check_count("batch_size", batch_size)
        documents = (Document(str(place), text) for place, text in enumerate(each_text(texts, "tag")))
        blocks = iter([documents]) if batch_size is None else iter(lambda: list(islice(documents, batch_size)), [])
        for block in blocks:
            yield from self.tag_documents(block, precision=precision, batch_tokens=batch_tokens)

    def tag(self, texts: Iterable[str], *, precision: str = "auto", batch_tokens: int | None = None) -> list[Document]:
        """The documents of `pipe` as a list; every text is checked before the first one is tagged."""
        return list(self.pipe(texts_of(texts, "tag"), precision=precision, batch_tokens=batch_tokens))

    def tag_documents(
        self,
        documents: Iterable[Document],
        *,
        precision: str = "auto",
        batch_tokens: int | None = None,
        block_words: int = TAG_BLOCK_WORDS,
    ) -> Iterator[Document]:
        """Streams `documents`, each with the entities that were found instead of those it had.

        Documents that came as tokens keep them; of others the words of each sentence are tagged. What is in memory
        are the sentences of two blocks of `block_words` and the documents that they belong to.
        """
        reading: deque[_Sentence] = deque()  # filled by the thread that reads ahead, emptied here in the same order
        found: list[Entity] = []
        tagged = find_entities(
            self.model,
            _words(documents, reading),
            precision=precision,
            batch_tokens=batch_tokens,
            block_words=block_words,
        )
        for spans in tagged:
            sentence = reading.popleft()
            found += [_entity(sentence.tokens, span) for span in spans]
            if sentence.is_last:
                yield replace(sentence.document, entities=tuple(found))
                found = []


class _Sentence(NamedTuple):
    """A sentence on its way through the model, as the places of its words; one without any ends every document."""

    document: Document
    tokens: Sequence[Span]
    is_last: bool = False


def _words(documents: Iterable[Document], reading: "deque[_Sentence]") -> Iterator[list[str]]:
    """The words of every sentence; the sentence itself goes to `reading`."""
    for document in documents:
        for tokens in _sentences(document):
            reading.append(_Sentence(document, tokens))
            yield [document.text[start:end] for start, end in tokens]
        reading.append(_Sentence(document, (), is_last=True))
        yield []


def _sentences(document: Document) -> Iterator[Sequence[Span]]:
    if document.sentences:
        yield from document.sentences
    else:
        for start, end in each_sentence(document.text):
            yield word_spans(document.text, start, end)


def _entity(tokens: Sequence[Span], found: WordSpan) -> Entity:
    return Entity(tokens[found.start][0], tokens[found.end - 1][1], found.type, found.confidence)
