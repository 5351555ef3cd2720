"""Validation of documents: UTF-8 text, possible offsets, and mentions that are the text at their offsets."""

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from bertrelay.data.encodings import NOT_UTF8, conversion_hint
from bertrelay.data.readers import LONGEST_LINE, open_input
from bertrelay.data.records import MISSING_WORDS
from bertrelay.data.tables import Rejected
from bertrelay.privacy import is_sensitive
from domain.biomedical.documents.document import Document, Entity, Misplaced, Relation, Span

IMPOSSIBLE = "an entity with offsets that cannot be"
MISALIGNED = "an entity whose text is not at its offsets"
OUTSIDE_PASSAGE = "an entity outside of its passage"
MISPLACED = (MISALIGNED, IMPOSSIBLE, OUTSIDE_PASSAGE)
NO_MENTION = "a relation without one of its entities"
DISCONTINUOUS = "a discontinuous entity"
STRAY_SPACE = "a tag or type with a stray space"
NO_TYPE = MISSING_WORDS - {"NA"}  # NA may be the name of a type
LINE_BREAK = re.compile(r"\s*[\r\n]\s*")


def whole_text(path: Path) -> str:
    """The text of a file, with its line ends and byte order mark. Raises Rejected if it is not UTF-8, or damaged."""
    try:
        with open_input(str(path)) as stream:
            content = stream.read(LONGEST_LINE + 1)
            if len(content) > LONGEST_LINE:
                raise Rejected("a text too long", f"more than {LONGEST_LINE >> 20} MiB")
            return content.decode()
    except UnicodeDecodeError as error:
        name = "FILE" if is_sensitive() else str(path)  # it may be an id
        position = f"byte {error.start:,} of the file, counted from 0"
        raise Rejected(NOT_UTF8, position + conversion_hint(name, error.object)) from None
    except (EOFError, OSError, zlib.error) as error:
        raise Rejected("a file that is cut off or damaged", type(error).__name__) from None


class Annotation(NamedTuple):
    """An entity as it is in a file.

    mention: its text, which must be at its offsets; None if the file has none.
    within: the passage that it must not leave.
    """

    entity: Entity
    mention: str | None = None
    file: str = ""
    line: int = 0
    within: Span | None = None


class Placed(NamedTuple):
    """The content of a document: entities at right and at wrong offsets, and the relations between right ones."""

    entities: tuple[Entity, ...]
    misplaced: tuple[Misplaced, ...]
    relations: tuple[Relation, ...]


def placed(text: str, annotations: Iterable[Annotation], relations: Iterable[Relation] = ()) -> Placed:
    """Splits entities into those at right and those at wrong offsets. Raises Rejected for types that are none.

    In `No gout`, (3, 7, gout) is right; (4, 8, gout) and (3, 7, flu) are misplaced.
    relations: between annotations, by their positions; in the result between entities. Those of a misplaced or missing
        annotation are left out.
    """
    entities, misplaced, positions = list[Entity](), list[Misplaced](), dict[int, int]()
    for number, annotation in enumerate(annotations):
        check_type(annotation.entity)
        if reason := _fault_of(text, annotation):
            misplaced.append(Misplaced(annotation.entity, reason, annotation.file, annotation.line))
        else:
            positions[number] = len(entities)
            entities.append(annotation.entity)
    return Placed(tuple(entities), tuple(misplaced), moved_relations(relations, positions))


def moved_relations(relations: Iterable[Relation], positions: Mapping[int, int]) -> tuple[Relation, ...]:
    """The relations with mentions at their new `positions`; without those of a mention that has none."""
    return tuple(
        replace(
            relation,
            arguments=tuple(
                argument._replace(target=positions[argument.target]) if isinstance(argument.target, int) else argument
                for argument in relation.arguments
            ),
        )
        for relation in relations
        if all(mention in positions for mention in relation.mentions)
    )


def _fault_of(text: str, annotation: Annotation) -> str | None:
    entity, mention = annotation.entity, annotation.mention
    if not _is_inside(entity, len(text)):
        return IMPOSSIBLE
    if annotation.within and not annotation.within[0] <= entity.start < entity.end <= annotation.within[1]:
        return OUTSIDE_PASSAGE
    return None if mention is None or _matches(text, entity, mention) else MISALIGNED


