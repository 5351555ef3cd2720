"""Sentences, texts and documents of any number and length to their entities: streamed, nothing cut, memory bounded."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self, overload

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
from domain.text.sentences import each_sentence
from domain.text.windows import Floats, Integers, blocks, in_batches, ranges, window_outputs
from domain.text.words import word_spans

BLOCK_WORDS = 65_536
"""As many words are read, sorted and computed together; the unit of memory."""


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
        spans, ends = spans_of(self.tags, self.model.labels), np.cumsum(self.lengths)
        owners = np.searchsorted(ends, spans.starts, side="right")
        firsts = (ends - self.lengths)[owners]
        columns = (owners, spans.starts - firsts, spans.ends - firsts, spans.types)
        found: list[list[TokenSpan]] = [[] for _ in self.lengths]
        for owner, start, end, kind in zip(*(column.tolist() for column in columns), strict=True):
            found[owner].append(TokenSpan(start, end, self.model.labels.types[kind]))
        return found


def decode(model: EntityModel, subwords: SentenceSubwords, batch_tokens: int) -> Decoded:
    """The best tags of sentences; each word is scored in the window in which it is most central."""
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
    """The entities of blocks of `sentences`, in order; they are read as a stream, a block ahead.

    A sentence may be of any length, a whole document's words for example, and may be empty.
    batch_tokens: the most subwords in a batch, padding included; chosen by the device when not given.
    """
    cut = map(model.splitter, blocks(sentences, len, block_words))
    decoding = partial(decode, model)
    resolved = resolve_precision(precision, model.network.device)
    return compute_blocks(model.network, cut, lambda subwords: len(subwords.ids), decoding, resolved, batch_tokens)


# Texts and documents


class EntityTagger:
    """Finds the entities of texts. A text is read sentence by sentence, and a long sentence in overlapping windows."""

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

        device, backend: as of `SentenceEncoder.load`.
        Raises RequestError for what is not there, damaged, or no model that tags entities.
        """
        check_backend(backend, device)
        place = as_device(device)
        model = load_model(source, cache, backend)
        model.network.to(place)
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

    def pipe(self, texts: Iterable[str], *, batch_size: int | None = None, **options: Any) -> Iterator[Document]:
        """Streams a document with entities for each of `texts`; ids count from 0.

        batch_size: how many texts are computed together; some thousand words of them when not given.
        options: `precision` and `batch_tokens`, as of `tag_documents`.
        Raises RequestError when `texts` is one string, or has something that is none.
        """
        documents = (Document(str(number), text) for number, text in enumerate(iterate_texts(texts, "tag")))
        for block in in_batches(documents, batch_size):
            yield from self.tag_documents(block, **options)

    def tag_documents(
        self, documents: Iterable[Document], *, block_words: int = 16_384, **options: Any
    ) -> Iterator[Document]:
        """Streams `documents`, each with the entities that were found instead of those it had.

        Documents that came as tokens keep them; of others the words of each sentence are tagged.
        block_words: so many words are sorted by the length of their sentences and computed together; what is in memory
            are the sentences of two such blocks and the documents that they belong to.
        options: `precision` and `batch_tokens`, as of `decoded_blocks`.
        """
        reading: deque[_Sentence] = deque()  # filled by the thread that reads ahead, emptied here in the same order
        found: list[Entity] = []
        for block in decoded_blocks(self.model, _words(documents, reading), block_words=block_words, **options):
            confidences = iter(block.confidences(self.model.temperature).tolist())
            for spans in block.token_spans():
                document, tokens, is_last = reading.popleft()
                found += [
                    Entity(tokens[start][0], tokens[end - 1][1], kind, next(confidences)) for start, end, kind in spans
                ]
                if is_last:
                    yield replace(document, entities=tuple(found))
                    found = []


class _Sentence(NamedTuple):
    """A sentence on its way through the model, as the places of its words; one without any ends every document."""

    document: Document
    tokens: Sequence[Span]
    is_last: bool = False


def _words(documents: Iterable[Document], reading: "deque[_Sentence]") -> Iterator[list[str]]:
    """The words of every sentence; the sentence itself goes to `reading`."""
    for document in documents:
        text = document.text
        sentences = document.sentences or (word_spans(text, start, end) for start, end in each_sentence(text))
        for tokens in sentences:
            reading.append(_Sentence(document, tokens))
            yield [text[start:end] for start, end in tokens]
        reading.append(_Sentence(document, (), is_last=True))
        yield []
