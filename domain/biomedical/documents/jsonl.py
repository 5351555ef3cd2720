"""JSONL: a document in each line, `{"id", "text", "entities": [{"start", "end", "type", "text", "confidence"}]}`.

It holds all that a document is: `identifier`, `fragments` (of a discontinuous entity), `passages` and `sentences`
stand where there are any. Other keys are read over. A document without `id` is named by its line.
"""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bertrelay.data.tables import Unusable
from domain.biomedical.documents.document import (
    Document,
    Entity,
    Item,
    Passage,
    Span,
    Unfit,
    Write,
    check_entities,
    check_parts,
    mention,
    numbered_lines,
    text_file,
)
from domain.biomedical.documents.json_stream import Shape, parsed


class _Entity(Shape):
    start: int
    end: int
    type: str
    text: str | None = None
    confidence: float | None = None
    identifier: str | None = None
    fragments: tuple[Span, ...] = ()

    def entity(self) -> Entity:
        return Entity(self.start, self.end, self.type, self.confidence, self.identifier, self.fragments)


class _Document(Shape):
    id: str | int | None = None
    text: str
    entities: tuple[_Entity, ...] | None = None
    passages: tuple[Passage, ...] = ()
    sentences: tuple[tuple[Span, ...], ...] = ()


def read(path: Path) -> Iterator[Item]:
    """Streams the documents of a file, one in each line that is not blank."""
    for row in numbered_lines(path):
        if isinstance(row, Unusable):
            yield row
        elif row.values[0].strip():
            try:
                yield document_of(row.values[0], row.file, row.line)
            except Unfit as fault:
                yield Unusable(row.file, row.line, fault.reason, fault.detail)


def document_of(line: str, file: str = "", number: int = 0) -> Document:
    """The document of a line. Raises Unfit for a line that holds none."""
    found = parsed(_Document, line)
    entities = tuple(value.entity() for value in found.entities or ())
    check_entities(found.text, entities, [value.text for value in found.entities or ()])
    name = str(number if found.id is None else found.id)
    document = Document(name, found.text, entities, found.passages, found.sentences, file, number)
    check_parts(document)
    return document


def writing(path: Path) -> AbstractContextManager[Write]:
    """A file of documents."""
    return text_file(path, line_of)


def line_of(document: Document) -> str:
    """The line of a document, its end included."""
    value: dict[str, Any] = {"id": document.id, "text": document.text}
    value["entities"] = [_entity_value(document.text, entity) for entity in document.entities]
    if document.passages:
        value["passages"] = [passage._asdict() for passage in document.passages]
    if document.sentences:
        value["sentences"] = document.sentences
    return json.dumps(value, ensure_ascii=False) + "\n"


def _entity_value(text: str, entity: Entity) -> dict[str, Any]:
    value = {**entity._asdict(), "text": mention(text, entity)}
    keys = ["start", "end", "type", "text", "confidence", "identifier", "fragments"]
    always = ("start", "end", "type", "text")
    return {key: value[key] for key in keys if key in always or value[key] not in (None, ())}
