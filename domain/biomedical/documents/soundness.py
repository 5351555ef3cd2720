"""What makes a document sound: text that is whole, offsets that can be, and entities whose text is at their offsets."""

import re
import zlib
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from bertrelay.data.readers import open_input
from domain.biomedical.documents.document import Document, Entity, Span, Unfit

IMPOSSIBLE = "an entity with offsets that cannot be"
MISALIGNED = "an entity whose text is not at its offsets"
LINE_BREAK = re.compile(r"\s*[\r\n]\s*")


def whole_text(path: Path) -> str:
    """The text of a file, to the character: line ends and a byte order mark stay. Raises Unfit when it is not UTF-8."""
    try:
        with open_input(str(path)) as stream:
            return stream.read().decode()
    except UnicodeDecodeError as error:
        raise Unfit("not valid UTF-8", f"byte {error.start:,} of the file, counted from 0") from None
    except (EOFError, OSError, zlib.error) as error:
        raise Unfit("a file that is cut off or damaged", type(error).__name__) from None


def check_document(document: Document, mentions: Sequence[str | None] = ()) -> None:
    """Raises Unfit for impossible offsets of entities, passages or tokens, and for characters that no file can hold.

    mentions: the texts of the entities as a file has them, which must be at their offsets.
    """
    length, end = len(document.text), 0
    check_entities(document.text, document.entities, mentions)
    if not all(0 <= passage.start <= passage.end <= length for passage in document.passages):
        raise Unfit("passages with offsets that cannot be", f"expected start and end from 0 to {length:,}")
    for token in chain.from_iterable(document.sentences):
        if not end <= token[0] < token[1] <= length:
            expected = f"expected each behind the one before, the last one's end at {length:,} at most"
            raise Unfit("tokens with offsets that cannot be", f"the first at {token[0]:,} to {token[1]:,}; {expected}")
        end = token[1]
    try:
        "".join([document.id, document.text, *(entity.type for entity in document.entities)]).encode()
    except UnicodeEncodeError:
        raise Unfit("half of a surrogate pair", "not valid Unicode") from None


def check_entities(text: str, entities: Sequence[Entity], mentions: Sequence[str | None] = ()) -> None:
    """Raises Unfit for spans that are empty, outside of `text` or out of order, and for mentions that do not match."""
    _refuse_any([entity for entity in entities if not _is_inside(entity, len(text))], IMPOSSIBLE, entities)
    pairs = zip(entities, mentions, strict=False)
    wrong = [entity for entity, mention in pairs if mention is not None and not _matches(text, entity, mention)]
    _refuse_any(wrong, MISALIGNED, entities)


def _refuse_any(found: Sequence[Entity], reason: str, entities: Sequence[Entity], why: str = "") -> None:
    if found:
        first = f"the first at {found[0].start:,} to {found[0].end:,}"
        raise Unfit(reason, f"{len(found):,} of {len(entities):,} entities, {first}{why}")


def check_contiguous(document: Document, kept_by: str) -> None:
    """Raises Unfit for discontinuous entities, which `kept_by` cannot hold."""
    broken = [entity for entity in document.entities if entity.fragments]
    _refuse_any(broken, "a discontinuous entity", document.entities, f"; {kept_by} holds spans")


def joined(spans: Iterable[Span], text: str = "") -> tuple[int, int, tuple[Span, ...]]:
    """Start, end and fragments of an entity that covers `spans`, which come in any order; those that touch become one.

    text: where a format ends a fragment with each line, the text; what it has on several lines then becomes one too.
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
    """Whether `mention` is the text of the entity; line breaks may have become a space, as in formats of lines."""
    whole, *found = (
        re.sub(r"\s+", " ", each) for each in (mention, entity.in_text(text).text, text[entity.start : entity.end])
    )
    return whole in found
