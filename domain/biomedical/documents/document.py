"""What is read, tagged and written: documents with entities, and sentences of tokens with tags.

Offsets count Python characters (Unicode code points) from 0; `end` stands after the last one, so that
`document.text[entity.start : entity.end]` is the entity. No offset ever shifts: the text stays as it was read.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from bertrelay.data.readers import line_rows, open_input
from bertrelay.data.records import TakesRejects
from bertrelay.data.tables import Record, Table, Unusable
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write
from bertrelay.privacy import WITHHELD, is_sensitive
from bertrelay.settings import InputFile

Span = tuple[int, int]
"""The start and the end of a piece of text."""


class Entity(NamedTuple):
    """A mention in a text.

    confidence: the probability that a model gives to this span and type; None in data that people annotated.
    identifier: of the concept in a terminology, `MESH:D003643` for example.
    fragments: the spans of a discontinuous entity, in order, from `start` to `end`; empty for one in one piece.
    """

    start: int
    end: int
    type: str
    confidence: float | None = None
    identifier: str | None = None
    fragments: tuple[Span, ...] = ()


class Passage(NamedTuple):
    """A part of a document, `title` or `abstract` for example."""

    start: int
    end: int
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """A text with its entities, in the order in which they were read; they may overlap and be nested.

    sentences: the spans of the tokens, sentence by sentence, of data that came as tokens; empty in other data.
    file, line: where it was read; empty and 0 when it was not.
    """

    id: str
    text: str
    entities: tuple[Entity, ...] = ()
    passages: tuple[Passage, ...] = ()
    sentences: tuple[tuple[Span, ...], ...] = ()
    file: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)


class TaggedSentence(NamedTuple):
    """The tokens of a sentence and a tag for each: token i stands in line `line + i` of `file`.

    document: how many `-DOCSTART-` lines stand before it; 0 all through a file without them.
    """

    tokens: tuple[str, ...]
    tags: tuple[str, ...]
    file: str = ""
    line: int = 1
    document: int = 0


class Unfit(Exception):
    """A document that is not sound, or that a format cannot hold. `reason` is one of a few phrases to count by."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


IMPOSSIBLE = "an entity with offsets that cannot be"
MISALIGNED = "an entity whose text is not what stands at its offsets"
UNSOUND_TOKENS = "tokens with offsets that cannot be"
UNSOUND_PASSAGES = "passages with offsets that cannot be"
LONGEST_ID = 80  # characters that are told of an id


class LeftOut(NamedTuple):
    """Something sound that is not read, because it is no entity: a relation, a note."""

    reason: str


Item = Document | Unusable | LeftOut
"""What a format's reader gives: documents, those that cannot be used, and what it reads over."""

Write = Callable[[Document], None]
"""Appends a document to an open file or folder, or raises Unfit."""


def numbered_lines(path: Path) -> Iterator[Record | Unusable]:
    r"""The lines of a text file, unpacked where it is gzip; they end at \n or \r\n and nowhere else."""
    return line_rows(Table(path=InputFile.parse(str(path)), format="lines"), [0])


def whole_text(path: Path) -> str:
    """The text of a file, to the character: line ends and a byte order mark stay. Raises Unfit when it is not UTF-8."""
    try:
        with open_input(str(path)) as stream:
            return stream.read().decode()
    except UnicodeDecodeError as error:
        raise Unfit("not valid UTF-8", f"byte {error.start:,} of the file, counted from 0") from None
    except (EOFError, OSError, zlib.error) as error:
        raise Unfit("a file that is cut off or damaged", type(error).__name__) from None


@contextmanager
def text_file(
    path: Path, rendered: Callable[[Document], str], head: str = "", between: str = "", tail: str = ""
) -> Iterator[Write]:
    """A file of rendered documents, one after the other; it is whole or not there."""
    with atomic_write(path) as building, building.open("w", encoding="utf-8", newline="\n") as file:
        file.write(head)
        separators = iter([""])

        def write(document: Document) -> None:
            text = rendered(document)
            file.write(next(separators, between) + text)

        yield write
        file.write(tail)


def refuse(fault: Unusable, rejects: TakesRejects | None) -> None:
    """Counts what cannot be used, or raises RequestError where nobody counts."""
    if rejects is None:
        detail = f" ({fault.detail})" if fault.detail else ""
        raise RequestError(f"{place_of(fault)}: {fault.reason}{detail}. Mend or remove this record.")
    rejects.add(fault.file, fault.line, fault.reason, fault.record, fault.detail)


def place_of(fault: Unusable) -> str:
    """File and line, and the id of the record where a line does not tell which one it is."""
    return f"{fault.file}, line {fault.line:,}" + (f", record {fault.record}" if fault.record else "")


