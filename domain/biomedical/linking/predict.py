"""Identifiers of the entities of documents, by a linker."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

from bertrelay.blocks import blocks_of
from domain.biomedical.documents.document import Document
from domain.biomedical.linking.data import Mention, mentions_of
from domain.biomedical.linking.model import Candidate, Linker, Nearest

DOCUMENTS_AT_ONCE = 256
SEPARATOR = "|"
"""Between the identifiers of a composite mention, as PubTator has them."""


class Link(NamedTuple):
    """The concepts of a mention.

    parts: the ranked concepts of the whole mention, or of each part of a composite one. score: of the first concept of
    the part with the least one; 0 without a concept.
    """

    parts: list[list[Candidate]]
    score: float


class LinkCandidates(NamedTuple):
    """The names of mentions, each once, and the dictionary's names nearest to them."""

    mentions: Sequence[Mention]
    nearest: Nearest


def candidates_of(
    linker: Linker, mentions: Sequence[Mention], precision: str = "auto", batch_tokens: int | None = None
) -> LinkCandidates:
    """Looks up the names of mentions; a name that several have is encoded once."""
    names = list(dict.fromkeys(name for mention in mentions for name in mention.names))
    return LinkCandidates(mentions, linker.nearest(names, precision, batch_tokens))


def links_of(linker: Linker, candidates: LinkCandidates, letters: float | None = None) -> list[Link]:
    """The link of each mention; letters: share of a score, the linker's own when None.

    A composite mention is read as its parts where each of them is nearer to a name than the whole is.
    """
    ranked = dict(zip(candidates.nearest.names, linker.rank(candidates.nearest, letters), strict=True))
    return [_link(mention, ranked) for mention in candidates.mentions]


def _link(mention: Mention, ranked: dict[str, list[Candidate]]) -> Link:
    readings = [[ranked[name] for name in names] for names in ((mention.name,), *mention.readings) if names]
    links = [Link(parts, min((part[0].score if part else 0.0) for part in parts)) for parts in readings]
    return max(links, key=lambda link: link.score)  # of equal ones the whole mention, which is first


class EntityLinker:
    """Gives the entities of documents the identifiers of their concepts."""

    def __init__(self, linker: Linker) -> None:
        self.linker = linker

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The linker of a folder. Raises RequestError for one that is missing, damaged, or holds none."""
        return cls(Linker.load(folder))

    def link_documents(
        self,
        documents: Iterable[Document],
        *,
        types: Sequence[str] = (),
        precision: str = "auto",
        batch_tokens: int | None = None,
    ) -> Iterator[Document]:
        """Streams `documents`; their entities have identifiers and scores in place of their own.

        An abbreviation is looked up by the long form that its document defines. A composite mention has the identifiers
        of all its parts, between bars. One whose score is below the linker's threshold has none.
        types: of entities to link; others keep their identifiers. All when empty.
        precision, batch_tokens: of the vectors, as in `SentenceEncoder.encode`.
        """
        for block in blocks_of(iter(documents), DOCUMENTS_AT_ONCE):
            mentions = [mention for document in block for mention in mentions_of(document, types)]
            links = iter(links_of(self.linker, candidates_of(self.linker, mentions, precision, batch_tokens)))
            yield from (self._linked(document, types, links) for document in block)

    def _linked(self, document: Document, types: Sequence[str], links: Iterator[Link]) -> Document:
        entities = list(document.entities)
        for position, entity in enumerate(entities):
            if not types or entity.type in types:
                link = next(links)
                identifier = SEPARATOR.join(self.identifiers(link)) or None
                entities[position] = replace(entity, identifier=identifier, identifier_score=link.score)
        return replace(document, entities=tuple(entities))

    def identifiers(self, link: Link) -> list[str]:
        """The identifier of the best concept of each part; none below the threshold."""
        if not link.parts or link.score < self.linker.threshold or not all(link.parts):
            return []
        concepts = dict.fromkeys(part[0].concept for part in link.parts)
        return [self.linker.dictionary.identifiers[concept][0] for concept in concepts]
