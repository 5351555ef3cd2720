"""JSONL: a document in each line, `{"id", "text", "entities": [{"start", "end", "type", "text", "confidence"}]}`.

It holds everything of a document; `identifier`, `fragments` (of a discontinuous entity), `passages` and `sentences`
are written where there are any. Other keys are ignored. A document without `id` is named by its line.

Raw text is read here too: a file or a folder of `.txt` files, each a document; or a document in each line.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from bertrelay.data.tables import Unusable
from domain.biomedical.documents import brat_files, name_of
from domain.biomedical.documents.document import Document, Entity, Item, Passage, Span, Unfit, file_in, numbered_lines
from domain.biomedical.documents.json_stream import Shape, parsed
from domain.biomedical.documents.soundness import check_document, joined, whole_text

SHAPE = '"entities": [{"start", "end", "type"}]'


class _JsonEntity(Shape):
    start: int
    end: int
    type: str
    text: str | None = None
    confidence: float | None = Field(default=None, ge=0, le=1)
    identifier: str | None = None
    fragments: tuple[Span, ...] = ()

    def entity(self) -> Entity:
        start, end, fragments = joined(self.fragments or [(self.start, self.end)])
        if (start, end) != (self.start, self.end):
            fragments = self.fragments  # which checking the document refuses
        return Entity(self.start, self.end, self.type, self.confidence, self.identifier, fragments)


class _JsonDocument(Shape):
    """ents, label, labels, spans, annotations: where other tools write entities, in other shapes."""

    id: str | int | None = None
    text: str
    entities: tuple[_JsonEntity, ...] | None = None
    passages: tuple[Passage, ...] = ()
    sentences: tuple[tuple[Span, ...], ...] = ()
    ents: Any = None
    label: Any = None
    labels: Any = None
    spans: Any = None
    annotations: Any = None

    def annotated(self) -> tuple[_JsonEntity, ...]:
        """Its entities. Raises Unfit where it has none and another key has a list of spans."""
        for name in ("ents", "label", "labels", "spans", "annotations"):
            found = getattr(self, name)
            if self.entities is None and isinstance(found, list) and found and _is_span(found[0]):
                raise Unfit("entities of another shape", f"found `{name}`; expected {SHAPE}, or remove it")
        return self.entities or ()


def _is_span(value: object) -> bool:
    """Whether another tool's annotation has places in the text: `[0, 7, "Drug"]`, or an object with start and end."""
    if isinstance(value, dict):
        return {"start", "end"} <= value.keys() or {"start_offset", "end_offset"} <= value.keys()
    return isinstance(value, list) and len(value) > 1 and all(isinstance(each, int) for each in value[:2])


def read(path: Path) -> Iterator[Item]:
    """Streams the documents of a file, one in each line that is not blank."""
    for row in numbered_lines(path):
        if isinstance(row, Unusable):
            yield row
        elif row.values[0].strip():
            try:
                found = parsed(_JsonDocument, row.values[0])
                given = found.annotated()
                entities = tuple(each.entity() for each in given)
                name = str(row.line if found.id is None else found.id)
                document = Document(name, found.text, entities, found.passages, found.sentences, row.file, row.line)
                check_document(document, [each.text for each in given])
                yield document
            except Unfit as fault:
                yield Unusable(row.file, row.line, fault.reason, fault.detail)


def read_text_files(path: Path) -> Iterator[Item]:
    """A document for each file, named after it; to the character, line ends included."""
    files = [each["txt"] for each in brat_files(path).values() if "txt" in each] if path.is_dir() else [path]
    for number, file in enumerate(files, 1):
        place = file_in(path, number, file)
        try:
            yield Document(name_of(file), whole_text(file), file=place, line=1)
        except Unfit as fault:
            yield Unusable(place, 1, fault.reason, fault.detail)


def read_text_lines(path: Path) -> Iterator[Item]:
    """A document for each line that is not blank, named by its number."""
    for row in numbered_lines(path):
        if isinstance(row, Unusable):
            yield row
        elif row.values[0].strip():
            yield Document(str(row.line), row.values[0], file=row.file, line=row.line)
