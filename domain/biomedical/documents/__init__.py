"""Annotated documents, read in the formats of the field; docs/formats.md shows what each one holds."""

import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Literal

from bertrelay.data.readers import open_input
from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from domain.biomedical.documents.conll import Columns
from domain.biomedical.documents.document import (
    ANNOTATED,
    LEFT_OUT,
    Document,
    Item,
    Reading,
    usable,
    with_distinct_ids,
    with_placed_entities,
)

__all__ = [
    "SUFFIXES",
    "Columns",
    "FormatName",
    "ReadName",
    "WrittenName",
    "document_items",
    "format_of",
    "read_documents",
]

BothName = Literal["conll", "conll-iobes", "pubtator", "bioc", "brat", "jsonl"]
WrittenName = Literal[BothName, "html"]
ReadName = Literal[BothName, "text", "lines"]
FormatName = Literal[ReadName, "html"]

READERS: dict[FormatName, str] = {
    "conll": "conll:read",
    "conll-iobes": "conll:read",
    "pubtator": "pubtator:read",
    "bioc": "bioc:read",
    "brat": "brat:read",
    "jsonl": "jsonl:read",
    "text": "jsonl:read_text_files",
    "lines": "jsonl:read_text_lines",
}
"""Of each format the module here and its function that streams the documents of a file or folder, and what is unusable
or left out. A module is imported when its format is read: settings name formats, and need none."""

SUFFIXES: dict[str, FormatName] = {
    **dict.fromkeys((".conll", ".tsv", ".iob", ".iob1", ".iob2", ".bilou", ".bio"), "conll"),
    ".iobes": "conll-iobes",
    ".pubtator": "pubtator",
    ".json": "bioc",
    ".bioc": "bioc",
    ".ann": "brat",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "text",
    ".html": "html",
}
"""The format of each suffix; the first one of a format is that of the files that a stage writes."""

NAMED = re.compile(r"(.+?)\.(txt|ann|a1|a2)(?:\.gz)?", re.IGNORECASE | re.DOTALL)
TITLE_LINE = re.compile(rb"[^|\t\n]+\|t\|")


def format_of(path: Path | str) -> FormatName:
    """The format of a file or folder that is there, or of one to be written, by its name.

    A folder holds brat documents, or raw text when there is no `.ann` file in it. A `.txt` file that begins as PubTator
    does is PubTator; in a folder with `.ann` files it is brat. Raises RequestError for a suffix of no format.
    """
    path = Path(path)
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    if path.is_dir() or (not suffixes and not path.exists()):
        kinds = {kind for files in brat_files(path).values() for kind in files}
        return "text" if kinds == {"txt"} else "brat"
    if suffixes[-2:] == [".pubtator", ".txt"] or (suffixes[-1:] == [".txt"] and _begins_as_pubtator(path)):
        return "pubtator"
    if suffixes[-1:] == [".txt"] and any(kinds.keys() - {"txt"} for kinds in brat_files(path.parent).values()):
        return "brat"
    if suffixes[-1:] in ([".xml"], [".nxml"]):
        raise RequestError(
            f"{path}: expected annotated documents of another format, found XML, which is not read as such. Convert "
            "BioC XML to BioC JSON; the package bioc reads the one and writes the other."
        )
    if not suffixes or suffixes[-1] not in SUFFIXES:
        raise RequestError(
            f"{path}: expected a suffix that implies the format ({', '.join(SUFFIXES)}) or a folder, found "
            f"{path.suffix or 'none'}. Say which it is: {', '.join(READERS)}, html."
        )
    return SUFFIXES[suffixes[-1]]


def brat_files(folder: Path) -> dict[str, dict[str, Path]]:
    """The `txt`, `ann`, `a1` and `a2` file of each document in a folder by its name, packed or not; none where none is.

    BioNLP has annotations in `.a1` and `.a2`, which are not read; a text beside them is no raw text.
    """
    found = defaultdict[str, dict[str, Path]](dict)
    for path in sorted(folder.iterdir(), key=lambda path: path.name) if folder.is_dir() else []:
        if matched := NAMED.fullmatch(path.name):
            found[matched[1]].setdefault(matched[2].lower(), path)  # of two the one that is not packed
    return found


def name_of(path: Path) -> str:
    """The id of the document in a file of raw text or brat: its name without suffixes."""
    matched = NAMED.fullmatch(path.name)
    return matched[1] if matched else path.name


def _begins_as_pubtator(path: Path) -> bool:
    if path.is_file():
        with suppress(EOFError, OSError, zlib.error), open_input(str(path)) as stream:  # reading it reports these
            return TITLE_LINE.match(stream.read(1000).lstrip()) is not None
    return False


def read_documents(
    path: Path | str,
    format_name: FormatName | None = None,
    rejects: Rejects | None = None,
    unique: bool = True,
    reading: Reading = ANNOTATED,
) -> Iterator[Document]:
    """Streams the documents of a file or folder of any format; `format_of` finds one not given.

    rejects: counts documents, used and not; without it the first one that cannot be used raises RequestError. Without
    a `with` block around it, it is closed at the end of the file.
    unique: whether a second document with one id is unusable; this keeps 150 bytes of each.
    reading: what of each document is read.
    Raises RequestError for what concerns the whole file: not there, damaged, of another format.
    """
    items = document_items(path, format_name, unique, reading)
    yield from usable(items, rejects, f"{path}: {LEFT_OUT}", path)
    if rejects is not None:
        rejects.close()


def document_items(
    path: Path | str,
    format_name: FormatName | None = None,
    unique: bool = True,
    reading: Reading = ANNOTATED,
) -> Iterator[Item]:
    """Every document in its place, usable or not, and what is left out; of one id the first is usable if `unique`."""
    path = Path(path)
    name = format_name or format_of(path)
    if name not in READERS:
        raise RequestError(f"{path}: {name} is only written. Read one of {', '.join(READERS)}.")
    if not path.exists():
        raise RequestError(f"there is no file or folder {path}. Check the path; in a recipe it counts from its folder.")
    if path.is_dir() and not brat_files(path):
        raise RequestError(f"{path}: expected .txt or .ann files in it, found none. Give a file, or their own folder.")
    module, function = READERS[name].split(":")
    read: Callable[[Path, Reading], Iterator[Item]] = getattr(import_module(f"{__name__}.{module}"), function)
    items = with_placed_entities(read(path, reading), reading)
    return with_distinct_ids(items, "an id that another document has") if unique else items
