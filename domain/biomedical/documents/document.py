"""Documents with entities: the records that all formats, checks and tasks share, and how files of them are read.

Offsets count Python characters (Unicode code points) from 0; `end` is after the last one, so that
`document.text[entity.start : entity.end]` is the entity. No offset ever shifts: the text stays as it was read.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from bertrelay.data.encodings import remedy
from bertrelay.data.readers import line_rows
from bertrelay.data.records import ROUNDED_ID, Rejects, is_rounded
from bertrelay.data.tables import Record, Table, Unusable
from bertrelay.errors import RequestError
from bertrelay.privacy import WITHHELD, is_sensitive
from bertrelay.progress import log
from bertrelay.settings import InputFile
from domain.text.sentences import sentence_spans
from domain.text.words import word_spans

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
        return self.fragments or ((self.start, self.end),)

    def in_text(self, text: str) -> "Entity":
        """The entity with the characters of `text` that it covers."""
        own = " ".join(text[start:end] for start, end in self.spans)
        return self if own == self.text else replace(self, text=own)


class Misplaced(NamedTuple):
    """An entity of a file whose offsets are wrong: why, and the place of its annotation."""

    entity: Entity
    reason: str
    file: str
    line: int


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
    misplaced: its annotations at wrong offsets, which are none of `entities`; only a reader's documents have them.
    fields: further fields of JSONL, by name, that were to be kept.
    """

    id: str
    text: str
    entities: tuple[Entity, ...] = ()
    passages: tuple[Passage, ...] = ()
    sentences: tuple[tuple[Span, ...], ...] = ()
    file: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)
    misplaced: tuple[Misplaced, ...] = field(default=(), compare=False)
    fields: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "entities", tuple(entity.in_text(self.text) for entity in self.entities))

    def as_unusable(self) -> Unusable:
        """What a document with misplaced entities is where it cannot be used."""
        first = self.misplaced[0]
        same = sum(each.reason == first.reason for each in self.misplaced)
        annotations = len(self.entities) + len(self.misplaced)
        place = f"the first at {first.entity.start:,} to {first.entity.end:,}"
        detail = f"{same:,} of {annotations:,} entities, {place}"
        return Unusable(first.file, first.line, first.reason, detail, shown_id(self.id))

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


def sentences_of(document: Document) -> list[list[Span]]:
    """The words of each sentence of a text. Sentences with an entity over their border become one."""
    spans = sorted((entity.start, entity.end) for entity in document.entities)
    reach = [0, *accumulate((end for _, end in spans), max)]  # how far those reach that begin before a place
    borders: list[Span] = []
    for start, end in sentence_spans(document.text):
        if borders and reach[bisect_left(spans, (start, 0))] > start:
            start = borders.pop()[0]
        borders.append((start, end))
    return [words for start, end in borders if (words := word_spans(document.text, start, end))]


class Unfit(Exception):
    """A document that is not sound, or that a format cannot hold. `reason` is one of a few phrases to count by."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


class Reading(NamedTuple):
    """What of documents is read.

    only_text: whether annotations are passed over, sound or not, as those of texts to be tagged are.
    misplaced: what becomes of a document with entities at wrong offsets: `reject` makes it unusable, `drop` leaves out
        these entities, `keep` gives the document with them.
    keep: names of further fields of JSONL that documents keep; one that a line lacks is None.
    """

    only_text: bool = False
    misplaced: Literal["reject", "drop", "keep"] = "reject"
    keep: tuple[str, ...] = ()


ANNOTATED, TEXT_ONLY = Reading(), Reading(only_text=True)
LEFT_OUT = "only entities at their places are read; left out"

MAX_LINES = 1 << 40  # of a file
NAME_FORMAT = (
    "If it is of another format, name that: `ner tag --input-format`, `data check --format`, `format` in a recipe."
)


class LeftOut(NamedTuple):
    """Something sound that is not read, because it is no entity: a relation, a note."""

    reason: str


AnyRecord = TypeVar("AnyRecord")
"""Of a file: a document, a sentence or a question."""
Item = Document | Unusable | LeftOut
"""What a format's reader yields: documents, unusable ones, and what it leaves out."""


# Reading, of documents and questions alike


def usable(
    items: Iterable[AnyRecord | Unusable | LeftOut],
    rejects: Rejects | None = None,
    log_as: str | None = "left out",
    source: Path | str = "",
) -> Iterator[AnyRecord]:
    """The records among the items; `rejects` counts the used and the unusable ones.

    Without `rejects` the first unusable record raises RequestError.
    log_as: what the counts of the rest, by reason, are logged as in the end; None where they are not.
    source: the folder or file of all items, by which rejects are counted: a folder may have a file for each.
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
            raise RequestError(f"{place_of(item)}: {item.reason}{_in_brackets(item)}. {remedy(item, 'record')}")
        else:
            rejects.add(item.file, item.line, item.reason, item.record, item.detail, str(source))
    if left_out and log_as:
        log(f"{log_as}: " + ", ".join(f"{count:,} × {reason}" for reason, count in left_out.most_common()))


def with_placed_entities(items: Iterable[Item], reading: Reading) -> Iterator[Item]:
    """The items, with misplaced entities treated as `reading` says."""
    for item in items:
        if not isinstance(item, Document) or not item.misplaced or reading.misplaced == "keep":
            yield item
        elif reading.misplaced == "reject":
            yield item.as_unusable()
        else:
            yield from (LeftOut(each.reason) for each in item.misplaced)
            yield replace(item, misplaced=())


def with_distinct_ids(
    items: Iterable[AnyRecord | Unusable | LeftOut], reason: str
) -> Iterator[AnyRecord | Unusable | LeftOut]:
    """The items; a record with the id of an earlier one, or a rounded one, becomes unusable. Each keeps 150 bytes.

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
        if not isinstance(item, Unusable) and is_rounded(record.id):
            record = Unusable(record.file, record.line, ROUNDED_ID, record=shown_id(record.id))
        elif not isinstance(item, Unusable):
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


def file_in(folder: Path, number: int, file: Path) -> str:
    """A file of a folder as errors and rejects name it: sensitive files, whose names may be ids, by their number."""
    return f"{folder}, document {number:,}" if file != folder and is_sensitive() else str(file)


def numbered_lines(path: Path) -> Iterator[Record | Unusable]:
    r"""The lines of a text file, unpacked where it is gzip; they end at \n or \r\n and nowhere else."""
    return line_rows(Table(path=InputFile.parse(str(path)), format="lines"), [0])
