"""BioC JSON: a collection of documents with passages, a list of collections, or (PubTator) a document in each line.

Offsets of passages and entities count characters from the beginning of the document; gaps between passages are filled
with spaces. Entities and relations of sentences and passages are those of their document.

A relation between mentions has nodes, one between concepts infons: `entity1` and `entity2` with `type` and `novel` as
in BioRED, `Chemical` and `Disease` with `relation` as in BC5CDR, `role1` and `role2` as in PubTator 3.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from bertrelay.data.tables import Rejected
from bertrelay.errors import RequestError
from domain.biomedical.documents.document import (
    ANNOTATED,
    NAME_FORMAT,
    Argument,
    Document,
    Entity,
    Item,
    Passage,
    Reading,
    Relation,
    Span,
)
from domain.biomedical.documents.json_stream import JsonWindow, Shape, json_window, parsed, refuse_spans
from domain.biomedical.documents.losses import (
    KINDS,
    Counts,
    keep_entities,
    keep_parts,
    keep_relations,
    no_relation,
    remove_parts,
)
from domain.biomedical.documents.pubtator import BETWEEN_PARTS, NO_IDENTIFIER, NOVEL, ROLES_OF_CID
from domain.biomedical.documents.soundness import NO_MENTION, Annotation, joined, moved_relations, placed
from domain.biomedical.documents.writing import Writer, open_text_file
from domain.reading import shown_id

COLLECTIONS = ("documents", "PubTator3")
MOST_FILLER = 100_000  # characters between two passages
DATABASES = ("MESH", "OMIM", "CHEBI", "NCBI Gene", "NCBI Taxonomy")
"""Infons that have an identifier, named after its database, as in BC5CDR."""
DEFAULT_DATABASE = "MESH"
"""Identifiers of any other database begin with its name, in BC5CDR's relations and in PubTator."""
COMPOSITE, INDIVIDUAL = "CompositeMention", "IndividualMention"
ARGUMENT = re.compile(r"(entity|role)(\d+)")
READ_OF_ENTITY = {
    "type",
    "identifier",
    "identifier_score",
    "confidence",
    "score",
    "database",
    "CompositeRole",
    "parts",
    *DATABASES,
}
READ_OF_RELATION = {"type", "relation", "novel", "confidence", "score"}
OTHER_INFONS, OTHER_RELATION = "a further infon", "a relation without a type or two arguments"


class _Location(Shape):
    offset: int
    length: int


class _Annotation(Shape):
    id: Any = None
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
            yield from items_of(text, str(path), line, reading.only_text)


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
    is_xml = " This is XML: its format is bioc-xml." if window.peek() == "<" else ""
    return RequestError(
        f"{window.file}, line {window.line:,}: expected BioC JSON, an object with `documents`, or in each line "
        f"one with `passages`; found another shape.{is_xml} {NAME_FORMAT}"
    )


def items_of(text: str, file: str, line: int, only_text: bool) -> Iterator[Item]:
    """The document in a JSON text, and what is left out of it."""
    try:
        if only_text:
            yield _document(parsed(_TextDocument, text), (), file, line)
            return
        document = parsed(_BiocDocument, text)
        parts: list[_Part | _BiocDocument] = [document]
        for passage in document.passages:
            parts += [passage, *(passage.sentences or ())]
        if all(part.annotations is None for part in parts):
            for part in parts:
                refuse_spans(part, '"annotations": [{"infons", "text", "locations"}]')
        listed = list(_annotations(document))
        annotations = [
            Annotation(entity, None if entity.is_part else annotation.text, file, line, within)
            for within, annotation in listed
            for entity in [_entity(annotation)]
        ]
        names = [str(annotation.id) for _, annotation in listed]
        positions = {name: number for number, name in reversed(list(enumerate(names)))}
        values = [relation for part in parts for relation in part.relations or ()]
        between = [relation for value in values if (relation := _relation(value, positions))]
        yield from [Rejected(OTHER_RELATION, is_fault=False)] * (len(values) - len(between))
        yield from [Rejected(OTHER_INFONS, is_fault=False)] * _other_infons(document, listed, values)
        whole = _document(document, _with_parts(annotations, listed), file, line, between)
        yield from [Rejected(NO_MENTION, is_fault=False)] * (len(between) - len(whole.relations))
        yield whole
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


