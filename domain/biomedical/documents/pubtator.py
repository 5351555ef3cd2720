"""PubTator: `id|t|title`, `id|a|abstract`, then a line for each entity: id, start, end, text, type and identifier.

The text is the title, one space and the abstract; offsets count its characters. `-` stands for a missing identifier, as
other readers take lines of five fields for relations. A seventh field has the names of the individual mentions of a
composite one, or a probability.

A relation is a line of id, type and the identifiers of two concepts, and in BioRED `Novel` or `No`. BioREDirect adds a
line of id, two identifiers and `Subject:` with one of them. Chemical and disease of a `CID` relation have these roles.
"""

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import Any

from bertrelay.data.tables import Record, Rejected
from bertrelay.progress import log
from domain.biomedical.documents.document import (
    ANNOTATED,
    Argument,
    Document,
    Entity,
    Item,
    Passage,
    Reading,
    Relation,
    numbered_lines,
)
from domain.biomedical.documents.losses import (
    KINDS,
    Counts,
    keep_entities,
    keep_parts,
    keep_relations,
    no_relation,
    remove_parts,
    remove_relation_parts,
)
from domain.biomedical.documents.soundness import DISCONTINUOUS, IMPOSSIBLE, Annotation, check_contiguous, placed
from domain.biomedical.documents.writing import Write, Writer, open_text_file

HEADING = re.compile(r"[^|\t]+\|[^|\t]*\|")
PART = re.compile(r"([^|\t]+)\|([ta])\|(.*)", re.DOTALL)
OFFSET = re.compile(r"-?\d{1,15}", re.ASCII)
FIELDS_OF_RELATION = (4, 5)  # id, kind and two arguments, and with BioRED whether it is new
PROBABILITY = re.compile(r"[01]?\.\d+(?:[eE]-\d+)?|\d(?:\.\d+)?[eE]-\d+", re.ASCII)
NO_IDENTIFIER = "-"
NOVEL = {"Novel": True, "No": False}
CID, ROLES_OF_CID = "CID", ("Chemical", "Disease")
SUBJECT, ROLES_OF_SUBJECT = "Subject:", ("subject", "object")
SUBJECT_ROLE = ROLES_OF_SUBJECT[0]
FIELDS_OF_ENTITY = 7
LACKS = ("identifier_score", "confidence", "database", "sentences", "fields")
BETWEEN_PARTS = "|"
TITLE, ABSTRACT = "title", "abstract"
NO_SUCH_RELATION, OTHER_FIELD = "the subject of no relation", "a further field of a line"


def read(path: Path, reading: Reading = ANNOTATED) -> Iterator[Item]:
    """Streams the documents of a file, each with the annotations below it, also after blank lines.

    A document with annotations below another document is unusable; a first pass over the file finds these.
    With `repeated_ids` as passages, records of one id that follow one another are a document, a line break between
    them; it is unusable if one of them is.
    """
    apart = set[str]() if reading.only_text else _apart(path)
    if reading.repeated_ids == "error":
        for block in _blocks(path):
            yield from _items(block, str(path), apart, reading)
        return
    for _, blocks in groupby(_blocks(path), key=_id_or_line):
        yield from _one_document(item for block in blocks for item in _items(block, str(path), apart, reading))


def _id_or_line(block: Sequence[Record | Rejected]) -> str | int:
    """The id of a record, or the number of its first line if it has none."""
    part = PART.match(block[0].values[0]) if isinstance(block[0], Record) else None
    return part[1] if part else block[0].line


def _one_document(items: Iterable[Item]) -> Iterator[Item]:
    """The document of the records of one id, or the first fault among them; and what is left out."""
    records, faults = list[Document](), list[Rejected]()
    for item in items:
        if isinstance(item, Document):
            records.append(item)
        elif item.is_fault:
            faults.append(item)
        else:
            yield item
    if faults:
        yield faults[0]
        return
    offsets = list(accumulate((len(record.text) + 1 for record in records), initial=0))
    shifted = [_shifted(record, offset) for record, offset in zip(records, offsets, strict=False)]
    content: dict[str, Any] = {
        name: tuple(chain.from_iterable(getattr(record, name) for record in shifted))
        for name in ("entities", "misplaced", "passages", "relations")
    }
    yield replace(records[0], text="\n".join(record.text for record in records), **content)


