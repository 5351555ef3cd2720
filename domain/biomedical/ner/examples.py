"""Annotated files to sentences of tokens with tags, for training and for scoring; no gold entity is lost on the way."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bertrelay.data.records import Rejects
from bertrelay.data.tables import Unusable
from bertrelay.errors import RequestError
from bertrelay.progress import log
from domain.biomedical.documents import format_of, read_documents
from domain.biomedical.documents.conll import (
    CONLL,
    Columns,
    TaggedSentence,
    legal,
    refuse_columns,
    scheme_of,
    sentence_rows,
)
from domain.biomedical.documents.document import Document, Entity, Span, refuse
from domain.biomedical.documents.tokens import (
    OUTSIDE,
    READ_AS,
    FileScheme,
    TokenSpan,
    converted,
    sentences_of,
    split_tag,
    tags_of,
    types_of,
)
from domain.biomedical.ner.settings import EntitySource


class Example(NamedTuple):
    """A sentence's tokens and their IOB2 tags.

    document: the sentences of a document have the same; a number for each sentence where a file knows no documents.
    untaggable: the types of gold entities that tags cannot represent: nested, discontinuous, of white space, or ending
        inside a word. A score counts them as missed, and training cannot use them.
    """

    tokens: tuple[str, ...]
    tags: tuple[str, ...]
    document: str
    untaggable: tuple[str, ...] = ()


def read_examples(
    sources: Sequence[EntitySource], rejects: Rejects | None = None, only_legal: bool = True
) -> list[Example]:
    """The sentences of all `sources`.

    rejects: counts sentences of CoNLL, and documents of other formats, which are used or rejected as a whole; without
        it the first one that cannot be used raises RequestError.
    only_legal: whether an illegal tag sequence cannot be used; a score reads it as seqeval does.
    Raises RequestError where no sentence is left.
    """
    found = [example for source in sources for example in _read(source, rejects, only_legal)]
    if not found:
        if rejects is not None:
            rejects.check()  # which knows what is wrong with them
        files = ", ".join(str(source.path) for source in sources)
        raise RequestError(f"{files}: expected sentences with tags, found none that can be used")
    return found


def _read(source: EntitySource, rejects: Rejects | None, only_legal: bool) -> Iterator[Example]:
    name, columns = source.format or format_of(source.path), Columns(*source.columns)
    if name in CONLL:
        file_scheme: FileScheme = "IOBES" if name == "conll-iobes" else scheme_of(source.path, columns)
        yield from _sentences(source, file_scheme, columns, rejects, only_legal)
        return
    refuse_columns(source.path, columns)
    untaggable: Counter[str] = Counter()
    for document in read_documents(source.path, name, rejects):
        for example in of_document(document):
            untaggable.update(example.untaggable)
            yield example._replace(document=f"{source.path} {document.id}")
    if untaggable:
        kinds = ", ".join(f"{count:,} × {name}" for name, count in untaggable.most_common())
        log(f"{source.path}: entities that tags cannot represent (nested, discontinuous, or ending in a word): {kinds}")


def _sentences(
    source: EntitySource, file_scheme: FileScheme, columns: Columns, rejects: Rejects | None, only_legal: bool
) -> Iterator[Example]:
    scheme = READ_AS[file_scheme]
    for row in sentence_rows(source.path, file_scheme, columns):
        must_be_legal = only_legal or scheme == "IOBES"
        judged = legal(row, scheme) if must_be_legal and isinstance(row, TaggedSentence) else row
        if isinstance(judged, TaggedSentence):
            tags = tuple(converted(judged.tags, "IOBES", "IOB2")) if scheme == "IOBES" else judged.tags
            unit = f"document {judged.document}" if judged.document else f"line {judged.line}"
            yield Example(judged.tokens, tags, f"{source.path} {unit}")
            if rejects is not None:
                rejects.used()
        elif isinstance(judged, Unusable):
            refuse(judged, rejects)


def of_document(document: Document) -> Iterator[Example]:
    """The sentences of a document: its own tokens, else the words of its sentences.

    An entity over two sentences makes them one. Entities behind the last word belong to the last sentence, which has no
    words where the whole document has none.
    """
    left = deque(sorted(document.entities, key=lambda entity: (entity.start, -entity.end)))
    sentences: Sequence[Sequence[Span]] = document.sentences or sentences_of(document)
    if left and not sentences:
        sentences = [()]
    for number, words in enumerate(sentences, 1):
        is_last, entities = number == len(sentences), list[Entity]()
        while left and (is_last or (words and left[0].start < words[-1][1])):
            entities.append(left.popleft())
        yield _example(document, words, entities)


def _example(document: Document, words: Sequence[Span], entities: Sequence[Entity]) -> Example:
    """A sentence with its entities, which come in the order of their starts, the longer one first."""
    spans: list[TokenSpan] = []
    untaggable: list[str] = []
    starts = {word[0]: place for place, word in enumerate(words)}
    ends = {word[1]: place + 1 for place, word in enumerate(words)}
    for entity in entities:
        start, end = starts.get(entity.start), ends.get(entity.end)
        is_free = not spans or (start is not None and start >= spans[-1].end)
        if start is not None and end is not None and is_free and not entity.fragments:
            spans.append(TokenSpan(start, end, entity.type))
        else:
            untaggable.append(entity.type)
    tokens = tuple(document.text[start:end] for start, end in words)
    return Example(tokens, tuple(tags_of(spans, len(words))), document.id, tuple(untaggable))


def types_in(examples: Sequence[Example]) -> list[str]:
    """The types of entities that occur, sorted."""
    return sorted({kind for each in examples for kind in (*types_of(each.tags), *each.untaggable)})


def of_types(examples: Sequence[Example], types: Sequence[str]) -> list[Example]:
    """The same sentences with entities of `types` alone; all as they are where `types` is empty."""
    if not types:
        return list(examples)
    return [
        each._replace(
            tags=tuple(tag if split_tag(tag)[1] in types else OUTSIDE for tag in each.tags),
            untaggable=tuple(kind for kind in each.untaggable if kind in types),
        )
        for each in examples
    ]