def _document(
    parsed_document: _TextDocument,
    annotations: Sequence[Annotation],
    file: str,
    line: int,
    relations: Sequence[Relation] = (),
) -> Document:
    passages = tuple(
        Passage(passage.offset, passage.offset + len(passage.content()), str((passage.infons or {}).get("type", "")))
        for passage in parsed_document.passages
    )
    text = _put_together(0, parsed_document.passages)
    entities, misplaced, between = placed(text, annotations, relations)
    is_plain = passages == (Passage(0, len(text)),)
    shown = () if is_plain else passages
    name = str(parsed_document.id)
    return Document(name, text, entities, shown, relations=between, file=file, line=line, misplaced=misplaced)


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
    infons = annotation.infons or {}
    kind, identifier, database = map(infons.get, ("type", "identifier", "database"))
    if not kind or not isinstance(kind, str):
        raise Rejected("an entity without a type", "expected `type` in its infons, as text")
    if identifier is None and (names := [name for name in DATABASES if infons.get(name)]):
        database, identifier = names[0], str(infons[names[0]])
        if database != DEFAULT_DATABASE and not identifier.startswith(f"{database}:"):
            identifier = f"{database}:{identifier}"
    start, end, fragments = joined((span.offset, span.offset + span.length) for span in annotation.locations)
    return Entity(
        start,
        end,
        kind,
        _probability(infons.get("confidence", infons.get("score"))),
        None if identifier in (None, "", NO_IDENTIFIER) else str(identifier),
        fragments,
        database and str(database),
        tuple(filter(None, str(infons.get("parts") or "").split(BETWEEN_PARTS))),
        infons.get("CompositeRole") == INDIVIDUAL,
        _probability(infons.get("identifier_score")),
    )


def _with_parts(
    annotations: Sequence[Annotation], listed: Sequence[tuple[Span | None, _Annotation]]
) -> list[Annotation]:
    """The annotations with the names of the individual mentions of BC5CDR's composite ones, which are in their span.

    The text of an individual mention is such a name, and need not be at its offsets.
    """
    complete = list[Annotation]()
    for annotation, (_, value) in zip(annotations, listed, strict=True):
        entity = annotation.entity
        if (value.infons or {}).get("CompositeRole") == COMPOSITE and not entity.parts:
            names = tuple(
                name.text
                for other, (_, name) in zip(annotations, listed, strict=True)
                if name.text
                and other.entity.is_part
                and entity.start <= other.entity.start
                and other.entity.end <= entity.end
            )
            annotation = annotation._replace(entity=replace(entity, parts=names))
        complete.append(annotation)
    return complete


def _relation(value: Any, positions: Mapping[str, int]) -> Relation | None:
    """The relation in a JSON value; None for one without a type or two arguments.

    positions: of annotations, by their ids; a missing one, which may be another relation, is -1.
    """
    infons = _infons(value)
    kind = infons.get("relation") or infons.get("type")
    if not kind or not isinstance(kind, str):
        return None
    arguments = _concepts(infons)
    if not arguments:
        nodes = [node for node in value.get("nodes") or () if isinstance(node, dict)]
        arguments = [Argument(positions.get(str(node.get("refid")), -1), str(node.get("role") or "")) for node in nodes]
    if len(arguments) < 2 or any(target in ("", NO_IDENTIFIER) for target, _ in arguments):
        return None
    confidence = _probability(infons.get("confidence", infons.get("score")))
    return Relation(kind, tuple(arguments), NOVEL.get(str(infons.get("novel"))), confidence)


def _concepts(infons: Mapping[str, Any]) -> list[Argument]:
    """The concepts that the infons of a relation name, in the order of their numbers."""
    if all(isinstance(infons.get(role), str) for role in ROLES_OF_CID):
        return [Argument(infons[role], role) for role in ROLES_OF_CID]
    numbered = {int(matched[2]): key for key in infons if (matched := ARGUMENT.fullmatch(key))}
    return [
        Argument(_concept(key, infons[key]), str(infons.get(f"{key}_role") or ""))
        for _, key in sorted(numbered.items())
    ]


def _concept(key: str, value: Any) -> str:
    """The identifier of a concept; in PubTator 3 it is in an object, or behind a type as in `Chemical|MESH:D1`."""
    if isinstance(value, dict):
        return str(value.get("identifier") or "")
    _, _, identifier = str(value).partition("|")
    return identifier if key.startswith("role") and identifier else str(value)


def _infons(value: Any) -> dict[str, Any]:
    infons = value.get("infons") if isinstance(value, dict) else getattr(value, "infons", None)
    return infons if isinstance(infons, dict) else {}