def told_id(value: object) -> str:
    """An id as errors and rejects, which are UTF-8, name it; empty for what is no id, withheld in sensitive data."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        return ""
    return WITHHELD if is_sensitive() else str(value)[:LONGEST_ID].encode(errors="replace").decode()


def numbered(items: Iterable[Any]) -> Iterator[Any]:
    """The items of files; those that cannot be used go by their number in their file where ids are withheld."""
    numbers = Counter[str]()
    for item in items:
        if not isinstance(item, LeftOut):
            numbers[item.file] += 1
        is_unnamed = isinstance(item, Unusable) and item.record == WITHHELD
        yield item._replace(record=f"{numbers[item.file]:,}") if is_unnamed else item


def pieces(entity: Entity) -> tuple[Span, ...]:
    """The spans of an entity: one, or its fragments."""
    return entity.fragments or ((entity.start, entity.end),)


def mention(text: str, entity: Entity) -> str:
    """The text of an entity; fragments are joined by a space, as brat does it."""
    return " ".join(text[start:end] for start, end in pieces(entity))


def check_document(document: Document) -> None:
    """Raises Unfit for offsets that cannot be and for characters that no file can hold."""
    check_entities(document.text, document.entities)
    check_parts(document)
    try:
        "".join([document.id, document.text, *(entity.type for entity in document.entities)]).encode()
    except UnicodeEncodeError:
        raise Unfit("half of a surrogate pair", "not valid Unicode") from None


class Format(NamedTuple):
    """How documents of a format are read, and how its files are written; None where it cannot be.

    check: raises Unfit for a document that the format cannot hold, before there is a file.
    """

    read: Callable[[Path], Iterator[Item]] | None
    writing: Callable[[Path], AbstractContextManager[Write]] | None = None
    check: Callable[[Document], object] = check_document


def check_entities(text: str, entities: Sequence[Entity], mentions: Sequence[str | None] = ()) -> None:
    """Raises Unfit for spans that are empty, outside of `text` or out of order, and for mentions that are not there."""
    outside = [place for place, entity in enumerate(entities) if not _is_inside(entity, len(text))]
    if outside:
        raise Unfit(IMPOSSIBLE, _which(outside, entities))
    pairs = enumerate(zip(entities, mentions, strict=False))
    wrong = [place for place, (entity, told) in pairs if told is not None and not _stands_there(text, entity, told)]
    if wrong:
        raise Unfit(MISALIGNED, _which(wrong, entities))


def check_parts(document: Document) -> None:
    """Raises Unfit for passages outside of the text, and for tokens that are too, empty, or not one after the other."""
    length = len(document.text)
    if not all(0 <= passage.start <= passage.end <= length for passage in document.passages):
        raise Unfit(UNSOUND_PASSAGES, f"expected start and end from 0 to {length:,}")
    end = 0
    for token in chain.from_iterable(document.sentences):
        if not end <= token[0] < token[1] <= length:
            expected = f"expected each behind the one before, the last one's end at {length:,} at most"
            raise Unfit(UNSOUND_TOKENS, f"the first at {token[0]:,} to {token[1]:,}; {expected}")
        end = token[1]


def joined(spans: Iterable[Span]) -> tuple[int, int, tuple[Span, ...]]:
    """Start, end and fragments of an entity that stands at `spans`; those that touch become one."""
    merged: list[Span] = []
    for start, end in spans:
        if merged and start == merged[-1][1]:
            start = merged.pop()[0]
        merged.append((start, end))
    return merged[0][0], merged[-1][1], tuple(merged) if len(merged) > 1 else ()


def in_one_piece(document: Document, kept_by: str) -> None:
    """Raises Unfit for discontinuous entities, which `kept_by` cannot hold."""
    broken = [place for place, entity in enumerate(document.entities) if entity.fragments]
    if broken:
        raise Unfit("a discontinuous entity", f"{_which(broken, document.entities)}; {kept_by} holds spans")


def _is_inside(entity: Entity, length: int) -> bool:
    spans = pieces(entity)
    borders = [border for span in spans for border in span]
    is_rising = all(start < end for start, end in spans) and borders == sorted(borders)
    is_whole = (entity.start, entity.end) == (borders[0], borders[-1])
    return is_rising and is_whole and entity.start >= 0 and entity.end <= length


def _stands_there(text: str, entity: Entity, told: str) -> bool:
    """Whether `told` is the text of the entity; line breaks may have become spaces, as in formats of lines."""
    found = {mention(text, entity), text[entity.start : entity.end]}
    return told in found or _on_a_line(told) in map(_on_a_line, found)


def _on_a_line(text: str) -> str:
    return "".join(" " if character.isspace() else character for character in text)


def _which(places: Sequence[int], entities: Sequence[Entity]) -> str:
    first = entities[places[0]]
    return f"{len(places):,} of {len(entities):,} entities, the first at {first.start:,} to {first.end:,}"