def check_type(entity: Entity) -> None:
    """Raises Rejected for a type with white space around it, which would be another type, and for a missing value."""
    if entity.type != entity.type.strip():
        raise Rejected(
            STRAY_SPACE, f"that of the entity at {entity.start:,} to {entity.end:,}; take the white space out"
        )
    if entity.type in NO_TYPE:
        raise Rejected("an entity without a type", "a missing value of a table was written as its type")


def check_document(document: Document) -> None:
    """Raises Rejected for impossible offsets of entities, passages or tokens, for relations of mentions that do not
    exist, and for invalid Unicode.
    """
    length, end = len(document.text), 0
    impossible = [entity for entity in document.entities if not _is_inside(entity, length)]
    _refuse_any(impossible, IMPOSSIBLE, document.entities)
    for entity in document.entities:
        check_type(entity)
    if not all(0 <= passage.start <= passage.end <= length for passage in document.passages):
        raise Rejected("passages with offsets that cannot be", f"expected start and end from 0 to {length:,}")
    for token in chain.from_iterable(document.sentences):
        if not end <= token[0] < token[1] <= length:
            expected = f"expected tokens one behind the other, the last one's end at {length:,} at most"
            raise Rejected(
                "tokens with offsets that cannot be", f"the first at {token[0]:,} to {token[1]:,}; {expected}"
            )
        end = token[1]
    for relation in document.relations:
        if not relation.type or len(relation.arguments) < 2 or "" in [target for target, _ in relation.arguments]:
            raise Rejected("a relation without a type or two arguments")
        if not all(0 <= mention < len(document.entities) for mention in relation.mentions):
            raise Rejected(NO_MENTION, f"expected positions from 0 to {len(document.entities) - 1:,}")
    try:
        "".join([document.id, document.text, *_names_in(document)]).encode()
    except UnicodeEncodeError:
        raise Rejected("not valid Unicode", "half of a surrogate pair") from None


def _names_in(document: Document) -> Iterator[str]:
    """Yields the words of all annotations."""
    for entity in document.entities:
        yield from (entity.type, entity.identifier or "", entity.database or "", *entity.parts)
    for relation in document.relations:
        yield relation.type
        for target, role in relation.arguments:
            yield from (str(target), role)
    yield from (passage.kind for passage in document.passages)


def _refuse_any(wrong: Sequence[Entity], reason: str, entities: Sequence[Entity], detail: str = "") -> None:
    if wrong:
        first = f"the first at {wrong[0].start:,} to {wrong[0].end:,}"
        raise Rejected(reason, f"{len(wrong):,} of {len(entities):,} entities, {first}{detail}")


def check_contiguous(document: Document, holder: str) -> None:
    """Raises Rejected for discontinuous entities, which `holder`, a tag for example, cannot represent."""
    broken = [entity for entity in document.entities if entity.fragments]
    _refuse_any(broken, DISCONTINUOUS, document.entities, f"; {holder} holds spans")


def joined(spans: Iterable[Span], text: str = "") -> tuple[int, int, tuple[Span, ...]]:
    """Start, end and fragments of an entity of `spans`, in any order; spans that touch become one.

    [(9, 15), (0, 4), (4, 6)] gives (0, 15, ((0, 6), (9, 15))), and [(0, 4)] gives (0, 4, ()).
    text: of a format that ends a fragment with each line; spans that only a line break divides then become one, too.
    """
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and (start == merged[-1][1] or LINE_BREAK.fullmatch(text, merged[-1][1], start)):
            start = merged.pop()[0]
        merged.append((start, end))
    return merged[0][0], merged[-1][1], tuple(merged) if len(merged) > 1 else ()


def _is_inside(entity: Entity, length: int) -> bool:
    borders = [border for span in entity.spans for border in span]
    is_rising = all(start < end for start, end in entity.spans) and borders == sorted(borders)
    is_whole = (entity.start, entity.end) == (borders[0], borders[-1])
    return is_rising and is_whole and entity.start >= 0 and entity.end <= length


def _matches(text: str, entity: Entity, mention: str) -> bool:
    """True if `mention` is the text of the entity; line breaks may be spaces, as in formats of lines."""
    texts = mention, entity.in_text(text).text, text[entity.start : entity.end]
    spaced, *possible = (re.sub(r"\s+", " ", version) for version in texts)
    return spaced in possible
