"""The formats of annotated documents, and files of them, read and written; docs/formats.md shows their content."""

import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pydantic import model_validator

from bertrelay.data.readers import open_input
from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from bertrelay.files import check_location, refuse_packed, write_error
from bertrelay.progress import log
from bertrelay.settings import DataSource, InputFile, refuse_idle
from domain.biomedical.documents.brat import brat_files
from domain.biomedical.documents.document import (
    ANNOTATED,
    LEFT_OUT,
    Document,
    Item,
    Reading,
    RepeatedIds,
    with_placed_entities,
)
from domain.biomedical.documents.writing import Write, Writer, append
from domain.reading import usable, with_distinct_ids

BothName = Literal["conll", "conll-iobes", "pubtator", "bioc", "bioc-xml", "brat", "jsonl", "spacy"]
WrittenName = Literal[BothName, "html", "triples"]
ReadName = Literal[BothName, "text", "lines"]
FormatName = Literal[ReadName, "html", "triples"]


class Format(NamedTuple):
    """A format of annotated documents.

    reads: module and function of this folder that stream the `Item`s of a file or folder; empty if only written.
    writes: module and `Writer` of this folder; empty if only read.
    suffixes: of files; a stage writes the first one.
    """

    reads: str
    writes: str
    suffixes: tuple[str, ...] = ()


FORMATS: dict[FormatName, Format] = {
    "conll": Format("conll:read", "conll:WRITER", (".conll", ".tsv", ".iob", ".iob1", ".iob2", ".bilou", ".bio")),
    "conll-iobes": Format("conll:read", "conll:IOBES_WRITER", (".iobes",)),
    "pubtator": Format("pubtator:read", "pubtator:WRITER", (".pubtator",)),
    "bioc": Format("bioc:read", "bioc:WRITER", (".json", ".bioc")),
    "bioc-xml": Format("bioc_xml:read", "bioc_xml:WRITER", (".xml",)),
    "brat": Format("brat:read", "brat:WRITER", (".ann",)),
    "jsonl": Format("jsonl:read", "jsonl:WRITER", (".jsonl", ".ndjson")),
    "spacy": Format("spacy_docbin:read", "spacy_docbin:WRITER", (".spacy",)),
    "text": Format("jsonl:read_text_files", "", (".txt",)),
    "lines": Format("jsonl:read_text_lines", ""),
    "html": Format("", "html:WRITER", (".html",)),
    "triples": Format("", "triples:WRITER", (".csv",)),
}
"""A module is imported only when its format is read or written, as settings need no more than the names."""
READ = [name for name, entry in FORMATS.items() if entry.reads]
WRITTEN = [name for name, entry in FORMATS.items() if entry.writes]
SUFFIXES = {suffix: name for name, entry in FORMATS.items() for suffix in entry.suffixes}


PUBTATOR = "pubtator"


class AnnotatedSource(DataSource):
    """An annotated file or folder."""

    path: InputFile
    """File, folder, or `@stage/path`."""
    format: ReadName | None = None
    """Format of the file; by its suffix when absent."""
    repeated_ids: RepeatedIds = "error"
    """Meaning of a record of PubTator with the id of the one before it: an `error`, or the next of its document's
    `passages`, as full texts are written."""

    @model_validator(mode="after")
    def _ids_of_pubtator(self) -> Self:
        if self.format not in (None, PUBTATOR):
            refuse_idle(self, "repeated_ids", because=f"only {PUBTATOR} repeats them")
        return self


DISTINCT = "give each one of its own"
AS_PASSAGES = (
    f'{DISTINCT}; where it is the next passage of a full text, set `repeated_ids = "passages"` in a recipe, or '
    "`--repeated-ids passages` of a command"
)
TITLE_LINE = re.compile(rb"[^|\t\n]+\|t\|")


