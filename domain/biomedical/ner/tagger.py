"""Texts and documents of any number and length to their entities: streamed, nothing cut, memory bounded."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self, overload

import torch

from bertrelay.graphs import BackendChoice, check_backend
from bertrelay.hardware import as_device
from bertrelay.texts import each_text
from domain.biomedical.documents.document import Document, Entity, Span
from domain.biomedical.documents.tokens import word_spans
from domain.biomedical.ner.inference import decoded_blocks
from domain.biomedical.ner.model import EntityModel, load_model
from domain.biomedical.windows import in_batches
from domain.sentences import each_sentence


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
        cache_dir: Path | None = None,
    ) -> Self:
        """The tagger of a model folder or hub id.

        device, backend: as of `SentenceEncoder.load`.
        Raises RequestError for what is not there, damaged, or no model that tags entities.
        """
        check_backend(backend, device)
        place = as_device(device)
        model = load_model(source, cache_dir, backend)
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
        documents = (Document(str(place), text) for place, text in enumerate(each_text(texts, "tag")))
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
            for spans in block.by_sentence():
                document, tokens, is_last = reading.popleft()
                found += [Entity(tokens[each.start][0], tokens[each.end - 1][1], *each[2:]) for each in spans]
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
