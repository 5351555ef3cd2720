"""BioC JSON: a collection of documents with passages, a list of collections, or (PubTator) a document in each line.

Offsets of passages and entities count characters from the beginning of the document; gaps between passages are filled
with spaces. Entities of sentences are entities of their document. Relations are left out.
"""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from bertrelay.data.tables import Rejected
from bertrelay.errors import RequestError
from domain.biomedical.documents.document import ANNOTATED, NAME_FORMAT, Document, Entity, Item, Passage, Reading, Span
from domain.biomedical.documents.json_stream import JsonWindow, Shape, json_window, parsed, refuse_spans
from domain.biomedical.documents.soundness import Annotation, joined, placed
from domain.biomedical.documents.writing import Writer, open_text_file
from domain.reading import shown_id

COLLECTIONS = ("documents", "PubTator3")
MOST_FILLER = 100_000  # characters between two passages
RELATION = "a relation"


class _Location(Shape):
    offset: int
    length: int


class _Annotation(Shape):
    infons: dict[str, Any] | None = None
    text: str | None = None
    locations: Annotated[tuple[_Location, ...], Field(min_length=1)]


class _TextPart(Shape):
    """A passage, or a sentence of one, without its annotations."""

    offset: int
    infons: dict[str, Any] | None = None
    text: str | None = None
    sentences: tuple["_TextPart", ...] | None = None

    def content(self) -> str:
        """The text of the passage; without one, that of its sentences."""
        return _put_together(self.offset, self.sentences or ()) if self.text is None else self.text


class _Part(_TextPart):
    model_config = ConfigDict(extra="allow")

    sentences: tuple["_Part", ...] | None = None
    annotations: tuple[_Annotation, ...] | None = None
    relations: tuple[Any, ...] | None = None


class _TextDocument(Shape):
    id: str | int
    passages: tuple[_TextPart, ...]


class _BiocDocument(_TextDocument):
    model_config = ConfigDict(extra="allow")

    passages: tuple[_Part, ...]
    annotations: tuple[_Annotation, ...] | None = None
    relations: tuple[Any, ...] | None = None


def read(path: Path, reading: Reading = ANNOTATED) -> Iterator[Item]:
    """Streams the documents of a file; memory holds one at a time.

    Raises RequestError for a file that is cut off, or is no BioC JSON.
    """
    with json_window(path) as window:
        for line, text in _documents(window):
            yield from _items(text, str(path), line, reading.only_text)


def _documents(window: JsonWindow) -> Iterator[tuple[int, str]]:
    """Line and JSON text of each document, of collections and documents in an array, or one after the other."""
    if window.peek() == "[":
        for line in window.element_lines():
            if window.peek() == "{":
                yield from _of_object(window, is_listed=True)
            else:
                yield line, window.value()
    elif window.peek() != "{":
        raise _no_collection(window)
    while window.peek() == "{":
        yield from _of_object(window)
    if window.peek():
        raise window.broken()


def _of_object(window: JsonWindow, is_listed: bool = False) -> Iterator[tuple[int, str]]:
    """The documents of an object that is a collection or a document; one in a list may lack passages."""
    line, parts, is_collection = window.line, dict[str, str](), False
    for key in window.members():
        if key in COLLECTIONS and window.peek() == "[":
            is_collection = True
            yield from window.elements()
        else:
            parts[key] = window.value()
    if "passages" in parts or (is_listed and not is_collection):
        yield line, "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in parts.items()) + "}"
    elif not is_collection:
        raise _no_collection(window)


def _no_collection(window: JsonWindow) -> RequestError:
    is_xml = " This is XML: convert it to BioC JSON." if window.peek() == "<" else ""
    return RequestError(
        f"{window.file}, line {window.line:,}: expected BioC JSON, an object with `documents`, or in each line "
        f"one with `passages`; found another shape.{is_xml} {NAME_FORMAT}"
    )


def _items(text: str, file: str, line: int, only_text: bool) -> Iterator[Item]:
    """The document in a JSON text, and its relations, which are left out."""
    try:
        if only_text:
            yield _document(parsed(_TextDocument, text), (), file, line)
            return
        document = parsed(_BiocDocument, text)
        parts: list[_Part | _BiocDocument] = [document]
        for passage in document.passages:
            parts += [passage, *(passage.sentences or ())]
        yield from [Rejected(RELATION, is_fault=False)] * sum(len(part.relations or ()) for part in parts)
        if all(part.annotations is None for part in parts):
            for part in parts:
                refuse_spans(part, '"annotations": [{"infons", "text", "locations"}]')
        annotations = [
            Annotation(_entity(annotation), annotation.text, file, line, within)
            for within, annotation in _annotations(document)
        ]
        yield _document(document, annotations, file, line)
    except Rejected as fault:
        value = json.loads(text)  # of any shape; its id names it, as a collection may be written on one line
        name = shown_id(value.get("id")) if isinstance(value, dict) else ""
        yield fault.at(file, line, name)