def _shifted(record: Document, offset: int) -> Document:
    """The record with annotations and passages that begin `offset` characters later; its text stays."""

    def moved(entity: Entity) -> Entity:
        fragments = tuple((start + offset, end + offset) for start, end in entity.fragments)
        return replace(entity, start=entity.start + offset, end=entity.end + offset, fragments=fragments)

    passages = (passage._replace(start=passage.start + offset, end=passage.end + offset) for passage in record.passages)
    misplaced = (entity._replace(entity=moved(entity.entity)) for entity in record.misplaced)
    entities = tuple(map(moved, record.entities))
    return replace(record, entities=entities, misplaced=tuple(misplaced), passages=tuple(passages))


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
        annotations, relations = list[Annotation](), list[Relation]()
        for row in [] if reading.only_text else lines[2:]:
            fields = row.values[0].split("\t")
            if _is_entity(fields, name, row.line):
                annotations.append(Annotation(_entity(fields), fields[3], file, row.line))
            elif left_out := _add_relation(fields, relations):
                yield Rejected(left_out, is_fault=False)
            if len(fields) > FIELDS_OF_ENTITY:
                yield Rejected(OTHER_FIELD, is_fault=False)
        entities, misplaced, between = placed(text, annotations, relations)
        yield Document(
            name,
            text,
            entities,
            passages,
            relations=between,
            file=file,
            line=lines[0].line,
            misplaced=misplaced,
        )
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
    is_subject = len(fields) == 4 and fields[3].startswith(SUBJECT)
    if is_subject or (len(fields) in FIELDS_OF_RELATION and fields[1][:1].isalpha()):  # a type; concepts may be numbers
        return False
    expected = f"line {number:,}: expected id, start, end, text, type and identifier with tabs between them"
    if len(fields) < 5:
        raise Rejected("an annotation with too few fields", f"{expected}; is the file cut off here?")
    if not all(OFFSET.fullmatch(field) for field in fields[1:3]):
        raise Rejected(IMPOSSIBLE, f"{expected}, start and end in digits")
    if not fields[4]:
        raise Rejected("an entity without a type", expected)
    return True


def _entity(fields: Sequence[str]) -> Entity:
    """The entity of a line of 5 fields or more."""
    _, start, end, _, kind, identifier, last, *_ = [*fields, "", ""]
    confidence = float(last) if PROBABILITY.fullmatch(last) and float(last) <= 1 else None
    return Entity(
        int(start),
        int(end),
        kind,
        confidence,
        None if identifier in ("", NO_IDENTIFIER) else identifier,
        parts=tuple(last.split(BETWEEN_PARTS)) if last and confidence is None else (),
    )


def _add_relation(fields: Sequence[str], relations: list[Relation]) -> str:
    """Adds the relation of a line, or the roles of the last one between its concepts; returns what is left out."""
    if fields[3].startswith(SUBJECT):
        return "" if _add_subject(fields[1:3], fields[3].removeprefix(SUBJECT), relations) else NO_SUCH_RELATION
    _, kind, *concepts, last = [*fields, ""][:5]
    if any(concept in ("", NO_IDENTIFIER) for concept in concepts):
        return "a relation without two concepts"
    roles = ROLES_OF_CID if kind == CID else ("", "")
    confidence = float(last) if PROBABILITY.fullmatch(last) and float(last) <= 1 else None
    relations.append(Relation(kind, tuple(map(Argument, concepts, roles)), NOVEL.get(last), confidence))
    return "" if confidence is not None or last in ("", *NOVEL) else OTHER_FIELD


def _add_subject(concepts: Sequence[str], subject: str, relations: list[Relation]) -> bool:
    """Gives the last relation between `concepts` its direction; false if there is none, or the subject is neither.

    subject: one of the concepts, maybe with a probability behind it: `D003643|0.93`.
    """
    for number, relation in reversed(list(enumerate(relations))):
        targets = [argument.target for argument in relation.arguments]
        if sorted(map(str, targets)) == sorted(concepts):
            name = subject if subject in targets else subject.rpartition(BETWEEN_PARTS)[0]
            roles = ROLES_OF_SUBJECT if name == targets[0] else ROLES_OF_SUBJECT[::-1]
            if name in targets:
                relations[number] = replace(relation, arguments=tuple(map(Argument, targets, roles)))
            return name in targets
    return False


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
        if not _holds(entity):
            raise Rejected(NO_LINE, "without a type, or with a tab or a line break in it")
        fields += [BETWEEN_PARTS.join(entity.parts)] * _holds_parts(entity)
        lines.append("\t".join([document.id, str(entity.start), str(entity.end), *fields]))
    for relation in document.relations:
        if not _fault_of(relation):
            lines += _relation_lines(document.id, relation)
    return "\n".join([*lines, "", ""])


