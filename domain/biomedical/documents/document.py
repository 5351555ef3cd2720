"""Documents with entities and relations: the records of all formats, checks and tasks, and options of reading them.

Offsets count Python characters (Unicode code points) from 0; `end` is after the last one, so that
`document.text[entity.start : entity.end]` is the entity. The text is never changed, so offsets never shift.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertrelay.data.readers import line_rows
from bertrelay.data.tables import Record, Rejected, Table
from bertrelay.errors import RequestError
from bertrelay.privacy import is_sensitive
from bertrelay.settings import InputFile
from domain.reading import shown_id
from domain.text.sentences import sentence_spans
from domain.text.words import word_spans

Span = tuple[int, int]
"""Start and end, in characters."""


@dataclass(frozen=True, slots=True)
class Entity:
    """A mention in a text.

    confidence: the probability that a model gives to this span and type; None in annotated data.
    identifier: of the concept in a terminology, `MESH:D003643` for example, exactly as in the file; of a composite
        mention those of all its concepts. `identifiers` divides it.
    fragments: the spans of a discontinuous entity, in order, from `start` to `end`; empty for a contiguous one.
    database: the terminology, `MESH` for example, where a file names it apart from the identifier.
    parts: the names of the individual mentions of a composite one: `renal failure` and `hepatic failure` of `renal and
        hepatic failure`.
    identifier_score: the likeness of the mention to a name of the concept, as a linker gives it, from 0 to 1; None in
        annotated data.
    is_part: True for one of these that is an entity of its own, beside the composite mention.
    text: its characters, filled in by its document; fragments are joined by a space.
    """

    start: int
    end: int
    type: str
    confidence: float | None = None
    identifier: str | None = None
    fragments: tuple[Span, ...] = ()
    database: str | None = None
    parts: tuple[str, ...] = ()
    is_part: bool = False
    identifier_score: float | None = None
    text: str = field(default="", compare=False)

    @property
    def spans(self) -> tuple[Span, ...]:
        return self.fragments or ((self.start, self.end),)

    @property
    def identifiers(self) -> tuple[str, ...]:
        """The identifiers of all concepts of the mention; none if no concept of the terminology fits."""
        return split_identifiers(self.identifier or "")

    def in_text(self, text: str) -> "Entity":
        """The entity with the characters of `text` that it covers."""
        mention = " ".join(text[start:end] for start, end in self.spans)
        return self if mention == self.text else replace(self, text=mention)


NO_CONCEPT = ("", "-", "-1")
"""Identifiers of a mention without a concept, as PubTator, BioRED and BC5CDR write them."""
VARIANT = re.compile(r"[a-z]?\|.+")
"""The name of a variant as tmVar writes it, `p|SUB|V|1763|M`, `c|Allele|C|1188` or `|DEL|46|S`."""


def split_identifiers(identifier: str) -> tuple[str, ...]:
    """The identifiers in one text: `D1|D2`, `D1+D2`, `D1,D2` and `D1;D2` give two, a variant `p|SUB|V|1|M` one.

    White space around them, and what stands for no concept (`-`, `-1`), is left out.
    """
    names = list[str]()
    for name in re.split("[,;]", identifier):
        names += [name] if VARIANT.fullmatch(name.strip()) else re.split("[|+]", name)
    return tuple(name.strip() for name in names if name.strip() not in NO_CONCEPT)


class Argument(NamedTuple):
    """A mention or a concept that takes part in a relation.

    target: a mention by its position in `Document.entities`, from 0; or a concept by its identifier.
    role: `subject` and `object` for example; empty where a corpus names none.
    """

    target: int | str
    role: str = ""


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation between mentions, or between concepts of the whole document.

    arguments: in the order of the file. Different roles give it a direction; without roles it has none.
    novel: True for a finding of the document itself, False for what it reports as background; None if not annotated.
    confidence: the probability that a model gives to it; None in annotated data.
    """

    type: str
    arguments: tuple[Argument, ...]
    novel: bool | None = None
    confidence: float | None = None

    @property
    def mentions(self) -> tuple[int, ...]:
        """The positions of the entities that take part."""
        return tuple(argument.target for argument in self.arguments if isinstance(argument.target, int))


class Misplaced(NamedTuple):
    """An entity with wrong offsets: the reason, and file and line of its annotation."""

    entity: Entity
    reason: str
    file: str
    line: int


