"""brat standoff: a folder with a text (`ID.txt`) and its annotations (`ID.ann`) for each document.

Offsets count characters of the text file, with line breaks. brat writes an entity over a line break as one fragment for
each line; here it is one span. Identifiers are in `N` lines as `Reference`, confidences in notes `confidence 0.93`.
Relations are between mentions: `R` with roles, and `*`, for any number of mentions, without. Events, attributes and
other notes are left out.
"""

import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from bertrelay.data.tables import Rejected
from bertrelay.errors import RequestError
from bertrelay.files import publish_folder
from bertrelay.fingerprint import note_folder
from domain.biomedical.documents.document import (
    ANNOTATED,
    Argument,
    Document,
    Entity,
    Item,
    Reading,
    Relation,
    Span,
    file_in,
)
from domain.biomedical.documents.losses import (
    OF_RELATIONS,
    Counts,
    keep_entities,
    keep_relations,
    no_relation,
    remove_parts,
    remove_relation_parts,
)
from domain.biomedical.documents.soundness import NO_MENTION, STRAY_SPACE, Annotation, joined, placed, whole_text
from domain.biomedical.documents.writing import Write, Writer

NAMED = re.compile(r"(.+?)\.(txt|ann|a1|a2)(?:\.gz)?", re.IGNORECASE | re.DOTALL)
OFFSETS = r"-?\d{1,15} -?\d{1,15}"
TYPE_AND_OFFSETS = re.compile(rf"(\S+) ({OFFSETS}(?:;{OFFSETS})*)", re.ASCII)
REFERENCE = re.compile(r"Reference (\S+) (.+)")
NUMBER = r"\d+(?:\.\d+)?(?:e-\d+)?"  # as Python writes a probability
ARGUMENT = re.compile(r"(\S*[^\s:]):(\S+)")
LACKS = ("identifier_score", "database", "parts", "is_part", "passages", "sentences", "fields")
CONFIDENCE = re.compile(rf"AnnotatorNotes (\S+)\tconfidence ({NUMBER})", re.ASCII)
SKIPPED = {
    "R": "a relation that is not between mentions",
    "E": "an event",
    "A": "an attribute",
    "M": "an attribute",
    "*": "a list of equals",
    "N": "another reference",
    "#": "a note",
}


def brat_files(folder: Path) -> dict[str, dict[str, Path]]:
    """The `txt`, `ann`, `a1` and `a2` files of each document in a folder, by its name; empty for a file.

    Files may be gzip. Annotations of BioNLP in `.a1` and `.a2` are not read, but a text beside them is no raw text.
    """
    files = defaultdict[str, dict[str, Path]](dict)
    for path in sorted(folder.iterdir(), key=lambda path: path.name) if folder.is_dir() else []:
        if matched := NAMED.fullmatch(path.name):
            files[matched[1]].setdefault(matched[2].lower(), path)  # of two the one that is not gzip
    return files


def name_of(path: Path) -> str:
    """The id of the document in a file of raw text or brat: its name without suffixes."""
    matched = NAMED.fullmatch(path.name)
    return matched[1] if matched else path.name


def read(path: Path, reading: Reading = ANNOTATED) -> Iterator[Item]:
    """Streams the documents of a folder in the order of their names, or the one of a `.txt` or `.ann` file."""
    if path.is_dir():
        note_folder(path)
    files = brat_files(path if path.is_dir() else path.parent)
    for number, name in enumerate(files if path.is_dir() else [name_of(path)], 1):
        if name not in files:
            raise RequestError(f"{path}: expected a .txt or .ann file, or a folder of them, found another name.")
        yield from _items(name, files[name], partial(file_in, path, number), reading.only_text)


@dataclass
class _Annotations:
    """The content of an `.ann` file, by the numbers of entities.

    relations: of each its number, type, and roles and numbers of its mentions.
    identifiers: those of an entity with several `N` lines are joined as in PubTator.
    """

    entities: dict[str, Annotation] = field(default_factory=dict)
    identifiers: dict[str, str] = field(default_factory=dict)
    confidences: dict[str, float] = field(default_factory=dict)
    relations: list[tuple[str, str, list[tuple[str, str]]]] = field(default_factory=list)

    def between(self) -> Iterator[Relation]:
        """The relations, with mentions by their positions in `entities`; a missing one is -1."""
        positions = {key: position for position, key in enumerate(self.entities)}
        for name, kind, mentions in self.relations:
            arguments = tuple(Argument(positions.get(key, -1), role) for role, key in mentions)
            yield Relation(kind, arguments, confidence=self.confidences.get(name))


