"""Documents with entities: the records that all formats, checks and tasks share, what makes them sound, and reading.

Offsets count Python characters (Unicode code points) from 0; `end` is after the last one, so that
`document.text[entity.start : entity.end]` is the entity. No offset ever shifts: the text stays as it was read.
"""

import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bertrelay.data.readers import line_rows, open_input
from bertrelay.data.records import Rejects
from bertrelay.data.tables import Record, Table, Unusable
from bertrelay.errors import RequestError
from bertrelay.privacy import WITHHELD, is_sensitive
from bertrelay.progress import log
from bertrelay.settings import InputFile

Span = tuple[int, int]
"""Start and end, in characters."""


@dataclass(frozen=True, slots=True)
class Entity:
    """A mention in a text.

    confidence: the probability that a model gives to this span and type; None in annotated data.
    identifier: of the concept in a terminology, `MESH:D003643` for example.
    fragments: the spans of a discontinuous entity, in order, from `start` to `end`; empty for a contiguous one.
    text: its characters, which its document fills in; fragments are joined by a space.
    """

    start: int
    end: int
    type: str
    confidence: float | None = None
    identifier: str | None = None
    fragments: tuple[Span, ...] = ()
    text: str = field(default="", compare=False)

    @property
    def spans(self) -> tuple[Span, ...]:
        """One span, or its fragments."""
        return self.fragments or ((self.start, self.end),)

    def in_text(self, text: str) -> "Entity":
        """The entity with the characters of `text` that it covers."""
        own = " ".join(text[start:end] for start, end in self.spans)
        return self if own == self.text else replace(self, text=own)


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "entities", tuple(entity.in_text(self.text) for entity in self.entities))

    def to_spacy(self, nlp: Any = None) -> Any:
        """A spaCy `Doc` by the tokenizer of the pipeline `nlp`, a blank English one when not given.

        `doc.ents` has the entities with their types as labels and their identifiers as knowledge base ids, widened to
        whole tokens; of overlapping ones the longest, and `doc.spans["entities"]` all.
        Raises RequestError where spaCy is not installed.
        """
        try:
            spacy, util = import_module("spacy"), import_module("spacy.util")
        except ImportError:
            raise RequestError("to_spacy needs spaCy, which is not installed; pip install spacy") from None
        doc = (nlp or spacy.blank("en")).make_doc(self.text)
        spans = [
            doc.char_span(each.start, each.end, each.type, kb_id=each.identifier or "", alignment_mode="expand")
            for each in self.entities
        ]
        doc.spans["entities"] = spans
        doc.ents = util.filter_spans(spans)
        return doc


class Unfit(Exception):
    """A document that is not sound, or that a format cannot hold. `reason` is one of a few phrases to count by."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


IMPOSSIBLE = "an entity with offsets that cannot be"
MISALIGNED = "an entity whose text is not at its offsets"
MAX_LINES = 1 << 40  # of a file


class LeftOut(NamedTuple):
    """Something sound that is not read, because it is no entity: a relation, a note."""

    reason: str


AnyRecord = TypeVar("AnyRecord")
"""Of a file: a document, a sentence or a question."""
Item = Document | Unusable | LeftOut
"""What a format's reader yields: documents, unusable ones, and what it leaves out."""

Write = Callable[[Document], None]
"""Appends a document to an open file or folder, or raises Unfit."""


# Reading, of documents and questions alike


def usable(
    items: Iterable[AnyRecord | Unusable | LeftOut], rejects: Rejects | None = None, log_as: str | None = "left out"
) -> Iterator[AnyRecord]:
    """The records among the items; `rejects` counts the used and the unusable ones.

    Without `rejects` the first unusable record raises RequestError.
    log_as: what the counts of the rest, by reason, are logged as in the end; None where they are not.
    """
    left_out = Counter[str]()
    for item in items:
        if isinstance(item, LeftOut):
            left_out[item.reason] += 1
        elif not isinstance(item, Unusable):
            if rejects is not None:
                rejects.used()
            yield item
        elif rejects is None:
            raise RequestError(f"{place_of(item)}: {item.reason}{_in_brackets(item)}. Fix or remove this record.")
        else:
            rejects.add(item.file, item.line, item.reason, item.record, item.detail)
    if left_out and log_as:
        log(f"{log_as}: " + ", ".join(f"{count:,} × {reason}" for reason, count in left_out.most_common()))


def with_distinct_ids(
    items: Iterable[AnyRecord | Unusable | LeftOut], reason: str
) -> Iterator[AnyRecord | Unusable | LeftOut]:
    """The items; a record with the id of an earlier one becomes unusable. 150 bytes are kept of each.

    Where ids are withheld, unusable records go by their number in their file.
    """
    seen: dict[int, int] = {}  # hash of an id to the file's number and the line
    files, number = list[str](), 0
    for item in items:
        record: Any = item
        if isinstance(item, LeftOut):
            yield item
            continue
        if files[-1:] != [record.file]:
            files.append(record.file)
            number = 0
        number += 1
        if not isinstance(item, Unusable):
            first = seen.get(hash(record.id))
            if first is None:
                seen[hash(record.id)] = (len(files) - 1) * MAX_LINES + record.line
                yield item
                continue
            file, line = files[first // MAX_LINES], first % MAX_LINES
            detail = f"the first with it is in {file}, line {line:,}; give each one of its own"
            record = Unusable(record.file, record.line, reason, detail, shown_id(record.id))
        yield record._replace(record=f"{number:,}") if record.record == WITHHELD else record


def place_of(fault: Unusable) -> str:
    """File and line, and the id of the record where a line may hold several."""
    return f"{fault.file}, line {fault.line:,}" + (f", record {fault.record}" if fault.record else "")


def _in_brackets(fault: Unusable) -> str:
    return f" ({fault.detail})" if fault.detail else ""


def reasons(rows: Sequence[Unusable]) -> str:
    """How many unusable records there are of each reason, and the first of them."""
    first = {row.reason: f"{place_of(row)}{_in_brackets(row)}" for row in reversed(rows)}
    counts = Counter(row.reason for row in rows).most_common()
    return "; ".join(f"{count:,} × {reason}; the first is {first[reason]}" for reason, count in counts)


def shown_id(value: object) -> str:
    """An id as errors and rejects, which are UTF-8, show it; empty for what is no id, withheld in sensitive data."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        return ""
    return WITHHELD if is_sensitive() else str(value)[:80].encode(errors="replace").decode()


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


# What makes a document sound


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


def joined(spans: Iterable[Span]) -> tuple[int, int, tuple[Span, ...]]:
    """Start, end and fragments of an entity that covers `spans`; those that touch become one."""
    merged: list[Span] = []
    for start, end in spans:
        if merged and start == merged[-1][1]:
            start = merged.pop()[0]
        merged.append((start, end))
    return merged[0][0], merged[-1][1], tuple(merged) if len(merged) > 1 else ()


def _is_inside(entity: Entity, length: int) -> bool:
    borders = [border for span in entity.spans for border in span]
    is_rising = all(start < end for start, end in entity.spans) and borders == sorted(borders)
    is_whole = (entity.start, entity.end) == (borders[0], borders[-1])
    return is_rising and is_whole and entity.start >= 0 and entity.end <= length


def _matches(text: str, entity: Entity, mention: str) -> bool:
    """Whether `mention` is the text of the entity; line breaks may have become spaces, as in formats of lines."""
    whole, *found = (
        re.sub(r"\s", " ", each) for each in (mention, entity.in_text(text).text, text[entity.start : entity.end])
    )
    return whole in found