def _other_infons(
    document: _BiocDocument, annotations: Sequence[tuple[Span | None, _Annotation]], relations: Sequence[Any]
) -> int:
    """The number of infons that are not read."""
    names = [*_infons(document.model_extra)]
    names += [name for passage in document.passages for name in _infons(passage).keys() - {"type"}]
    names += [name for _, annotation in annotations for name in _infons(annotation).keys() - READ_OF_ENTITY]
    for relation in relations:
        read = READ_OF_RELATION.union(ROLES_OF_CID)
        names += [name for name in _infons(relation).keys() - read if not ARGUMENT.match(name)]
    return len(names)


def _probability(confidence: object) -> float | None:
    """A confidence from 0 to 1; None for one in words or on another scale."""
    try:
        number = float(str(confidence))
    except ValueError:
        return None
    return number if 0 <= number <= 1 else None


def render(document: Document) -> str:
    """A document as JSON. Raises Rejected for entities without a type."""
    return json.dumps(value_of(document), ensure_ascii=False)


def value_of(document: Document) -> dict[str, Any]:
    """A document as an object of BioC, with every key that other readers need. Raises as `render` does."""
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
    relations = [
        _rendered_relation(f"R{number}", relation)
        for number, relation in enumerate(document.relations)
        if not _fault_of(relation)
    ]
    return {"id": document.id, "infons": {}, "passages": passages, "relations": relations}


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
    role = INDIVIDUAL if entity.is_part else COMPOSITE if entity.parts else None
    infons = {
        "type": entity.type,
        "identifier": entity.identifier or None,
        "identifier_score": None if entity.identifier_score is None else repr(entity.identifier_score),
        "confidence": None if entity.confidence is None else repr(entity.confidence),
        "database": entity.database,
        "CompositeRole": role,
        "parts": BETWEEN_PARTS.join(entity.parts) if _holds_parts(entity) else None,
    }
    infons = {name: value for name, value in infons.items() if value is not None}
    locations = [{"offset": start, "length": end - start} for start, end in entity.spans]
    return {"id": str(number), "infons": infons, "text": entity.text, "locations": locations}


def _rendered_relation(name: str, relation: Relation) -> dict[str, Any]:
    """A relation of concepts in the form of BC5CDR or BioRED, or one of mentions."""
    infons, nodes = dict[str, str](), list[dict[str, str]]()
    if relation.mentions:
        infons["type"] = relation.type
        nodes = [{"refid": str(int(target) + 1), "role": role} for target, role in relation.arguments]
    elif tuple(role for _, role in relation.arguments) == ROLES_OF_CID:
        infons["relation"] = relation.type
        infons.update((role, str(target)) for target, role in relation.arguments)
    else:
        for number, (target, role) in enumerate(relation.arguments, 1):
            infons[f"entity{number}"] = str(target)
            infons.update({f"entity{number}_role": role} if role else {})
        infons["type"] = relation.type
    infons.update(("novel", word) for word, value in NOVEL.items() if value is relation.novel)
    infons.update({} if relation.confidence is None else {"confidence": repr(relation.confidence)})
    return {"id": name, "infons": infons, "nodes": nodes}


def _fault_of(relation: Relation) -> str:
    if 0 < len(relation.mentions) < len(relation.arguments):
        return no_relation(relation)
    return "a relation with a concept without an identifier" * any(
        target == NO_IDENTIFIER for target, _ in relation.arguments
    )


def _holds_parts(entity: Entity) -> bool:
    """True if an infon can hold the names of individual mentions, of which there are some."""
    return bool(entity.parts) and not any(BETWEEN_PARTS in part or not part for part in entity.parts)


def fit(document: Document, left_out: Counts) -> Document:
    """The document with its passages where they hold all of it, and entities in the order of these."""
    document = remove_parts(document, left_out, "sentences", "fields")
    document = keep_entities(document, left_out, lambda entity: "" if entity.type else "an entity without a type")
    document = keep_parts(document, left_out, _holds_parts)
    document = keep_relations(document, left_out, _fault_of)
    passages = tuple(_passages_of(document))
    shown = () if passages == (Passage(0, len(document.text)),) else passages
    if passages != document.passages:
        left_out[KINDS["passages"]] += len(document.passages)
    order = [
        number for passage in passages for number, entity in enumerate(document.entities) if _is_in(entity, passage)
    ]
    relations = moved_relations(document.relations, {old: new for new, old in enumerate(order)})
    entities = tuple(document.entities[number] for number in order)
    return replace(document, entities=entities, relations=relations, passages=shown)


HEAD, TAIL = '{"source": "BertRelay", "date": "", "key": "", "infons": {}, "documents": [\n', "\n]}\n"
WRITER = Writer(render, partial(open_text_file, head=HEAD, between=",\n", tail=TAIL), fit, HEAD, TAIL)
