"""Documents in XML: abstracts of MEDLINE/PubMed, articles of PubMed Central (JATS), alone or in a tar.

expat reads them. It fetches nothing: external entities and DTDs are not followed, and one that is used is an error, as
is an internal one that grows beyond bounds ("billion laughs"; expat 2.4 and later). Named characters of HTML, which
JATS takes from its DTD, are known without it.
"""

import html.entities
import re
import tarfile
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple, TypeVar
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from xml.parsers.expat import ErrorString

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.readers import open_input
from bertrelay.data.tables import Unusable
from bertrelay.errors import RequestError
from bertrelay.progress import progress
from domain.pretraining.documents import NO_TEXT, Item, SkippedDocument, TextDocument, read_blocks, read_table
from domain.pretraining.settings import FORMATS, DocumentSource, format_of

COLLECTIONS = ("PubmedArticleSet", "MedlineCitationSet", "pmc-articleset")
ARTICLE, DELETE_CITATION = "article", "DeleteCitation"
NOT_PROSE = {
    "title", "label", "fig", "fig-group", "table-wrap", "table-wrap-group", "table", "disp-formula",
    "disp-formula-group", "tex-math", "supplementary-material", "ref-list", "fn-group", "fn", "object-id",
}  # fmt: skip
NAMED_CHARACTERS = {name[:-1]: text for name, text in html.entities.html5.items() if name.endswith(";")}
BREAK = "\0"  # not allowed in XML
EMPTY_BRACKETS = re.compile(r"\s*(?:\([\s,;–-]*\)|\[[\s,;–-]*\])")
ONLY_SEPARATORS = re.compile(r"[\s,;–-]*")
TRANSLATED = re.compile(r"^\[([^\[\]]*)\](\.?)$")
NO_TITLE = "Not Available"
CUT_BY_MEDLINE = re.compile(r"\s*\(ABSTRACT TRUNCATED[^)]*\)")

Read = TypeVar("Read")


class Citation(NamedTuple):
    """Which record of MEDLINE something is: PubMed's number (0 for none) and the version of the record."""

    number: int = 0
    version: int = 1


def read_papers(file: Path) -> Iterator[Item]:
    """Streams the documents of an XML file or of a tar of such files; memory holds one at a time.

    Broken XML makes an article that is a file of its own unusable; in a collection nothing after it can be read.
    Raises RequestError for that, and for a file that is cut off or neither MEDLINE nor JATS.
    """
    return _read(file, READERS, lambda unusable: unusable)


def read_citations(file: Path) -> Iterator[Citation | list[Citation]]:
    """Which record each item of `read_papers` is, in its place, and between them lists of those that are deleted."""
    return _read(file, {**dict.fromkeys(READERS, _citation_of), DELETE_CITATION: _deleted}, lambda _: Citation())


def _read(
    file: Path, readers: Mapping[str, Callable[[Element], Read]], unusable: Callable[[Unusable], Read]
) -> Iterator[Read]:
    with open_input(str(file)) as stream:
        try:
            if ".tar" in file.suffixes or file.suffix == ".tgz":
                yield from _members(stream, file, readers, unusable)
            else:
                yield from _papers(stream, str(file), readers, unusable)
        except (EOFError, OSError, zlib.error, tarfile.TarError) as error:
            raise RequestError(
                f"{file} is cut off or damaged ({type(error).__name__}). Fetch or pack it again."
            ) from None


def _members(
    stream: IO[bytes],
    file: Path,
    readers: Mapping[str, Callable[[Element], Read]],
    unusable: Callable[[Unusable], Read],
) -> Iterator[Read]:
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.name.endswith((".xml", ".nxml")) else None
            if content is not None:
                yield from _papers(content, f"{file}:{member.name}", readers, unusable)


def _papers(
    stream: IO[bytes],
    name: str,
    readers: Mapping[str, Callable[[Element], Read]],
    unusable: Callable[[Unusable], Read],
) -> Iterator[Read]:
    parser = ElementTree.XMLParser()
    parser.entity.update(NAMED_CHARACTERS)
    root: Element | None = None
    try:
        for event, element in ElementTree.iterparse(stream, ("start", "end"), parser):
            if root is None:
                root = element
                _check_root(root, name)
            read = readers.get(_tag(element)) if event == "end" else None
            if read is not None:
                yield read(element)
                root.clear()  # else the tree of all documents would grow in memory
    except ElementTree.ParseError as error:
        yield unusable(_broken(error, root, name))