def _annotations(document: _BiocDocument) -> Iterator[tuple[Span | None, _Annotation]]:
    """Every annotation with the span that it must not leave.

    The span begins with its passage or sentence and ends with its passage; None for annotations of the document.
    """
    for passage in document.passages:
        end = passage.offset + len(passage.content())
        for part in (passage, *(passage.sentences or ())):
            for annotation in part.annotations or ():
                yield (part.offset, end), annotation
    yield from ((None, annotation) for annotation in document.annotations or ())


def _document(parsed_document: _TextDocument, annotations: Sequence[Annotation], file: str, line: int) -> Document:
    passages = tuple(
        Passage(passage.offset, passage.offset + len(passage.content()), str((passage.infons or {}).get("type", "")))
        for passage in parsed_document.passages
    )
    text = _put_together(0, parsed_document.passages)
    entities, misplaced = placed(text, annotations)
    is_plain = passages == (Passage(0, len(text)),)
    shown = () if is_plain else passages
    return Document(str(parsed_document.id), text, entities, shown, file=file, line=line, misplaced=misplaced)


def _put_together(offset: int, parts: Sequence[_TextPart]) -> str:
    """The texts of `parts` at their offsets, in a text that begins at `offset`: at 0 and 5, `One.` and `Two.` give
    `One. Two.`.
    """
    text = ""
    for part in parts:
        missing = part.offset - offset - len(text)
        if not 0 <= missing <= MOST_FILLER:
            where = f"{abs(missing):,} {'after' if missing > 0 else 'before'} the end of what precedes it"
            raise Rejected("passages that overlap or are out of order", f"the one at {part.offset:,} begins {where}")
        text += " " * missing + part.content()
    return text


def _entity(annotation: _Annotation) -> Entity:
    kind, identifier, confidence = map((annotation.infons or {}).get, ("type", "identifier", "confidence"))
    if not kind or not isinstance(kind, str):
        raise Rejected("an entity without a type", "expected `type` in its infons, as text")
    start, end, fragments = joined((span.offset, span.offset + span.length) for span in annotation.locations)
    return Entity(start, end, kind, _probability(confidence), identifier and str(identifier), fragments)


def _probability(confidence: object) -> float | None:
    """A confidence from 0 to 1; None for one in words or on another scale."""
    try:
        number = float(str(confidence))
    except ValueError:
        return None
    return number if 0 <= number <= 1 else None


def render(document: Document) -> str:
    """A document as JSON. Raises Rejected for entities without a type."""
    if not all(entity.type for entity in document.entities):
        raise Rejected("an entity without a type")
    passages = []
    for passage in _passages_of(document):
        annotations = [
            _rendered(number, entity) for number, entity in enumerate(document.entities, 1) if _is_in(entity, passage)
        ]
        value = {"offset": passage.start, "infons": {"type": passage.kind} if passage.kind else {}}
        text = document.text[passage.start : passage.end]
        passages.append({**value, "text": text, "sentences": [], "annotations": annotations, "relations": []})
    value = {"id": document.id, "infons": {}, "passages": passages, "relations": []}
    return json.dumps(value, ensure_ascii=False)


def _passages_of(document: Document) -> Sequence[Passage]:
    """The passages of a document if only spaces and no entity are outside them; else one passage of the whole text."""
    text, passages = document.text, document.passages
    ends = [0, *(passage.end for passage in passages)]
    gaps = list(zip(ends, passages, strict=False))
    is_whole = (
        ends[-1] == len(text)
        and all(end <= passage.start and not text[end : passage.start].strip(" ") for end, passage in gaps)
        and all(sum(_is_in(entity, passage) for passage in passages) == 1 for entity in document.entities)
    )
    return passages if passages and is_whole else [Passage(0, len(text))]


def _is_in(entity: Entity, passage: Passage) -> bool:
    return passage.start <= entity.start and entity.end <= passage.end


def _rendered(number: int, entity: Entity) -> dict[str, Any]:
    confidence = None if entity.confidence is None else repr(entity.confidence)
    infons = {"type": entity.type, "identifier": entity.identifier or None, "confidence": confidence}
    infons = {name: value for name, value in infons.items() if value is not None}
    locations = [{"offset": start, "length": end - start} for start, end in entity.spans]
    return {"id": str(number), "infons": infons, "text": entity.text, "locations": locations}


WRITER = Writer(
    render,
    partial(
        open_text_file,
        head='{"source": "BertRelay", "date": "", "key": "", "infons": {}, "documents": [\n',
        between=",\n",
        tail="\n]}\n",
    ),
)