class Passage(NamedTuple):
    """A part of a document, `title` or `abstract` for example."""

    start: int
    end: int
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """A text with its entities and relations, in the order of the file; entities may overlap and be nested.

    sentences: spans of the tokens, sentence by sentence, of data with tokens; empty in other data.
    file, line: its place in a file; empty and 0 if it was not read from one.
    misplaced: annotations at wrong offsets, not among `entities`; only readers' documents have them.
    fields: further fields of JSONL, by name, as `Reading.keep` names them.
    """

    id: str
    text: str
    entities: tuple[Entity, ...] = ()
    passages: tuple[Passage, ...] = ()
    sentences: tuple[tuple[Span, ...], ...] = ()
    relations: tuple[Relation, ...] = ()
    file: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)
    misplaced: tuple[Misplaced, ...] = field(default=(), compare=False)
    fields: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "entities", tuple(entity.in_text(self.text) for entity in self.entities))

    def as_unusable(self) -> Rejected:
        """The reject of a document with misplaced entities."""
        first = self.misplaced[0]
        same = sum(entity.reason == first.reason for entity in self.misplaced)
        annotations = len(self.entities) + len(self.misplaced)
        offsets = f"the first at {first.entity.start:,} to {first.entity.end:,}"
        detail = f"{same:,} of {annotations:,} entities, {offsets}"
        return Rejected(first.reason, detail, file=first.file, line=first.line, record=shown_id(self.id))

    def to_spacy(self, nlp: Any = None) -> Any:
        """A spaCy `Doc`, tokenized by the pipeline `nlp`; None is a blank English one.

        `doc.ents` has the entities with their types as labels and their identifiers as knowledge base ids, widened to
        whole tokens; of overlapping ones the longest, and `doc.spans["entities"]` all.
        Raises RequestError if spaCy is not installed.
        """
        try:
            spacy, util = import_module("spacy"), import_module("spacy.util")
        except ImportError:
            raise RequestError("to_spacy needs spaCy, which is not installed; pip install spacy") from None
        doc = (nlp or spacy.blank("en")).make_doc(self.text)
        spans = [
            doc.char_span(one.start, one.end, one.type, kb_id=one.identifier or "", alignment_mode="expand")
            for one in self.entities
        ]
        doc.spans["entities"] = spans
        doc.ents = util.filter_spans(spans)
        return doc


def sentences_of(document: Document) -> list[list[Span]]:
    """The words of each sentence of a text, as spans. Sentences with an entity over their border become one."""
    spans = sorted((entity.start, entity.end) for entity in document.entities)
    reach = [0, *accumulate((end for _, end in spans), max)]  # the last end of the first n spans
    borders: list[Span] = []
    for start, end in sentence_spans(document.text):
        if borders and reach[bisect_left(spans, (start, 0))] > start:
            start = borders.pop()[0]
        borders.append((start, end))
    return [words for start, end in borders if (words := word_spans(document.text, start, end))]


RepeatedIds = Literal["error", "passages"]


class Reading(NamedTuple):
    """Options of reading documents.

    only_text: skip annotations, valid or not, as tagging does.
    misplaced: for a document with entities at wrong offsets, `reject` makes it unusable, `drop` leaves out these
        entities, `keep` lists them in `Document.misplaced`.
    keep: names of further fields of JSONL that documents keep; one that a line lacks is None.
    repeated_ids: what a second document of PubTator with the id of the one before it is: `error`, or the next of its
        `passages`, as full texts are written.
    """

    only_text: bool = False
    misplaced: Literal["reject", "drop", "keep"] = "reject"
    keep: tuple[str, ...] = ()
    repeated_ids: RepeatedIds = "error"


ANNOTATED, TEXT_ONLY = Reading(), Reading(only_text=True)
LEFT_OUT = "only entities at their places and their relations are read; left out"

NAME_FORMAT = (
    "If it is of another format, name that: `ner tag --input-format`, `data check --format`, `format` in a recipe."
)


Item = Document | Rejected
"""One record of a format's reader."""


def with_placed_entities(items: Iterable[Item], reading: Reading) -> Iterator[Item]:
    """Yields the items, with misplaced entities treated as `reading` says."""
    for item in items:
        if not isinstance(item, Document) or not item.misplaced or reading.misplaced == "keep":
            yield item
        elif reading.misplaced == "reject":
            yield item.as_unusable()
        else:
            yield from (Rejected(entity.reason, is_fault=False) for entity in item.misplaced)
            yield replace(item, misplaced=())


def file_in(folder: Path, number: int, file: Path) -> str:
    """The name of a file of a folder in errors and rejects; sensitive files, whose names may be ids, have a number."""
    return f"{folder}, document {number:,}" if file != folder and is_sensitive() else str(file)


def numbered_lines(path: Path) -> Iterator[Record | Rejected]:
    r"""The lines of a text file, unpacked if it is gzip; only \n and \r\n end a line."""
    return line_rows(Table(path=InputFile.parse(str(path)), format="lines"), [0])