def _items(name: str, files: Mapping[str, Path], shown: Callable[[Path], str], only_text: bool) -> Iterator[Item]:
    """The document of a text file and its annotations, and what is left out. shown: gives a file's name in messages."""
    content, file, number = _Annotations(), files.get("txt") or next(iter(files.values())), 1
    try:
        if "txt" not in files:
            raise Rejected("annotations without a text", "expected a .txt file of the same name beside them")
        text, lines = whole_text(file), list[str]()
        if not only_text:
            file = _annotation_file(files)
            lines = whole_text(file).removeprefix("\ufeff").split("\n")
        for number, line in enumerate(lines, 1):
            yield from _read_line(line.removesuffix("\r"), text, content, shown(file), number)
        annotations = list[Annotation]()
        for key, annotation in content.entities.items():
            confidence, identifier = content.confidences.get(key), content.identifiers.get(key)
            entity = replace(annotation.entity, confidence=confidence, identifier=identifier)
            annotations.append(annotation._replace(entity=entity))
        entities, misplaced, relations = placed(text, annotations, content.between())
        yield from [Rejected(NO_MENTION, is_fault=False)] * (len(content.relations) - len(relations))
        yield Document(name, text, entities, relations=relations, file=shown(files["txt"]), line=1, misplaced=misplaced)
    except Rejected as fault:
        yield fault.at(shown(file), number)


def _annotation_file(files: Mapping[str, Path]) -> Path:
    """The `.ann` file of a document. Raises Rejected if there is none, as the document would seem to have no entities.

    An empty file says that there are none, but not beside an `.a1` or `.a2` that has some.
    """
    filled = [kind for kind in ("a1", "a2") if kind in files and whole_text(files[kind]).strip()]
    if "ann" in files and not (filled and not whole_text(files["ann"]).strip()):
        return files["ann"]
    others = " and ".join(f".{kind}" for kind in filled or ("a1", "a2") if kind in files)
    detail = f"found {others}, of BioNLP: write their lines into one .ann" if others else "an empty one is enough"
    raise Rejected("a text without annotations", f"expected an .ann file of the same name beside it; {detail}")


def _read_line(line: str, text: str, content: _Annotations, file: str, number: int) -> Iterator[Rejected]:
    """Adds line `number` of `file` to `content`, or yields a left-out annotation."""
    name, _, rest = line.partition("\t")
    reference, note = REFERENCE.match(rest.partition("\t")[0]), CONFIDENCE.fullmatch(rest)
    if name.startswith("T"):
        if name in content.entities:
            raise Rejected("an entity's number given twice", "number the T lines from T1 on")
        content.entities[name] = _annotation(rest, text)._replace(file=file, line=number)
    elif name.startswith("N") and reference:
        before = content.identifiers.get(reference[1])
        content.identifiers[reference[1]] = f"{before}|{reference[2]}" if before else reference[2]
    elif name[:1] in ("R", "*") and (mentions := _mentions(name, rest)):
        content.relations.append((name, rest.split()[0], mentions))
    elif name.startswith("#") and note and float(note[2]) <= 1:
        content.confidences[note[1]] = float(note[2])
    elif name[:1] in SKIPPED:
        yield Rejected(SKIPPED[name[:1]], is_fault=False)
    elif line.strip():
        raise Rejected("a line that is no annotation", "expected one that begins with T, N, #, R, E, A, M or *")


def _mentions(name: str, rest: str) -> list[tuple[str, str]]:
    """Roles and numbers of the mentions of a relation; none if it is malformed or of anything but mentions."""
    if name.startswith("*"):
        mentions = [("", key) for key in rest.split()[1:]]
    else:
        matches = [ARGUMENT.fullmatch(argument) for argument in rest.split()[1:]]
        mentions = [(matched[1], matched[2]) for matched in matches if matched]
        mentions = mentions if len(matches) == len(mentions) == 2 else []
    return mentions if len(mentions) > 1 and all(key.startswith("T") for _, key in mentions) else []


def _annotation(line: str, text: str) -> Annotation:
    head, tab, mention = line.partition("\t")
    matched = TYPE_AND_OFFSETS.fullmatch(head)
    if not matched and TYPE_AND_OFFSETS.fullmatch(" ".join(head.split())):
        raise Rejected(STRAY_SPACE, "expected one space between type, start and end")
    if not matched or not tab:
        expected = "expected T1, type, start and end, and text: T1<TAB>Disease 0 8<TAB>text"
        raise Rejected("a line that is no annotation", f"{expected}; is the file cut off here?")
    spans = [(int(first), int(last)) for first, last in map(str.split, matched[2].split(";"))]
    start, end, fragments = joined(spans, text)
    entity = Entity(start, end, matched[1], fragments=fragments)
    return Annotation(entity, mention if spans == sorted(spans) else None)  # else its words are out of order


FILE_NAME = re.compile(r"[^./\\\0\n][^/\\\0\n]*")  # valid on every system, and not hidden
LONGEST_ID = 250  # bytes: with a suffix, the longest name that file systems take
NO_BRAT_FIELD = re.compile(r"[\t\n\r]")
ON_A_LINE = re.compile(r"[^\n\r]+")


