"""Losses of a conversion: parts of documents, entities and relations that a format lacks, removed and counted."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from domain.biomedical.documents.document import Document, Entity, Relation
from domain.biomedical.documents.soundness import NO_MENTION, moved_relations

Counts = Counter[str]
"""Numbers of what a format cannot hold, by kind: `{"a confidence": 12}`."""


PARTS = {
    "confidence": "a confidence",
    "identifier": "an identifier",
    "identifier_score": "the score of an identifier",
    "database": "a database of identifiers",
    "parts": "the names of individual mentions",
    "is_part": "the mark of an individual mention",
}
"""Parts of an entity that some format lacks."""
NOTHING = Entity(0, 0, "")
KINDS = {"passages": "a passage", "sentences": "a sentence of tokens", "fields": "a further field"}
"""Parts of a document that some format lacks."""
OF_RELATIONS = {"novel": "the novelty of a relation", "confidence": "the confidence of a relation"}
"""Parts of a relation that some format lacks."""


def remove_parts(document: Document, left_out: Counts, *names: str) -> Document:
    """The document without the parts `names` of its entities and of itself, as in `PARTS` and `KINDS`."""
    plain = {name: getattr(NOTHING, name) for name in names if name in PARTS}
    for entity in document.entities:
        left_out.update(PARTS[name] for name, value in plain.items() if getattr(entity, name) != value)
    for name in KINDS.keys() & names:
        left_out[KINDS[name]] += len(getattr(document, name))
    empty: dict[str, Any] = {name: {} if name == "fields" else () for name in KINDS.keys() & names}
    return replace(document, entities=tuple(replace(entity, **plain) for entity in document.entities), **empty)


def keep_entities(document: Document, left_out: Counts, fault_of: Callable[[Entity], str]) -> Document:
    """The document without entities of a fault, and without relations of these.

    fault_of: the kind of an entity that is removed; empty for one that stays.
    """
    positions, entities = dict[int, int](), list[Entity]()
    for number, entity in enumerate(document.entities):
        if fault := fault_of(entity):
            left_out[fault] += 1
        else:
            positions[number] = len(entities)
            entities.append(entity)
    relations = moved_relations(document.relations, positions)
    left_out[NO_MENTION] += len(document.relations) - len(relations)
    return replace(document, entities=tuple(entities), relations=relations)


def remove_overlaps(document: Document, left_out: Counts) -> Document:
    """The document with the longest ones of overlapping entities, and of equally long ones the first."""
    longest = list[Entity]()
    covered = bytearray(len(document.text))
    for entity in sorted(document.entities, key=lambda entity: (entity.start - entity.end, entity.start)):
        if not any(covered[entity.start : entity.end]):
            covered[entity.start : entity.end] = b"\1" * (entity.end - entity.start)
            longest.append(entity)
    positions = {id(entity) for entity in longest}
    return keep_entities(
        document, left_out, lambda entity: "" if id(entity) in positions else "a nested or overlapping entity"
    )


def remove_relations(document: Document, left_out: Counts) -> Document:
    """The document without relations, for a format that has none."""
    return keep_relations(document, left_out, no_relation)


def keep_parts(document: Document, left_out: Counts, holds: Callable[[Entity], bool]) -> Document:
    """The document without the names of individual mentions that a format does not hold."""
    left_out[PARTS["parts"]] += sum(bool(entity.parts) and not holds(entity) for entity in document.entities)
    entities = (entity if holds(entity) else replace(entity, parts=()) for entity in document.entities)
    return replace(document, entities=tuple(entities))


def keep_relations(document: Document, left_out: Counts, fault_of: Callable[[Relation], str]) -> Document:
    """The document without relations of a fault; `fault_of` is empty for one that stays."""
    faults = [fault_of(relation) for relation in document.relations]
    left_out.update(filter(None, faults))
    relations = [relation for relation, fault in zip(document.relations, faults, strict=True) if not fault]
    return replace(document, relations=tuple(relations))


def remove_relation_parts(document: Document, left_out: Counts, *names: str) -> Document:
    """The document without the parts `names` of its relations: `novel` or `confidence`."""
    for relation in document.relations:
        left_out.update(OF_RELATIONS[name] for name in names if getattr(relation, name) is not None)
    plain: dict[str, Any] = dict.fromkeys(names)
    return replace(document, relations=tuple(replace(relation, **plain) for relation in document.relations))


def no_relation(relation: Relation) -> str:
    """The kind of a relation that a format leaves out: between mentions, concepts, or both."""
    if 0 < len(relation.mentions) < len(relation.arguments):
        return "a relation between mentions and concepts"
    return "a relation between mentions" if relation.mentions else "a relation between concepts"