def format_of(path: Path | str) -> FormatName:
    """The format of an existing file or folder, or of one to be written, by its name.

    A folder holds brat documents, or raw text if no `.ann` file is in it. A `.txt` file that begins like PubTator is
    PubTator; in a folder with `.ann` files it is brat. Raises RequestError for a suffix of no format.
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
    if suffixes[-1:] == [".nxml"]:
        raise RequestError(f"{path}: expected annotated documents, found an article of JATS, which has none.")
    if not suffixes or suffixes[-1] not in SUFFIXES:
        raise RequestError(
            f"{path}: expected a suffix that implies the format ({', '.join(SUFFIXES)}) or a folder, found "
            f"{path.suffix or 'none'}. Say which it is: {', '.join(FORMATS)}."
        )
    return SUFFIXES[suffixes[-1]]


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
    """Streams the documents of a file or folder of any format; `format_of` gives the format if None.

    rejects: counts used and unusable documents; without it the first unusable one raises RequestError. It is closed at
        the end of the file unless a `with` block is around it.
    unique: reject a second document with the same id, which takes 150 bytes of memory for each document.
    reading: what is read of each document.
    Raises RequestError for a whole file that is missing, damaged or of another format.
    """
    items = document_items(path, format_name, unique, reading)
    yield from usable(items, rejects, f"{path}: {LEFT_OUT}", path)
    if rejects is not None:
        rejects.close()


def read_sources(sources: Iterable[AnnotatedSource], rejects: Rejects | None = None) -> Iterator[Document]:
    """Streams the documents of annotated files, see `read_documents`."""
    for source in sources:
        reading = ANNOTATED._replace(repeated_ids=source.repeated_ids)
        yield from read_documents(source.path, source.format, rejects, reading=reading)


def document_items(
    path: Path | str,
    format_name: FormatName | None = None,
    unique: bool = True,
    reading: Reading = ANNOTATED,
) -> Iterator[Item]:
    """Yields every document, usable or not, and left-out annotations.

    unique: only the first document of an id is usable.
    """
    path = Path(path)
    name = format_name or format_of(path)
    if name not in READ:
        raise RequestError(f"{path}: {name} is only written. Read one of {', '.join(READ)}.")
    if not path.exists():
        raise RequestError(f"there is no file or folder {path}. Check the path; in a recipe it counts from its folder.")
    if path.is_dir() and not brat_files(path):
        raise RequestError(f"{path}: expected .txt or .ann files in it, found none. Give a file, or their own folder.")
    read: Callable[[Path, Reading], Iterator[Item]] = _loaded(FORMATS[name].reads)
    check_repeated_ids(path, name, reading)
    items = with_placed_entities(read(path, reading), reading)
    advice = AS_PASSAGES if name == PUBTATOR and reading.repeated_ids == "error" else DISTINCT
    return with_distinct_ids(items, "an id that another document has", advice) if unique else items


def check_repeated_ids(path: Path, name: FormatName, reading: Reading) -> None:
    """Raises RequestError for `repeated_ids` of another format than PubTator."""
    if reading.repeated_ids != "error" and name != PUBTATOR:
        raise RequestError(f"{path}: repeated_ids: only {PUBTATOR} has ids that repeat, found {name}; leave it out")


def write_documents(
    path: Path | str,
    documents: Iterable[Document],
    format_name: FormatName | None = None,
    rejects: Rejects | None = None,
    overwrite: bool = False,
) -> None:
    """Writes documents to a file or folder, as `writing` does.

    overwrite: replace an existing file, which is an error otherwise; a folder must be empty or new.
    """
    check_location(Path(path), overwrite=overwrite)
    with writing(path, format_name, rejects) as write:
        for document in documents:
            write(document)
        if rejects is not None:
            rejects.close()  # too many of them end before the output is there


@contextmanager
def writing(path: Path | str, format_name: FormatName | None = None, rejects: Rejects | None = None) -> Iterator[Write]:
    """Opens a file or folder of any format and gives the function that appends a document.

    The file appears at the end of the block, only if all went well.
    rejects: counts written documents and those that the format cannot hold; without it the first of these raises
        RequestError.
    """
    path = Path(path)
    name = check_written(path, format_name)
    writer = writer_of(name)
    lost = Counter[str]()
    try:
        with writer.opened(path, writer.rendered) as write:
            yield partial(_append, write=write, name=name, rejects=rejects, lost=lost)
    except OSError as error:
        raise write_error(path, error) from error
    if lost:
        kinds = ", ".join(f"{count:,} × {kind}" for kind, count in lost.most_common())
        log(f"{path}: left out, as {name} cannot hold them: {kinds}")


def _append(document: Document, write: Write, name: WrittenName, rejects: Rejects | None, lost: Counter[str]) -> None:
    """Passes a document to `write` as `append` does; `lost` counts the relations that format `name` cannot hold."""
    append(document, write, name, rejects)
    if document.relations:
        held = Counter[str]()
        fitted = writer_of(name).fit(document, held)
        if missing := len(document.relations) - len(fitted.relations):
            lost["a relation"] += missing


def check_written(path: Path, format_name: FormatName | None = None) -> WrittenName:
    """The format of an output: `format_name`, or by its suffix.

    Raises RequestError for a format that is only read, and for a path that names no new file or folder.
    """
    refuse_packed(path)
    name = format_name or format_of(path)
    if path.name in ("", "..") or (name == "brat" and path.is_symlink()):
        kind = "a new folder or an empty one" if name == "brat" else "a new file"
        target = f"the symbolic link {path}" if path.is_symlink() else path
        raise RequestError(f"output: expected {kind} for {name}, found {target}; give its name")
    if name == "text" or name == "lines":
        raise RequestError(f"{path}: {name} is only read. Write one of {', '.join(WRITTEN)}.")
    return name


def check_held(document: Document, name: WrittenName, rejects: Rejects | None = None) -> None:
    """Counts in `rejects` if the format `name` can hold `document` or not; without it, raises RequestError if not."""
    append(document, writer_of(name).rendered, name, rejects)


def writer_of(name: WrittenName) -> Writer:
    """The writer of a format."""
    writer: Writer = _loaded(FORMATS[name].writes)
    return writer


def _loaded(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(f"{__package__}.{module}"), name)
