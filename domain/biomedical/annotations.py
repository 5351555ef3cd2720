"""What is read, tagged and written: documents with entities, and sentences of tokens with tags.

Offsets count Python characters (Unicode code points) from 0; `end` stands after the last one, so that
`document.text[entity.start : entity.end]` is the entity. No offset ever shifts: the text stays as it was read.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

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
