"""Raw texts of any number and length to their entities, with offsets that count in the text as it was given."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

import torch

from bertrelay.data.texts import texts_of
from bertrelay.hardware import as_device
from domain.biomedical.annotations import Document, Entity, Span
from domain.biomedical.entities.network import EntityModel, load_model
from domain.biomedical.entities.prediction import WordSpan, find_entities
from domain.biomedical.words import word_spans
from domain.sentences import each_sentence

BLOCK_WORDS = 16_384
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

    def tag(self, texts: Iterable[str], *, precision: str = "auto", batch_tokens: int | None = None) -> list[Document]:
        """A document for each of `texts`, in their order, with its entities; ids count from 0.

        batch_tokens: the most pieces in a batch, padding included; chosen by the device when not given.
        Raises RequestError when `texts` is one string, or holds something that is none.
        """
        documents = [Document(str(place), text) for place, text in enumerate(texts_of(texts, "tag"))]
        return list(self.tag_documents(documents, precision=precision, batch_tokens=batch_tokens))

    def tag_documents(
        self,
        documents: Iterable[Document],
        *,
        precision: str = "auto",
        batch_tokens: int | None = None,
        block_words: int = BLOCK_WORDS,
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