NO_LINE = "an entity that no line can hold"


def _holds(entity: Entity) -> bool:
    fields = LINE_BREAK.sub(" ", entity.text), entity.type, entity.identifier or NO_IDENTIFIER
    return bool(entity.type) and not any(NO_PUBTATOR_FIELD.search(field) for field in fields)


def _holds_parts(entity: Entity) -> bool:
    """True if a seventh field can hold the names of individual mentions, of which there are some."""
    field = BETWEEN_PARTS.join(entity.parts)
    is_plain = not any(BETWEEN_PARTS in part for part in entity.parts) and not NO_PUBTATOR_FIELD.search(field)
    return bool(field) and is_plain and not PROBABILITY.fullmatch(field)


def _fault_of(relation: Relation) -> str:
    """The kind of a relation that no line can hold; empty for one that a line holds."""
    if relation.mentions:
        return no_relation(relation)
    if len(relation.arguments) != 2:
        return "a relation of more than two concepts"
    fields = [relation.type, *(str(argument.target) for argument in relation.arguments)]
    is_plain = not any(NO_PUBTATOR_FIELD.search(field) for field in fields) and NO_IDENTIFIER not in fields[1:]
    is_plain &= fields[0][:1].isalpha() and not any(field.startswith(SUBJECT) for field in fields)
    return "" if is_plain else "a relation that no line can hold"


def _relation_lines(name: str, relation: Relation) -> list[str]:
    """The line of a relation, and that of its subject if it has one."""
    relation = _with_roles(relation, Counter())
    concepts = [str(argument.target) for argument in relation.arguments]
    novelty = [word for word, value in NOVEL.items() if value is relation.novel]
    lines = ["\t".join([name, relation.type, *concepts, *novelty])]
    roles = [argument.role for argument in relation.arguments]
    if SUBJECT_ROLE in roles:
        lines.append("\t".join([name, *concepts, SUBJECT + concepts[roles.index(SUBJECT_ROLE)]]))
    return lines


def _with_roles(relation: Relation, left_out: Counts) -> Relation:
    """A relation of two concepts with the roles that its lines give it when read."""
    (first, role), (second, other) = relation.arguments
    if {role, other} == set(ROLES_OF_SUBJECT) and first != second:
        return relation
    default = ROLES_OF_CID if relation.type == CID else ("", "")
    if relation.type == CID and (role, other) == ROLES_OF_CID[::-1]:
        first, second = second, first
    elif (role, other) not in (("", ""), default):
        left_out["the roles of a relation"] += 1
    return replace(relation, arguments=(Argument(first, default[0]), Argument(second, default[1])))


def fit(document: Document, left_out: Counts) -> Document:
    """The document with title and abstract on a line each, entities in one span, and relations between two concepts."""
    left_out["a line break"] += len(LINE_BREAK.findall(document.text))
    document = replace(document, text=LINE_BREAK.sub(lambda match: " " * len(match[0]), document.text))
    title, abstract = _title_and_abstract(document)
    _, _, passages = _heading([f"1|t|{title}", f"1|a|{abstract}"])
    if document.passages not in (passages, (Passage(0, len(document.text)),)):
        left_out[KINDS["passages"]] += len(document.passages)
    document = remove_parts(replace(document, passages=passages), left_out, *LACKS)

    def fault_of(entity: Entity) -> str:
        if entity.is_part:
            return "an individual mention of a composite one"
        return DISCONTINUOUS if entity.fragments else "" if _holds(entity) else NO_LINE

    document = keep_entities(document, left_out, fault_of)
    document = keep_parts(document, left_out, _holds_parts)
    document = keep_relations(document, left_out, _fault_of)
    document = remove_relation_parts(document, left_out, "confidence")
    return replace(document, relations=tuple(_with_roles(relation, left_out) for relation in document.relations))


def _title_and_abstract(document: Document) -> tuple[str, str]:
    """Title and abstract of a document that has these two with one space between them; else the text and nothing."""
    text = document.text
    if [passage.kind for passage in document.passages] == [TITLE, ABSTRACT]:
        title, abstract = document.passages
        is_whole = (title.start, abstract.end) == (0, len(text)) and abstract.start < len(text)
        if is_whole and text[title.end : abstract.start] == " ":
            return text[: title.end], text[abstract.start :]
    return text, ""


WRITER = Writer(render, _open_file, fit)
