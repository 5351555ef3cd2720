"""Mentions of annotated documents with their identifiers, and the names that each is looked up by."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from domain.biomedical.documents.document import Document
from domain.biomedical.documents.formats import AnnotatedSource, read_sources
from domain.biomedical.linking.abbreviations import abbreviations
from domain.biomedical.linking.dictionary import Concept, without_prefix
from domain.biomedical.linking.names import normalized, readings_of


class Mention(NamedTuple):
    """An entity of a document, as it is looked up.

    text: as the document has it. name: normalized, with abbreviations that the document defines written out.
    readings: the lists of normalized names that a composite mention may stand for.
    identifiers: of all its concepts, without ignored prefixes; empty for a mention without a concept.
    document: id of the document.
    """

    text: str
    name: str
    readings: tuple[tuple[str, ...], ...]
    identifiers: frozenset[str] = frozenset()
    document: str = ""

    @property
    def names(self) -> Iterator[str]:
        """All names that are looked up."""
        yield self.name
        for reading in self.readings:
            yield from reading


def mentions_of(
    document: Document, types: Collection[str] = (), ignored_prefixes: Sequence[str] = ()
) -> Iterator[Mention]:
    """Yields the entities of a document as mentions; types: of entities that count, all when empty."""
    long_forms = abbreviations(document.text)
    for entity in document.entities:
        if not types or entity.type in types:
            written_out = expanded(entity.text, long_forms)
            readings = (tuple(filter(None, map(normalized, reading))) for reading in readings_of(written_out))
            identifiers = frozenset(without_prefix(one, ignored_prefixes) for one in entity.identifiers)
            yield Mention(entity.text, normalized(written_out), tuple(readings), identifiers, document.id)


def expanded(mention: str, long_forms: dict[str, str]) -> str:
    """The mention with long forms in place of the abbreviations that are words of it.

    With `A-T` for `ataxia-telangiectasia`, `A-T patients` becomes `ataxia-telangiectasia patients`.
    """
    if mention in long_forms:
        return long_forms[mention]
    return " ".join(long_forms.get(word, word) for word in mention.split())


def read_mentions(
    sources: Sequence[AnnotatedSource],
    types: Collection[str],
    ignored_prefixes: Sequence[str],
    rejects: Rejects | None = None,
) -> list[Mention]:
    """The mentions of annotated files."""
    documents = read_sources(sources, rejects)
    return [mention for document in documents for mention in mentions_of(document, types, ignored_prefixes)]


def check_identifiers(mentions: Iterable[Mention], key: str) -> None:
    """Raises RequestError if no mention has an identifier, so that nothing could be measured; key: of the files."""
    if not any(mention.identifiers for mention in mentions):
        raise RequestError(f"{key}: expected entities with identifiers, found none. Check the files and `types`.")


def concepts_of(mentions: Iterable[Mention]) -> Iterator[Concept]:
    """Yields a concept of each mention that has one identifier, whose name is the mention's text."""
    for mention in mentions:
        if len(mention.identifiers) == 1:
            yield Concept(tuple(mention.identifiers), (mention.name,))
