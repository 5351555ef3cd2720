"""JSONL: a document in each line, `{"id", "text", "entities": [{"start", "end", "type", "text", "confidence"}]}`.

It holds all of a document; `identifier`, `fragments` (of a discontinuous entity), `passages` and `sentences` are
optional. Other keys are ignored, or kept on request. A document without `entities` that has spans under another key is
unusable. Without `id` its line number is its id.

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
    Document,
    Entity,
    Item,
    Misplaced,
    Passage,
    Reading,
    Span,
    file_in,
    numbered_lines,
)
from domain.biomedical.documents.json_stream import Shape, json_value, parsed, refuse_spans
from domain.biomedical.documents.soundness import Annotation, check_document, joined, placed, whole_text
from domain.biomedical.documents.writing import Writer

SHAPE = '"entities": [{"start", "end", "type"}]'


class _JsonEntity(Shape):
    start: int
    end: int
    type: str
    text: str | None = None
    confidence: float | None = Field(default=None, ge=0, le=1)
    identifier: str | None = None
    fragments: tuple[Span, ...] | None = None

    def entity(self) -> Entity:
        start, end, fragments = joined(self.fragments or [(self.start, self.end)])
        if (start, end) != (self.start, self.end):
            fragments = self.fragments or ()  # check_document refuses these
        return Entity(self.start, self.end, self.type, self.confidence, self.identifier, fragments)


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
                document = _document(row, reading.only_text)
                yield replace(document, fields=_fields(row, reading.keep)) if reading.keep else document
            except Rejected as fault:
                yield fault.at(row.file, row.line)


def _document(row: Record, only_text: bool) -> Document:
    """The document in a line. Raises Rejected for an invalid one."""
    value = parsed(_JsonText if only_text else _JsonDocument, row.values[0])
    entities, misplaced = tuple[Entity, ...](), tuple[Misplaced, ...]()
    if isinstance(value, _JsonDocument):
        if value.entities is None:
            refuse_spans(value, SHAPE)
        annotations = [Annotation(entity.entity(), entity.text, row.file, row.line) for entity in value.entities or ()]
        entities, misplaced = placed(value.text, annotations)
    document = Document(
        str(row.line if value.id is None else value.id),
        value.text,
        entities,
        value.passages or (),
        value.sentences or (),
        row.file,
        row.line,
        misplaced,
    )
    check_document(document)
    return document


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
ENTITY_KEYS = ("start", "end", "type", "text", "confidence", "identifier", "fragments")


def jsonl_line(document: Document) -> str:
    """The line of a document with everything in it, and the line break."""
    value: dict[str, Any] = {"id": document.id, "text": document.text}
    value["entities"] = [
        {key: field for key in ENTITY_KEYS if (field := getattr(entity, key)) not in (None, ())}
        for entity in document.entities
    ]
    if document.passages:
        value["passages"] = [passage._asdict() for passage in document.passages]
    if document.sentences:
        value["sentences"] = document.sentences
    value.update(document.fields)
    return json.dumps(value, ensure_ascii=False) + "\n"


WRITER = Writer(jsonl_line)
