"""Documents into files of every format, each of which is whole or not there; docs/formats.md shows what each one holds.

A format renders documents, and raises Unfit for one that it cannot hold. Most files are these texts one after the
other; brat is a folder, and a page is drawn when all documents are there.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, publish_folder, refuse_packed, write_error
from bertrelay.privacy import is_sensitive
from bertrelay.progress import log
from domain.biomedical.documents import FormatName, WrittenName, format_of, page
from domain.biomedical.documents.conll import DOCUMENT_START
from domain.biomedical.documents.document import Document, Entity, Passage, Span, Unfit, Write, shown_id
from domain.biomedical.documents.pubtator import ABSTRACT, NO_IDENTIFIER, TITLE
from domain.biomedical.documents.soundness import check_contiguous, check_document
from domain.biomedical.documents.tokens import OUTSIDE, Scheme, TokenSpan, has_stray_space, sentences_of, tags_of


def write_documents(
    path: Path | str,
    documents: Iterable[Document],
    format_name: FormatName | None = None,
    rejects: Rejects | None = None,
) -> None:
    """Writes documents to a file or folder, as `writing` does."""
    with writing(path, format_name, rejects) as write:
        for document in documents:
            write(document)
        if rejects is not None:
            rejects.close()  # too many of them end before the output is there


@contextmanager
def writing(path: Path | str, format_name: FormatName | None = None, rejects: Rejects | None = None) -> Iterator[Write]:
    """Opens a file or folder of any format and gives the function that appends a document; it is whole or not there.

    rejects: counts what was written, and documents that the format cannot hold; without it the first of these raises
    RequestError.
    """
    path = Path(path)
    name = check_written(path, format_name)
    writer = WRITERS[name]
    try:
        with writer.opened(path, writer.rendered) as write:
            yield partial(_put, write=write, name=name, rejects=rejects)
    except OSError as error:
        raise write_error(path, error) from error


def check_written(path: Path, format_name: FormatName | None = None) -> WrittenName:
    """The format of an output, by its name when not given.

    Raises RequestError for a format that is only read, and for a path that names no new file or folder of it.
    """
    refuse_packed(path)
    name = format_name or format_of(path)
    if path.name in ("", "..") or (name == "brat" and path.is_symlink()):
        kind = "a new folder or an empty one" if name == "brat" else "a new file"
        found = f"the symbolic link {path}" if path.is_symlink() else path
        raise RequestError(f"output: expected {kind} for {name}, found {found}; name it by its own name")
    if name == "text" or name == "lines":
        raise RequestError(f"{path}: {name} is only read. Write one of {', '.join(WRITERS)}.")
    return name


def check_held(document: Document, name: WrittenName, rejects: Rejects | None = None) -> None:
    """Counts in `rejects` whether the format `name` can hold `document`; without it, raises RequestError if not."""
    _put(document, WRITERS[name].rendered, name, rejects)


def _put(document: Document, write: Callable[[Document], object], name: str, rejects: Rejects | None) -> None:
    try:
        check_document(document)
        write(document)
    except Unfit as fault:
        if rejects is None:
            place = f"{document.file}, line {document.line:,}" if document.file else "documents"
            detail = f" ({fault.detail})" if fault.detail else ""
            raise RequestError(
                f"{place}: {name} cannot hold document {shown_id(document.id)!r}: {fault.reason}{detail}. "
                "Write it in a format that can, JSONL for example."
            ) from None
        file, record = document.file, shown_id(document.id)
        if not file:
            file, record = f"document {f'number {rejects.records + 1:,}' if is_sensitive() else document.id}", ""
        detail = "; ".join(filter(None, [fault.detail, f"{name} cannot hold it; JSONL, for example, can"]))
        rejects.add(file, document.line, fault.reason, record, detail)
    else:
        if rejects is not None:
            rejects.used()


@contextmanager
def _text_file(
    path: Path, rendered: Callable[[Document], str], head: str = "", between: str = "", tail: str = ""
) -> Iterator[Write]:
    with atomic_write(path) as building, building.open("w", encoding="utf-8", newline="\n") as file:
        file.write(head)
        separators = iter([""])

        def write(document: Document) -> None:
            text = rendered(document)
            file.write(next(separators, between) + text)

        yield write
        file.write(tail)


# JSONL

DOCUMENT_KEYS = ("id", "text", "entities", "passages", "sentences")
ENTITY_KEYS = ("start", "end", "type", "text", "confidence", "identifier", "fragments")


def jsonl_line(document: Document) -> str:
    """The line of a document with everything in it, its end included."""
    value: dict[str, Any] = {"id": document.id, "text": document.text}
    value["entities"] = [
        {key: found for key in ENTITY_KEYS if (found := getattr(entity, key)) not in (None, ())}
        for entity in document.entities
    ]
    if document.passages:
        value["passages"] = [passage._asdict() for passage in document.passages]
    if document.sentences:
        value["sentences"] = document.sentences
    value.update(document.fields)
    return json.dumps(value, ensure_ascii=False) + "\n"


# CoNLL

NO_TOKEN = "\t\n\r\0"


def _conll(document: Document, scheme: Scheme = "IOB2") -> str:
    """The lines of a document, `-DOCSTART-` first. Raises Unfit for what tags and lines cannot hold."""
    check_contiguous(document, "a tag")
    sentences = document.sentences or sentences_of(document)
    lines = [f"{DOCUMENT_START}\t{OUTSIDE}\n\n"]
    for tokens, spans in zip(sentences, _token_spans(document, sentences), strict=True):
        try:
            tags = tags_of(spans, len(tokens), scheme)
        except ValueError:
            raise Unfit("nested or overlapping entities", "a token has one tag") from None
        lines.append(lines_of([document.text[start:end] for start, end in tokens], tags))
    return "".join(lines)


def lines_of(tokens: Sequence[str], *tags: Sequence[str]) -> str:
    """A line for each token with its tag, or its tags, and a blank one. Raises Unfit for what no line can hold."""
    for token in tokens:
        if not token or token.startswith(DOCUMENT_START) or any(sign in token for sign in NO_TOKEN):
            raise Unfit("a token that no line can hold", "an empty one, or one with a tab, a line break or NUL in it")
    if any(has_stray_space(tag) or any(sign in tag for sign in NO_TOKEN) for column in tags for tag in column):
        raise Unfit("a type that no line can hold", "with a tab, a line break or NUL in it, or a space around it")
    return "".join("\t".join(fields) + "\n" for fields in zip(tokens, *tags, strict=True)) + "\n"


def _token_spans(document: Document, sentences: Sequence[Sequence[Span]]) -> list[list[TokenSpan]]:
    places = [(token, row, place) for row, tokens in enumerate(sentences) for place, token in enumerate(tokens)]
    starts, ends = ({token[side]: (row, place) for token, row, place in places} for side in (0, 1))
    spans: list[list[TokenSpan]] = [[] for _ in sentences]
    for entity in document.entities:
        first, last = starts.get(entity.start), ends.get(entity.end)
        if first is None or last is None:
            raise Unfit("an entity that begins or ends inside a token", f"at {entity.start:,} to {entity.end:,}")
        if first[0] != last[0]:
            raise Unfit("an entity over two sentences", f"at {entity.start:,} to {entity.end:,}")
        spans[first[0]].append(TokenSpan(first[1], last[1] + 1, entity.type))
    return spans


# PubTator

LINE_BREAKS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
"""What some reader takes for the end of a line, `str.splitlines` for example."""
LINE_BREAK = re.compile(rf"\r\n|[{LINE_BREAKS}]")
PUBTATOR_ID = re.compile(rf"[^|\t\0\ufeff{LINE_BREAKS}]+")
NO_PUBTATOR_FIELD = re.compile(rf"[\t\0{LINE_BREAKS}]")


@contextmanager
def _pubtator_file(path: Path, rendered: Callable[[Document], str]) -> Iterator[Write]:
    """A file of documents, with a blank line after each. Logs how many line breaks became spaces."""
    line_breaks: list[int] = []  # of each document
    with _text_file(path, rendered) as write:

        def write_and_count(document: Document) -> None:
            write(document)
            line_breaks.append(len(LINE_BREAK.findall(document.text)))

        yield write_and_count
    if any(line_breaks):
        log(
            f"{path}: {sum(line_breaks):,} line breaks in {sum(map(bool, line_breaks)):,} documents became spaces of "
            "the same length, because PubTator has one line for a title and one for an abstract; offsets are unchanged"
        )


def _pubtator(document: Document) -> str:
    """The lines of a document, its line breaks as spaces of the same length. Raises Unfit for what they cannot hold."""
    check_contiguous(document, "a line")
    if not PUBTATOR_ID.fullmatch(document.id):
        raise Unfit("an id that no line can hold", "an empty one, or one with |, a tab or a line break in it")
    if "\0" in document.text:
        raise Unfit("NUL in the text", "no line can hold it")
    text = LINE_BREAK.sub(lambda found: " " * len(found[0]), document.text)
    title, abstract = _divided(replace(document, text=text))
    lines = [f"{document.id}|t|{title}", f"{document.id}|a|{abstract}"]
    for entity in document.entities:
        fields = [text[entity.start : entity.end], entity.type, entity.identifier or NO_IDENTIFIER]
        if not entity.type or any(NO_PUBTATOR_FIELD.search(field) for field in fields):
            raise Unfit("an entity that no line can hold", "without a type, or with a tab or a line break in it")
        lines.append("\t".join([document.id, str(entity.start), str(entity.end), *fields]))
    return "\n".join([*lines, "", ""])


def _divided(document: Document) -> tuple[str, str]:
    """Title and abstract where the document has these two with one space between them, else all of it as the title."""
    text = document.text
    if [passage.kind for passage in document.passages] == [TITLE, ABSTRACT]:
        title, abstract = document.passages
        is_whole = (title.start, abstract.end) == (0, len(text)) and abstract.start < len(text)
        if is_whole and text[title.end : abstract.start] == " ":
            return text[: title.end], text[abstract.start :]
    return text, ""


# BioC JSON


def _bioc(document: Document) -> str:
    """A document as JSON. Raises Unfit for entities without a type."""
    if not all(entity.type for entity in document.entities):
        raise Unfit("an entity without a type")
    passages = []
    for passage in _passages_of(document):
        annotations = [
            _annotation(number, entity) for number, entity in enumerate(document.entities, 1) if _is_in(entity, passage)
        ]
        value = {"offset": passage.start, "infons": {"type": passage.kind} if passage.kind else {}}
        text = document.text[passage.start : passage.end]
        passages.append({**value, "text": text, "sentences": [], "annotations": annotations, "relations": []})
    value = {"id": document.id, "infons": {}, "passages": passages, "relations": []}
    return json.dumps(value, ensure_ascii=False)


def _passages_of(document: Document) -> Sequence[Passage]:
    """The document's own passages, where nothing but spaces and no entity is outside them; else one of all."""
    text, passages = document.text, document.passages
    ends = [0, *(passage.end for passage in passages)]
    gaps = list(zip(ends, passages, strict=False))
    is_whole = (
        ends[-1] == len(text)
        and all(end <= passage.start and not text[end : passage.start].strip(" ") for end, passage in gaps)
        and all(sum(_is_in(entity, passage) for passage in passages) == 1 for entity in document.entities)
    )
    return passages if passages and is_whole else [Passage(0, len(text))]


