"""PubTator: `id|t|title`, `id|a|abstract`, then a line for each entity: id, start, end, text, type and identifier.

The text is the title, one space and the abstract; offsets count its characters. Relations are left out.
`-` stands for a missing identifier, as other readers take lines of five fields for relations.
"""

import re
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bertrelay.data.tables import Record, Rejected
from bertrelay.progress import log
from domain.biomedical.documents.document import ANNOTATED, Document, Entity, Item, Passage, Reading, numbered_lines
from domain.biomedical.documents.soundness import IMPOSSIBLE, Annotation, check_contiguous, placed
from domain.biomedical.documents.writing import Write, Writer, open_text_file

HEADING = re.compile(r"[^|\t]+\|[^|\t]*\|")
PART = re.compile(r"([^|\t]+)\|([ta])\|(.*)", re.DOTALL)
OFFSET = re.compile(r"-?\d{1,15}", re.ASCII)
FIELDS_OF_RELATION = (4, 5)  # id, kind and two arguments, and with BioRED whether it is new
NO_IDENTIFIER = "-"
RELATION, PARTS_OF_MENTION = "a relation", "a list of individual mentions"
TITLE, ABSTRACT = "title", "abstract"


def read(path: Path, reading: Reading = ANNOTATED) -> Iterator[Item]:
    """Streams the documents of a file, each with the annotations below it, also after blank lines.

    A document with annotations below another document is unusable; a first pass over the file finds these.
    """
    apart = set[str]() if reading.only_text else _apart(path)
    for block in _blocks(path):
        yield from _items(block, str(path), apart, reading)


def _blocks(path: Path) -> Iterator[list[Record | Rejected]]:
    """The lines of each document, without blank ones.

    A title begins a document; so does, after a blank line, an abstract or an unreadable line.
    """
    block, is_after_blank = list[Record | Rejected](), False
    for row in numbered_lines(path):
        text = row.values[0] if isinstance(row, Record) else ""
        if isinstance(row, Record) and not text.strip():
            is_after_blank = True
            continue
        part = PART.fullmatch(text)
        begins = part is not None or isinstance(row, Rejected)
        if block and ((part and part[2] == "t") or (begins and is_after_blank)):
            yield block
            block = []
        block.append(row)
        is_after_blank = False
    if block:
        yield block


def _apart(path: Path) -> set[str]:
    """The ids of annotations that are below another document, or below none."""
    names = set[str]()
    for block in _blocks(path):
        texts = [row.values[0] for row in block if isinstance(row, Record)]
        title = PART.match(texts[0]) if texts else None
        document = title[1] if title and title[2] == "t" else None
        annotations = (text.partition("\t") for text in texts if "\t" in text)
        names.update(name for name, _, _ in annotations if name != document and "|" not in name)
    return names


def _items(block: Sequence[Record | Rejected], file: str, apart: Container[str], reading: Reading) -> Iterator[Item]:
    """The document in the lines of `block`, and its annotations that are left out.

    apart: ids of documents with annotations elsewhere.
    """
    lines = [row for row in block if isinstance(row, Record)]
    if len(lines) < len(block):
        yield next(row for row in block if isinstance(row, Rejected))
        return
    try:
        name, text, passages = _heading([row.values[0] for row in lines[:2]])
        if name in apart:
            raise Rejected("annotations apart from their document", "put the lines with its id below its abstract")
        annotations = list[Annotation]()
        for row in [] if reading.only_text else lines[2:]:
            fields = row.values[0].split("\t")
            if not _is_entity(fields, name, row.line):
                yield Rejected(RELATION, is_fault=False)
                continue
            identifier = next((field for field in fields[5:6] if field not in ("", NO_IDENTIFIER)), None)
            entity = Entity(int(fields[1]), int(fields[2]), fields[4], identifier=identifier)
            annotations.append(Annotation(entity, fields[3], file, row.line))
            yield from [Rejected(PARTS_OF_MENTION, is_fault=False)] * (len(fields) > 6)
        entities, misplaced = placed(text, annotations)
        yield Document(name, text, entities, passages, file=file, line=lines[0].line, misplaced=misplaced)
    except Rejected as fault:
        yield fault.at(file, lines[0].line)