def _check_root(root: Element, name: str) -> None:
    if _tag(root) not in (*COLLECTIONS, ARTICLE):
        raise RequestError(
            f"{name}: expected XML of MEDLINE/PubMed or of JATS ({', '.join(COLLECTIONS)} or {ARTICLE}), found "
            f"{_tag(root)!r}. Leave this file out."
        )


def _broken(error: ElementTree.ParseError, root: Element | None, name: str) -> Unusable:
    line, detail = error.position[0], ErrorString(error.code)
    if root is not None and _tag(root) in COLLECTIONS:
        raise RequestError(
            f"{name}, line {line:,}: broken XML ({detail}), so the documents after it cannot be found. "
            "Fetch this file again, or leave it out."
        ) from None
    return Unusable(name, line, "broken XML", detail)


def _tag(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _document(paragraphs: list[str], name: str) -> Item:
    text = "\n\n".join(filter(None, paragraphs))
    return TextDocument(text, name) if text else SkippedDocument(NO_TEXT)


def _citation(element: Element) -> Item:
    """Title and abstract of MEDLINE; sections keep their labels, as PubMed shows them."""
    title = TRANSLATED.sub(r"\1\2", _text(element.find(".//ArticleTitle")))
    abstract = [_section(part) for part in element.iterfind(".//Abstract/AbstractText")]
    return _document(["" if title.startswith(NO_TITLE) else title, *abstract], element.findtext("PMID", ""))


def _section(element: Element) -> str:
    text, label = CUT_BY_MEDLINE.sub("", _text(element)), element.get("Label", "")
    return f"{label}: {text}" if text and label not in ("", "UNLABELLED") else text


def _article(element: Element) -> Item:
    """The paragraphs of the body of a JATS article, without headings, figures, tables and marks of references."""
    names = {
        found.get("pub-id-type"): found.text for found in element.iterfind("{*}front/{*}article-meta/{*}article-id")
    }
    name = next((names[kind] for kind in ("pmcid", "pmc", "pmid", "doi") if names.get(kind)), None)
    body = element.find("{*}body")
    return _document([] if body is None else _paragraphs(body), name or "")


def _paragraphs(body: Element) -> list[str]:
    for element in reversed(list(body.iter())):  # what is inside another comes first
        if _tag(element) in NOT_PROSE or _is_reference(element):
            _empty(element)
        elif _tag(element) == "p":  # a list is inside a paragraph and has its own
            element.text = BREAK + (element.text or "")
            element.tail = BREAK + (element.tail or "")
    parts = "".join(body.itertext()).split(BREAK)
    return [EMPTY_BRACKETS.sub("", " ".join(part.split())) for part in parts]


def _is_reference(element: Element) -> bool:
    """A mark such as "12" (names and years stay), or a superscript with nothing left but commas between such marks."""
    if _tag(element) == "xref":
        return element.get("ref-type") == "bibr" and not any(map(str.isalpha, "".join(element.itertext())))
    holds_marks = _tag(element) == "sup" and any(_tag(inner) == "xref" for inner in element)
    return holds_marks and ONLY_SEPARATORS.fullmatch("".join(element.itertext())) is not None


def _empty(element: Element) -> None:
    tail = element.tail
    element.clear()
    element.tail = tail


def _text(element: Element | None) -> str:
    return "" if element is None else " ".join("".join(element.itertext()).split())


def _citation_of(element: Element) -> Citation:
    """The record of an element, or of the `PMID` that an element is."""
    number = element if _tag(element) == "PMID" else element.find("PMID")
    digits = "" if number is None else (number.text or "").strip()
    version = "1" if number is None else number.get("Version", "1")
    return Citation(int(digits), int(version)) if digits.isdecimal() and version.isdecimal() else Citation()


def _deleted(element: Element) -> list[Citation]:
    return [_citation_of(number) for number in element.iterfind("PMID")]


READERS: dict[str, Callable[[Element], Item]] = {
    "MedlineCitation": _citation,
    "BookDocument": _citation,
    ARTICLE: _article,
}


REVISED, DELETED = "revised in a newer record", "deleted from PubMed"
PUBMED_FILE = re.compile(r"pubmed(\d\d)n(\d+)\.xml")  # the year, and a number that runs through baseline and updates
DELETION = -1


def outdated(files: Sequence[Path]) -> dict[tuple[int, int], str]:
    """The records in XML `files` that are out of date, with the reason: by the place of the file and of the item in it.

    Items are those of `read_papers`, from 1. The highest version of a citation is kept, and of equal ones that of the
    newest file; files are as old as PubMed's names, others as they are ordered.
    """
    columns = [array("q") for _ in range(5)]
    by_age = sorted(range(len(files)), key=lambda place: _age(files[place]))
    with progress("looking for revised records", len(files), "files") as bar:
        for age, place in enumerate(by_age):
            for item, citation, is_deleted in _citations(files[place]):
                row = (*citation, age, item, DELETION if is_deleted else place)
                for column, value in zip(columns, row, strict=True):
                    column.append(value)
            bar.advance(1)
    numbers, versions, ages, items, places = (np.frombuffer(column, np.int64) for column in columns)
    order = np.lexsort((items, ages, versions, numbers))
    numbers, versions, items, places = (each[order] for each in (numbers, versions, items, places))
    is_last = _differs(numbers) | _differs(versions)  # of its version
    last = np.flatnonzero(is_last)
    is_deleted = (places[last] == DELETION)[np.cumsum(is_last) - is_last]  # by the last word on its version
    kept = last[places[last] != DELETION]
    kept = kept[_differs(numbers[kept])]
    is_outdated = places != DELETION
    is_outdated[kept] = False
    return {
        (int(places[row]), int(items[row])): DELETED if is_deleted[row] else REVISED
        for row in np.flatnonzero(is_outdated)
    }


def _citations(file: Path) -> Iterator[tuple[int, Citation, bool]]:
    """The citations of a file and those that it deletes, each with the number of the item it is, or follows."""
    item = 0
    for found in read_citations(file):
        item += isinstance(found, Citation)
        for citation in [found] if isinstance(found, Citation) else found:
            if citation.number:
                yield item, citation, not isinstance(found, Citation)


def _age(file: Path) -> tuple[int, int]:
    found = PUBMED_FILE.match(file.name)
    return (int(found[1]), int(found[2])) if found else (-1, 0)


def _differs(values: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each value differs from the next one, which the last one does."""
    return np.append(values[1:] != values[:-1], np.ones(min(1, len(values)), bool))


Files = Sequence[tuple[DocumentSource, Path]]
"""Files, each with the source that it belongs to."""


def files_of(source: DocumentSource) -> list[Path]:
    """The file of `source`, or those in its folder that can be read, by name.

    Raises RequestError when there is none.
    """
    path = Path(source.path)
    if not path.exists():
        raise RequestError(f"documents: there is no file or folder {path}. Check the path.")
    if not path.is_dir():
        return [path]
    inner = sorted(path.rglob("*"), key=lambda file: file.relative_to(path).as_posix())
    wanted = {source.format} if source.format else set(FORMATS.values())
    found = [file for file in inner if file.is_file() and file.name[0] != "." and format_of(file) in wanted]
    if not found:
        raise RequestError(
            f"documents: the folder {path} has no file to read; expected names that end in "
            f"{', '.join(FORMATS)}, .gz or not. Check the path, or give each file and its format."
        )
    return found


def read_all(files: Files, file: int = 0, item: int = 0) -> Iterator[tuple[int, int, Item]]:
    """Streams the documents of all files, each with the place of its file and, from 1, its own in it.

    file, item: where to resume; files before it are not read. Records that PubMed has revised or deleted are left out.
    """
    papers = [place for place, (source, path) in enumerate(files) if _is_xml(source, path)]
    reasons = outdated([files[place][1] for place in papers]) if papers else {}
    left_out = {(papers[place], number): SkippedDocument(reason) for (place, number), reason in reasons.items()}
    for place, (source, path) in enumerate(files[file:], file):
        skipped = item if place == file else 0
        for number, found in enumerate(islice(read_documents(source, path), skipped, None), skipped + 1):
            yield place, number, left_out.get((place, number), found)


def _is_xml(source: DocumentSource, file: Path) -> bool:
    return (source.format or format_of(file)) == "xml"


def read_documents(source: DocumentSource, file: Path) -> Iterator[Item]:
    """Streams the documents of one file of `source`.

    Raises RequestError for what concerns the whole file: it is not there, cut off, or not what it should be.
    """
    match source.format or format_of(file):
        case None:
            raise RequestError(
                f"documents: how is {file} to be read? Its name ends in none of {', '.join(FORMATS)} (.gz or not); "
                f"give its `format`: {', '.join(sorted({*FORMATS.values()}))}."
            )
        case "blocks":
            return read_blocks(file)
        case "xml":
            return read_papers(file)
        case _:
            return read_table(source, file)
