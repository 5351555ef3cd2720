"""Annotated documents in the formats of the field, read and written; docs/formats.md shows what each one holds."""

import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from bertrelay.data.readers import open_input
from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from bertrelay.files import write_error
from bertrelay.privacy import is_sensitive
from domain.biomedical.documents import bioc, brat, conll, jsonl, page, pubtator
from domain.biomedical.documents.conll import Columns
from domain.biomedical.documents.document import (
    Document,
    Item,
    Unfit,
    Write,
    check_document,
    shown_id,
    text_file,
    usable,
    with_distinct_ids,
)

__all__ = [
    "FORMATS",
    "Columns",
    "FormatName",
    "WrittenName",
    "check_held",
    "check_written",
    "document_items",
    "format_of",
    "once",
    "read_documents",
    "write_documents",
    "writing",
]

WrittenName = Literal["conll", "conll-iobes", "pubtator", "bioc", "brat", "jsonl", "html"]
FormatName = Literal[WrittenName, "text", "lines"]


class Format(NamedTuple):
    """How documents of a format are read, and how its files are written; None where they are not.

    suffixes: of its files. rendered: a document as it is in a file; raises Unfit for one that the format cannot hold.
    writing: opens a new file, whole or not there, and gives what appends a document as it is rendered.
    """

    suffixes: tuple[str, ...]
    read: Callable[[Path], Iterator[Item]] | None
    rendered: Callable[[Document], Any] | None = None
    writing: Callable[..., AbstractContextManager[Write]] = text_file


FORMATS: dict[FormatName, Format] = {
    "conll": Format((".conll", ".tsv", ".iob", ".iob1", ".iob2", ".bilou", ".bio"), conll.read, conll.rendered),
    "conll-iobes": Format(
        (".iobes",), partial(conll.read, file_scheme="IOBES"), partial(conll.rendered, scheme="IOBES")
    ),
    "pubtator": Format((".pubtator",), pubtator.read, pubtator.rendered, pubtator.writing),
    "bioc": Format((".json", ".bioc"), bioc.read, bioc.rendered, bioc.writing),
    "brat": Format((".ann",), brat.read, brat.rendered, brat.writing),
    "jsonl": Format((".jsonl", ".ndjson"), jsonl.read, jsonl.line_of),
    "text": Format((".txt",), jsonl.read_text_files),
    "lines": Format((), jsonl.read_text_lines),
    "html": Format((".html",), None, page.check, page.writing),
}
SUFFIXES = {suffix: name for name, found in FORMATS.items() for suffix in found.suffixes}

TITLE_LINE = re.compile(rb"[^|\t\n]+\|t\|")


def format_of(path: Path | str) -> FormatName:
    """The format of a file or folder that is there, or of one to be written, by its name.

    A folder holds brat documents, or raw text when there is no `.ann` file in it. A `.txt` file that begins as PubTator
    does is PubTator; with an `.ann` file beside it, it is brat. Raises RequestError for a suffix of no format.
    """
    path = Path(path)
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    if path.is_dir() or (not suffixes and not path.exists()):
        is_text = path.is_dir() and bool(jsonl.text_files(path)) and not any(path.glob("*.ann"))
        return "text" if is_text else "brat"
    if suffixes[-2:] == [".pubtator", ".txt"] or (suffixes[-1:] == [".txt"] and _begins_as_pubtator(path)):
        return "pubtator"
    if suffixes[-1:] == [".txt"] and path.with_suffix(".ann").exists():
        return "brat"
    found = SUFFIXES.get(suffixes[-1] if suffixes else "")
    if found is None:
        raise RequestError(
            f"{path}: expected a suffix that implies the format ({', '.join(SUFFIXES)}) or a folder, found "
            f"{path.suffix or 'none'}. Say which it is: {', '.join(FORMATS)}."
        )
    return found


def _begins_as_pubtator(path: Path) -> bool:
    if path.is_file():
        with suppress(EOFError, OSError, zlib.error), open_input(str(path)) as stream:  # reading it reports these
            return TITLE_LINE.match(stream.read(1000).lstrip()) is not None
    return False


def read_documents(
    path: Path | str, format_name: FormatName | None = None, rejects: Rejects | None = None, unique: bool = True
) -> Iterator[Document]:
    """Streams the documents of a file or folder of any format; `format_of` finds one not given.

    rejects: counts documents, used and not; without it the first one that cannot be used raises RequestError. Without
    a `with` block around it, it is closed at the end of the file.
    unique: whether a second document with one id is unusable; this keeps 150 bytes of each.
    Raises RequestError for what concerns the whole file: not there, damaged, of another format.
    """
    items = document_items(path, format_name)
    yield from usable(once(items) if unique else items, rejects, f"{path}: only entities are read; left out")
    if rejects is not None:
        rejects.close()


def document_items(path: Path | str, format_name: FormatName | None = None) -> Iterator[Item]:
    """Every document in its place, usable or not, and what is left out."""
    path = Path(path)
    name = format_name or format_of(path)
    read = FORMATS[name].read
    if read is None:
        readable = ", ".join(each for each, found in FORMATS.items() if found.read)
        raise RequestError(f"{path}: {name} is only written. Read one of {readable}.")
    if not path.exists():
        raise RequestError(f"there is no file or folder {path}. Check the path; in a recipe it counts from its folder.")
    return read(path)


def once(items: Iterable[Item]) -> Iterator[Item]:
    """The items; a document with the id of an earlier one becomes unusable."""
    return with_distinct_ids(items, "an id that another document has")


def check_written(path: Path | str, format_name: FormatName | None = None) -> FormatName:
    """The format of an output, by its name when not given. Raises RequestError for one that is only read."""
    name = format_name or format_of(path)
    if FORMATS[name].rendered is None:
        raise RequestError(f"{path}: {name} is only read. Write one of {', '.join(get_args(WrittenName))}.")
    return name


@contextmanager
def writing(
    path: Path | str, format_name: FormatName | None = None, rejects: Rejects | None = None
) -> Iterator[Callable[[Document], None]]:
    """Opens a file or folder of any format and gives the function that appends a document; it is whole or not there.

    rejects: counts what was written, and documents that the format cannot hold; without it the first of these raises
    RequestError.
    """
    path, name = Path(path), check_written(path, format_name)
    try:
        with FORMATS[name].writing(path, FORMATS[name].rendered) as write:
            yield partial(_put, write=write, name=name, rejects=rejects)
    except OSError as error:
        raise write_error(path, error) from error


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


def check_held(document: Document, name: FormatName, rejects: Rejects | None = None) -> None:
    """Counts in `rejects` whether the format `name` can hold `document`; without it, raises RequestError if not."""
    if rendered := FORMATS[name].rendered:
        _put(document, rendered, name, rejects)


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