def _heading(lines: Sequence[str]) -> tuple[str, str, tuple[Passage, ...]]:
    """Id, text and passages of a document; without an abstract the text ends with the title."""
    title, abstract = [*map(PART.fullmatch, lines), None][:2]
    if title is None or title[2] != "t":
        raise Rejected("no title line", "expected id|t|title where a document begins")
    if abstract is None or abstract[1] != title[1] or abstract[2] != "a":
        raise Rejected("no abstract line", "expected id|a|abstract after the title; is the file cut off here?")
    text = title[3]
    passages: tuple[Passage, ...] = (Passage(0, len(text), TITLE),)
    if abstract[3]:
        text = f"{title[3]} {abstract[3]}"
        passages += (Passage(len(title[3]) + 1, len(text), ABSTRACT),)
    return title[1], text, passages


def _is_entity(fields: Sequence[str], name: str, number: int) -> bool:
    """True for the line of an entity, False for that of a relation. Raises Rejected for any other line."""
    if len(fields) == 1 or HEADING.match(fields[0]):
        expected = f"line {number:,}: expected id|t|title, id|a|abstract, or an annotation with tabs between its fields"
        raise Rejected("a line that is neither title, abstract nor annotation", expected)
    if fields[0] != name:
        raise Rejected("an annotation of another document", f"line {number:,} begins with another id")
    if len(fields) in FIELDS_OF_RELATION and fields[1][:1].isalpha():  # its kind; its arguments may be numbers
        return False
    expected = f"line {number:,}: expected id, start, end, text, type and identifier with tabs between them"
    if len(fields) < 5:
        raise Rejected("an annotation with too few fields", f"{expected}; is the file cut off here?")
    if not all(OFFSET.fullmatch(field) for field in fields[1:3]):
        raise Rejected(IMPOSSIBLE, f"{expected}, start and end in digits")
    if not fields[4]:
        raise Rejected("an entity without a type", expected)
    return True


LINE_BREAKS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
"""Characters that some reader takes for the end of a line, such as `str.splitlines`."""
LINE_BREAK = re.compile(rf"\r\n|[{LINE_BREAKS}]")
PUBTATOR_ID = re.compile(rf"[^|\t\0\ufeff{LINE_BREAKS}]+")
NO_PUBTATOR_FIELD = re.compile(rf"[\t\0{LINE_BREAKS}]")


@contextmanager
def _open_file(path: Path, rendered: Callable[[Document], str]) -> Iterator[Write]:
    """Opens a file of documents with a blank line after each. Logs the number of line breaks that became spaces."""
    line_breaks: list[int] = []  # of each document
    with open_text_file(path, rendered) as write:

        def write_and_count(document: Document) -> None:
            write(document)
            line_breaks.append(len(LINE_BREAK.findall(document.text)))

        yield write_and_count
    if any(line_breaks):
        log(
            f"{path}: {sum(line_breaks):,} line breaks in {sum(map(bool, line_breaks)):,} documents became spaces of "
            "the same length, because PubTator has one line for a title and one for an abstract; offsets are unchanged"
        )


def render(document: Document) -> str:
    """The lines of a document, its line breaks as spaces of the same length.

    Raises Rejected for a document that they cannot hold.
    """
    check_contiguous(document, "a line")
    if not PUBTATOR_ID.fullmatch(document.id):
        raise Rejected("an id that no line can hold", "an empty one, or one with |, a tab or a line break in it")
    if "\0" in document.text:
        raise Rejected("NUL in the text", "no line can hold it")
    text = LINE_BREAK.sub(lambda match: " " * len(match[0]), document.text)
    title, abstract = _title_and_abstract(replace(document, text=text))
    lines = [f"{document.id}|t|{title}", f"{document.id}|a|{abstract}"]
    for entity in document.entities:
        fields = [text[entity.start : entity.end], entity.type, entity.identifier or NO_IDENTIFIER]
        if not entity.type or any(NO_PUBTATOR_FIELD.search(field) for field in fields):
            raise Rejected("an entity that no line can hold", "without a type, or with a tab or a line break in it")
        lines.append("\t".join([document.id, str(entity.start), str(entity.end), *fields]))
    return "\n".join([*lines, "", ""])


def _title_and_abstract(document: Document) -> tuple[str, str]:
    """Title and abstract of a document that has these two with one space between them; else the text and nothing."""
    text = document.text
    if [passage.kind for passage in document.passages] == [TITLE, ABSTRACT]:
        title, abstract = document.passages
        is_whole = (title.start, abstract.end) == (0, len(text)) and abstract.start < len(text)
        if is_whole and text[title.end : abstract.start] == " ":
            return text[: title.end], text[abstract.start :]
    return text, ""


WRITER = Writer(render, _open_file)
