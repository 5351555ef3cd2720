"""Relations as triples in CSV: a row for each relation of two arguments. Only written."""

import csv
import io
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from domain.biomedical.documents.document import Document, Relation
from domain.biomedical.documents.losses import Counts, keep_entities, keep_relations
from domain.biomedical.documents.writing import Writer, open_text_file


class End(NamedTuple):
    """An argument of a relation: identifier of its concept, its first mention in the text, and the type of that."""

    identifier: str
    mention: str
    type: str


def ends_of(document: Document, relation: Relation) -> list[End]:
    """The arguments of a relation, in the order of the file, but an `object` last."""
    ends = list[End]()
    for target, _ in sorted(relation.arguments, key=lambda argument: argument.role == "object"):
        if isinstance(target, int):
            entity = document.entities[target]
            ends.append(End(entity.identifier or "", entity.text, entity.type))
        else:
            mentions = (End(target, one.text, one.type) for one in document.entities if target in one.identifiers)
            ends.append(next(mentions, End(target, "", "")))
    return ends


COLUMNS = (
    "document",
    "relation",
    *(f"{end}{part}" for end in ("subject", "object") for part in ("", "_mention", "_type")),
)
COLUMNS += ("novel", "confidence")
NOVEL = {True: "true", False: "false", None: ""}


def rows_of(document: Document) -> Iterator[tuple[object, ...]]:
    """Yields the columns of each relation of two arguments."""
    for relation in document.relations:
        if len(relation.arguments) == 2:
            first, second = ends_of(document, relation)
            yield (document.id, relation.type, *first, *second, NOVEL[relation.novel], relation.confidence)


def render(document: Document) -> str:
    """The lines of a document; none where it has no relation."""
    return _csv(*rows_of(document))


def _csv(*rows: tuple[object, ...]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def fit(document: Document, left_out: Counts) -> Document:
    """The document with relations of two arguments and their entities alone."""
    document = keep_relations(
        document, left_out, lambda relation: "" if len(relation.arguments) == 2 else "a relation of other than two"
    )
    targets = {argument.target for relation in document.relations for argument in relation.arguments}
    related = {
        id(entity)
        for number, entity in enumerate(document.entities)
        if number in targets or not targets.isdisjoint(entity.identifiers)
    }
    return keep_entities(document, left_out, lambda one: "" if id(one) in related else "an entity without a relation")


HEAD = _csv(COLUMNS)
WRITER = Writer(render, partial(open_text_file, head=HEAD), fit, HEAD)
