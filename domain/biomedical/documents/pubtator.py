"""PubTator: `id|t|title`, `id|a|abstract`, then a line for each entity: id, start, end, text, type and identifier.

Offsets run over the title, one space and the abstract, which together are the text. Relations are left out.
An entity without identifier has `-` in its place: lines of five fields are relations to other readers.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from bertrelay.data.tables import Record, Unusable
from domain.biomedical.documents.document import Document, Entity, Item, LeftOut, Passage, Unfit, numbered_lines
from domain.biomedical.documents.soundness import IMPOSSIBLE, check_entities

PART = re.compile(r"([^|\t]+)\|([ta])\|(.*)", re.DOTALL)
OFFSET = re.compile(r"\d{1,15}", re.ASCII)
NO_IDENTIFIER = "-"
RELATION, PARTS_OF_MENTION = "a relation", "a list of individual mentions"
TITLE, ABSTRACT = "title", "abstract"


def read(path: Path) -> Iterator[Item]:
    """Streams the documents of a file; blank lines or the next title end one."""
    block: list[Record | Unusable] = []
    for row in numbered_lines(path):
        text = row.values[0] if isinstance(row, Record) else ""
        part, is_blank = PART.fullmatch(text), isinstance(row, Record) and not text.strip()
        if block and (is_blank or (part and part[2] == "t")):
            yield from _items(block, str(path))
            block = []
        if not is_blank:
            block.append(row)
    if block:
        yield from _items(block, str(path))


def _items(block: Sequence[Record | Unusable], file: str) -> Iterator[Item]:
    """The document in the lines of `block`, and what is left out of it."""
    lines = [row for row in block if isinstance(row, Record)]
    if len(lines) < len(block):
        yield next(row for row in block if isinstance(row, Unusable))
        return
    try:
        name, text, passages = _heading([row.values[0] for row in lines[:2]])
        entities, mentions = list[Entity](), list[str]()
        for row in lines[2:]:
            fields = row.values[0].split("\t")
            if not _is_entity(fields, name, row.line):
                yield LeftOut(RELATION)
                continue
            identifier = next((field for field in fields[5:6] if field not in ("", NO_IDENTIFIER)), None)
            entities.append(Entity(int(fields[1]), int(fields[2]), fields[4], identifier=identifier))
            mentions.append(fields[3])
            yield from [LeftOut(PARTS_OF_MENTION)] * (len(fields) > 6)
        check_entities(text, entities, mentions)
        yield Document(name, text, tuple(entities), passages, file=file, line=lines[0].line)
    except Unfit as fault:
        yield Unusable(file, lines[0].line, fault.reason, fault.detail)


def _heading(lines: Sequence[str]) -> tuple[str, str, tuple[Passage, ...]]:
    """Id, text and passages of a document; one without abstract ends with its title."""
    title, abstract = [*map(PART.fullmatch, lines), None][:2]
    if title is None or title[2] != "t":
        raise Unfit("no title line", "expected id|t|title where a document begins")
    if abstract is None or abstract[1] != title[1] or abstract[2] != "a":
        raise Unfit("no abstract line", "expected id|a|abstract after the title; is the file cut off here?")
    text = title[3]
    passages: tuple[Passage, ...] = (Passage(0, len(text), TITLE),)
    if abstract[3]:
        text = f"{title[3]} {abstract[3]}"
        passages += (Passage(len(title[3]) + 1, len(text), ABSTRACT),)
    return title[1], text, passages


def _is_entity(fields: Sequence[str], name: str, number: int) -> bool:
    """Whether a line is of an entity or of a relation. Raises Unfit when it is neither."""
    if fields[0] != name:
        raise Unfit("an annotation of another document", f"line {number:,} begins with another id")
    if len(fields) >= 4 and fields[1][:1].isalpha():  # the kind of a relation; its arguments may be numbers
        return False
    expected = f"line {number:,}: expected id, start, end, text, type and identifier with tabs between them"
    if len(fields) < 5:
        raise Unfit("an annotation with too few fields", f"{expected}; is the file cut off here?")
    if not all(OFFSET.fullmatch(field) for field in fields[1:3]):
        raise Unfit(IMPOSSIBLE, f"{expected}, start and end in digits alone")
    if not fields[4]:
        raise Unfit("an entity without a type", expected)
    return True