@contextmanager
def _open_folder(path: Path, rendered: Callable[[Document], str]) -> Iterator[Write]:
    """Opens a new folder of documents, which appears only when complete. Raises RequestError if it has files."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RequestError(f"{path}: brat documents need a new folder or an empty one. Move this one away.")
    building = path.with_name(f".{path.name}.writing")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)

    def write(document: Document) -> None:
        text_file, annotations = building / f"{document.id}.txt", rendered(document)
        if text_file.exists():
            raise Rejected("an id that another document has")
        text_file.write_bytes(document.text.encode())
        text_file.with_name(f"{document.id}.ann").write_bytes(annotations.encode())

    try:
        yield write
        publish_folder(building, path)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def render(document: Document) -> str:
    """The lines of an `.ann` file. Raises Rejected for what they cannot hold, and for an id that cannot name it."""
    if not FILE_NAME.fullmatch(document.id) or len(document.id.encode()) > LONGEST_ID:
        raise Rejected("an id that is no file name", "an empty or long one, or one with a slash in it")
    lines = []
    for number, entity in enumerate(document.entities, 1):
        spans, mention = _on_lines(document.text, entity)
        if not _holds(entity, mention):
            raise Rejected(NO_LINE, "without a type, or with a tab or an outer line break in it")
        lines.append(f"T{number}\t{entity.type} {';'.join(f'{start} {end}' for start, end in spans)}\t{mention}")
        if entity.identifier:
            lines.append(f"N{number}\tReference T{number} {entity.identifier}\t{mention}")
        if entity.confidence is not None:
            lines.append(f"#{number}\tAnnotatorNotes T{number}\tconfidence {entity.confidence!r}")
    lines += _relation_lines(document, len(document.entities) + 1)
    return "".join(f"{line}\n" for line in lines)


def _relation_lines(document: Document, note: int) -> Iterator[str]:
    """Yields the lines of the relations. note: number of the first note of a confidence."""
    held = [relation for relation in document.relations if not _fault_of(relation)]
    for number, relation in enumerate(held, 1):
        roles = [role for _, role in relation.arguments]
        mentions = [f"T{mention + 1}" for mention in relation.mentions]
        if not any(roles):
            yield f"*\t{relation.type} {' '.join(mentions)}"
            continue
        arguments = (f"{role}:{mention}" for role, mention in zip(roles, mentions, strict=True))
        yield f"R{number}\t{relation.type} {' '.join(arguments)}"
        if relation.confidence is not None:
            yield f"#{note}\tAnnotatorNotes R{number}\tconfidence {relation.confidence!r}"
            note += 1


NO_LINE = "an entity that no line can hold"


def _holds(entity: Entity, mention: str) -> bool:
    is_plain = not NO_BRAT_FIELD.search(mention + (entity.identifier or ""))
    return bool(entity.type) and not re.search(r"\s", entity.type) and is_plain


def _fault_of(relation: Relation) -> str:
    """The kind of a relation that no line can hold; empty for one that a line holds."""
    if len(relation.mentions) < len(relation.arguments):
        return no_relation(relation)
    roles = [role for _, role in relation.arguments]
    is_plain = not any(re.search(r"\s|:$", name) for name in (relation.type, *roles))
    is_held = is_plain and (not any(roles) or (all(roles) and len(roles) == 2))
    return "" if is_held else "a relation that no line can hold"


def fit(document: Document, left_out: Counts) -> Document:
    """The document without passages and tokens, with relations between mentions."""
    document = remove_parts(document, left_out, *LACKS)

    def on_lines(entity: Entity) -> Entity:
        start, end, fragments = joined(_on_lines(document.text, entity)[0], document.text)
        return replace(entity, start=start, end=end, fragments=fragments, identifier=entity.identifier or None)

    def fault_of(entity: Entity) -> str:
        return "" if _holds(entity, _on_lines(document.text, entity)[1]) else NO_LINE

    document = replace(document, entities=tuple(map(on_lines, document.entities)))
    document = keep_entities(document, left_out, fault_of)
    document = remove_relation_parts(keep_relations(document, left_out, _fault_of), left_out, "novel")
    relations = []
    for relation in document.relations:
        has_number = any(role for _, role in relation.arguments)
        left_out[OF_RELATIONS["confidence"]] += not has_number and relation.confidence is not None
        relations.append(relation if has_number else replace(relation, confidence=None))
    return replace(document, relations=tuple(relations))


def _on_lines(text: str, entity: Entity) -> tuple[list[Span], str]:
    """The spans of an entity, split at line breaks as brat does, and its text.

    An entity that begins or ends with a line break is not split.
    """
    spans = [line.span() for start, end in entity.spans for line in ON_A_LINE.finditer(text, start, end)]
    borders = {border for span in spans for border in span}
    if any(border not in borders for span in entity.spans for border in span):
        return list(entity.spans), entity.text
    return spans, " ".join(text[start:end] for start, end in spans)


WRITER = Writer(render, _open_folder, fit)