def _is_in(entity: Entity, passage: Passage) -> bool:
    return passage.start <= entity.start and entity.end <= passage.end


def _annotation(number: int, entity: Entity) -> dict[str, Any]:
    confidence = None if entity.confidence is None else repr(entity.confidence)
    infons = {"type": entity.type, "identifier": entity.identifier or None, "confidence": confidence}
    infons = {name: value for name, value in infons.items() if value is not None}
    locations = [{"offset": start, "length": end - start} for start, end in entity.spans]
    return {"id": str(number), "infons": infons, "text": entity.text, "locations": locations}


# brat

FILE_NAME = re.compile(r"[^./\\\0\n][^/\\\0\n]*")  # on every system, and of no hidden file
LONGEST_ID = 250  # bytes: with its suffix, the longest name that file systems take
NO_BRAT_FIELD = re.compile(r"[\t\n\r]")
ON_A_LINE = re.compile(r"[^\n\r]+")


@contextmanager
def _brat_folder(path: Path, rendered: Callable[[Document], str]) -> Iterator[Write]:
    """A new folder of documents, which is whole or not there. Raises RequestError when there is something already."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RequestError(f"{path}: brat documents need a new folder or an empty one. Move this one away.")
    building = path.with_name(f".{path.name}.writing")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)

    def write(document: Document) -> None:
        text_file, annotations = building / f"{document.id}.txt", rendered(document)
        if text_file.exists():
            raise Unfit("an id that another document has")
        text_file.write_bytes(document.text.encode())
        text_file.with_name(f"{document.id}.ann").write_bytes(annotations.encode())

    try:
        yield write
        publish_folder(building, path)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _brat(document: Document) -> str:
    """The lines of an `.ann` file. Raises Unfit for what they cannot hold, and for an id that cannot name it."""
    if not FILE_NAME.fullmatch(document.id) or len(document.id.encode()) > LONGEST_ID:
        raise Unfit("an id that is no file name", "an empty or long one, or one with a slash in it")
    lines = []
    for number, entity in enumerate(document.entities, 1):
        spans, mention = _on_lines(document.text, entity)
        if (
            not entity.type
            or re.search(r"\s", entity.type)
            or NO_BRAT_FIELD.search(mention + (entity.identifier or ""))
        ):
            raise Unfit("an entity that no line can hold", "without a type, or with a tab or an outer line break in it")
        lines.append(f"T{number}\t{entity.type} {';'.join(f'{start} {end}' for start, end in spans)}\t{mention}")
        if entity.identifier:
            lines.append(f"N{number}\tReference T{number} {entity.identifier}\t{mention}")
        if entity.confidence is not None:
            lines.append(f"#{number}\tAnnotatorNotes T{number}\tconfidence {entity.confidence!r}")
    return "".join(f"{line}\n" for line in lines)


def _on_lines(text: str, entity: Entity) -> tuple[list[Span], str]:
    """The spans of an entity, ended by line breaks as brat ends them, and its text; all as it is where one is outer."""
    spans = [line.span() for start, end in entity.spans for line in ON_A_LINE.finditer(text, start, end)]
    borders = {border for span in spans for border in span}
    if any(border not in borders for span in entity.spans for border in span):
        return list(entity.spans), entity.text
    return spans, " ".join(text[start:end] for start, end in spans)


# All formats


class Writer(NamedTuple):
    """How a format renders a document, and what opens a new file of it and gives what appends one."""

    rendered: Callable[[Document], Any]
    opened: Callable[..., AbstractContextManager[Write]] = _text_file


WRITERS: dict[WrittenName, Writer] = {
    "conll": Writer(_conll),
    "conll-iobes": Writer(partial(_conll, scheme="IOBES")),
    "pubtator": Writer(_pubtator, _pubtator_file),
    "bioc": Writer(
        _bioc,
        partial(
            _text_file,
            head='{"source": "BertRelay", "date": "", "key": "", "infons": {}, "documents": [\n',
            between=",\n",
            tail="\n]}\n",
        ),
    ),
    "brat": Writer(_brat, _brat_folder),
    "jsonl": Writer(jsonl_line),
    "html": Writer(page.check, page.writing),
}
