"""JSONL: a document in each line, `{"id", "text", "entities": [{"start", "end", "type", "text", "confidence"}]}`.

It holds all of a document; `identifier`, `identifier_score`, `database`, `fragments` (of a discontinuous entity),
`parts` and `is_part` of an entity are optional, and so are `passages`, `sentences` and `relations` of a document:
`{"type", "arguments": [{"entity": 0, "role"}, {"concept": "D1"}], "novel", "confidence"}`. Other keys are ignored, or
kept on request, and so are relations of another shape. A document without `entities` that has spans under another key
is unusable. Without `id` its line number is its id.

Raw text is read here too: a file or a folder of `.txt` files, each a document; or a document in each line.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from bertrelay.data.tables import Record, Rejected
from domain.biomedical.documents.brat import brat_files, name_of
from domain.biomedical.documents.document import (
    ANNOTATED,
    Argument,
    Document,
    Entity,
    Item,
    Passage,
    Reading,
    Relation,
    Span,
    file_in,
    numbered_lines,
)
from domain.biomedical.documents.json_stream import Shape, json_value, parsed, refuse_spans
from domain.biomedical.documents.soundness import Annotation, Placed, check_document, joined, placed, whole_text
from domain.biomedical.documents.writing import Writer

LOST_RELATION = "a relation of another shape, or without one of its entities"
SHAPE = '"entities": [{"start", "end", "type"}]'


class _JsonEntity(Shape):
    start: int
    end: int
    type: str
    text: str | None = None
    confidence: float | None = Field(default=None, ge=0, le=1)
    identifier: str | None = None
    fragments: tuple[Span, ...] | None = None
    database: str | None = None
    parts: tuple[str, ...] | None = None
    is_part: bool = False
    identifier_score: float | None = Field(default=None, ge=0, le=1)

    def entity(self) -> Entity:
        start, end, fragments = joined(self.fragments or [(self.start, self.end)])
        if (start, end) != (self.start, self.end):
            fragments = self.fragments or ()  # check_document refuses these
        return Entity(
            self.start,
            self.end,
            self.type,
            self.confidence,
            self.identifier,
            fragments,
            self.database,
            self.parts or (),
            self.is_part,
            self.identifier_score,
        )


class _JsonArgument(Shape):
    entity: int | None = None
    concept: str | None = None
    role: str = ""

    def argument(self) -> Argument:
        """The argument; one of an entity that cannot be, -1, if the object names neither or both."""
        if (self.entity is None) == (self.concept is None):
            return Argument(-1)
        return Argument(self.concept or "" if self.entity is None else self.entity, self.role)


class _JsonRelation(Shape):
    type: str
    arguments: tuple[_JsonArgument, ...]
    novel: bool | None = None
    confidence: float | None = Field(default=None, ge=0, le=1)

    def relation(self) -> Relation:
        arguments = tuple(argument.argument() for argument in self.arguments)
        return Relation(self.type, arguments, self.novel, self.confidence)


class _JsonText(Shape):
    """A document without its entities."""

    id: str | int | None = None
    text: str
    passages: tuple[Passage, ...] | None = None
    sentences: tuple[tuple[Span, ...], ...] | None = None


class _JsonDocument(_JsonText):
    model_config = ConfigDict(extra="allow")

    entities: tuple[_JsonEntity, ...] | None = None


def read(path: Path, reading: Reading = ANNOTATED) -> Iterator[Item]:
    """Streams the documents of a file, one in each line that is not blank."""
    for row in numbered_lines(path):
        if isinstance(row, Rejected):
            yield row
        elif row.values[0].strip():
            try:
                document, lost = _document(row, reading.only_text)
                yield from [Rejected(LOST_RELATION, is_fault=False)] * lost
                yield replace(document, fields=_fields(row, reading.keep)) if reading.keep else document
            except Rejected as fault:
                yield fault.at(row.file, row.line)


def _document(row: Record, only_text: bool) -> tuple[Document, int]:
    """The document in a line, and the number of relations left out. Raises Rejected for an invalid document."""
    value = parsed(_JsonText if only_text else _JsonDocument, row.values[0])
    content, lost = Placed((), (), ()), 0
    if isinstance(value, _JsonDocument):
        if value.entities is None:
            refuse_spans(value, SHAPE)
        annotations = [Annotation(entity.entity(), entity.text, row.file, row.line) for entity in value.entities or ()]
        values = (value.model_extra or {}).get("relations") or []
        relations = [
            relation for relation in map(_relation, values if isinstance(values, list) else [values]) if relation
        ]
        content = placed(value.text, annotations, relations)
        lost = (len(values) if isinstance(values, list) else 1) - len(content.relations)
    document = Document(
        str(row.line if value.id is None else value.id),
        value.text,
        content.entities,
        value.passages or (),
        value.sentences or (),
        content.relations,
        row.file,
        row.line,
        content.misplaced,
    )
    check_document(document)
    return document, lost


def _relation(value: object) -> Relation | None:
    """The relation in a JSON value; None for one of another shape, as that of another tool."""
    try:
        relation = parsed(_JsonRelation, json.dumps(value)).relation()
    except Rejected:
        return None
    names = [relation.type, *(target for target, _ in relation.arguments)]
    return None if "" in names or len(relation.arguments) < 2 else relation


def _fields(row: Record, names: Sequence[str]) -> dict[str, Any]:
    value = json_value(row.values[0])
    return {name: value.get(name) for name in names}


def read_text_files(path: Path, _: Reading = ANNOTATED) -> Iterator[Item]:
    """Streams a document for each file, named after it, with its line ends."""
    files = [kinds["txt"] for kinds in brat_files(path).values() if "txt" in kinds] if path.is_dir() else [path]
    for number, file in enumerate(files, 1):
        shown = file_in(path, number, file)
        try:
            yield Document(name_of(file), whole_text(file), file=shown, line=1)
        except Rejected as fault:
            yield fault.at(shown, 1)


def read_text_lines(path: Path, _: Reading = ANNOTATED) -> Iterator[Item]:
    """Streams a document for each line that is not blank, named by its number."""
    for row in numbered_lines(path):
        if isinstance(row, Rejected):
            yield row
        elif row.values[0].strip():
            yield Document(str(row.line), row.values[0], file=row.file, line=row.line)


DOCUMENT_KEYS = ("id", "text", "entities", "passages", "sentences")
ENTITY_KEYS = (
    *("start", "end", "type", "text", "confidence", "identifier"),
    *("fragments", "database", "parts", "is_part", "identifier_score"),
)


def jsonl_line(document: Document) -> str:
    """The line of a document with everything in it, and the line break."""
    value: dict[str, Any] = {"id": document.id, "text": document.text}
    value["entities"] = [
        {key: field for key in ENTITY_KEYS if (field := getattr(entity, key)) not in (None, ()) and field is not False}
        for entity in document.entities
    ]
    if document.relations:
        value["relations"] = [json_relation(relation) for relation in document.relations]
    if document.passages:
        value["passages"] = [passage._asdict() for passage in document.passages]
    if document.sentences:
        value["sentences"] = document.sentences
    value.update(document.fields)
    return json.dumps(value, ensure_ascii=False) + "\n"


def json_relation(relation: Relation) -> dict[str, Any]:
    """A relation as the lines of documents have it."""
    arguments = []
    for target, role in relation.arguments:
        argument = {"entity" if isinstance(target, int) else "concept": target, "role": role}
        arguments.append({key: field for key, field in argument.items() if field != ""})
    value = {"type": relation.type, "arguments": arguments, "novel": relation.novel, "confidence": relation.confidence}
    return {key: field for key, field in value.items() if field is not None}


WRITER = Writer(jsonl_line)
