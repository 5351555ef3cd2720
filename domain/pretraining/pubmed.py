"""Documents of XML: abstracts of MEDLINE/PubMed and articles of PubMed Central (JATS), as single files or in a tar.

expat reads it and fetches nothing: external entities and DTDs are not followed, and one that is used is an error, as is
an internal one that grows beyond bounds ("billion laughs"; expat 2.4 and later). Named characters of HTML, which JATS
takes from its DTD, are built in.
"""

import html.entities
import re
import tarfile
import zlib
from collections.abc import Callable, Container, Iterator
from pathlib import Path, PurePosixPath
from typing import IO
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from xml.parsers.expat import ErrorString

import pandas as pd

from bertrelay.data.readers import LONGEST_LINE, open_input
from bertrelay.data.tables import Rejected
from bertrelay.errors import RequestError
from bertrelay.progress import progress
from domain.pretraining.settings import Files, format_of
from domain.reading import NO_TEXT, TextDocument, TextItem

COLLECTIONS = ("PubmedArticleSet", "MedlineCitationSet", "pmc-articleset")
ARTICLE, DELETE_CITATION = "article", "DeleteCitation"
NOT_PROSE = {
    "title", "label", "fig", "fig-group", "table-wrap", "table-wrap-group", "table", "disp-formula",
    "disp-formula-group", "tex-math", "supplementary-material", "ref-list", "fn-group", "fn", "object-id",
}  # fmt: skip
NAMED_CHARACTERS = {name[:-1]: text for name, text in html.entities.html5.items() if name.endswith(";")}
BREAK, RAISED, LOWERED, SHIFT_END = "\0", "\1", "\2", "\3"  # not allowed in XML
SHIFTED = {"sup": RAISED, "sub": LOWERED}
SECOND_IN_MATHML = {"msup": "^", "msub": LOWERED, "mfrac": "/"}
"""The sign between the first and the second part of a formula: x^2, 1/2."""
DIGITS_MEET = re.compile(rf"(?<=\d){SHIFT_END}+(?=\d)")
EXPONENT = re.compile(rf"(?<=\d){RAISED}\s*(?=[+−–-]?\d)")
INDEX = re.compile(rf"(?<=\d){LOWERED}\s*(?=\d)")
SHIFTS = re.compile(f"[{RAISED}{LOWERED}]")
EMPTY_BRACKETS = re.compile(
    r"(?<!\s)\s*+(?:\((?:ref(?:s|erences?)?\.?[\s,;–-]++)?+[\s,;–-]*+\)|\[[\s,;–-]*+\])", re.IGNORECASE
)
ONLY_SEPARATORS = re.compile(r"[\s,;–-]*")
TRANSLATED = re.compile(r"^\[([^\[\]]*)\](\.?)$")
NO_TITLE = "Not Available"
CUT_BY_MEDLINE = re.compile(r" ?\(ABSTRACT TRUNCATED[^()]*\)")


def read_papers(file: Path) -> Iterator[TextItem]:
    """Streams the documents of an XML file or of a tar of such files; memory holds one at a time.

    Broken XML makes an article that is a file of its own unusable; in a collection nothing after it can be read.
    Raises RequestError for that, and for a file that is cut off or neither MEDLINE nor JATS; in a tar such a member is
    rejected.
    """
    for element in _elements(file, READERS):
        yield element if isinstance(element, Rejected) else READERS[_tag(element)](element)


def _elements(file: Path, tags: Container[str]) -> Iterator[Element | Rejected]:
    try:
        with open_input(str(file)) as stream:
            if not {".tar", ".tgz"}.intersection(map(str.lower, file.suffixes)):
                yield from _parsed(stream, str(file), tags)
                return
            is_empty = True
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in filter(_is_paper, archive):
                    content = archive.extractfile(member)
                    if content is not None:
                        yield from _parsed(content, f"{file}:{member.name}", tags, in_tar=True)
                        is_empty = False
            if is_empty:
                raise RequestError(
                    f"documents: {file} has no file to read; expected names that end in .xml or .nxml. Pack such "
                    "files, or leave this one out."
                )
    except (EOFError, OSError, zlib.error, tarfile.TarError) as error:
        raise RequestError(f"{file} is cut off or damaged ({type(error).__name__}). Fetch or pack it again.") from None


def _is_paper(member: tarfile.TarInfo) -> bool:
    """True for XML that is not hidden, as the companion of each file in an archive of a Mac is (`._a.xml`)."""
    path = PurePosixPath(member.name)
    is_hidden = any(part[0] == "." for part in path.parts)
    return member.isfile() and path.suffix.lower() in (".xml", ".nxml") and not is_hidden


class _Limited:
    """A stream of XML with at most `LONGEST_LINE` bytes a document, as a document is in memory as a whole.

    left: bytes until an error.
    """

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self._stream, self._name, self.left = stream, name, LONGEST_LINE

    def read(self, size: int = -1) -> bytes:
        content = self._stream.read(size)
        self.left -= len(content)
        if self.left < 0:
            raise RequestError(
                f"{self._name}: expected documents of at most {LONGEST_LINE >> 20} MiB, found a longer one; remove it"
            )
        return content


def _parsed(stream: IO[bytes], name: str, tags: Container[str], in_tar: bool = False) -> Iterator[Element | Rejected]:
    parser, limited = ElementTree.XMLParser(), _Limited(stream, name)
    parser.entity.update(NAMED_CHARACTERS)
    root: Element | None = None
    try:
        for event, element in ElementTree.iterparse(limited, ("start", "end"), parser):
            if root is None:
                root = element
                if _tag(root) not in (*COLLECTIONS, ARTICLE):
                    if in_tar:
                        yield Rejected("neither MEDLINE/PubMed nor JATS", f"found {_tag(root)!r}", file=name, line=1)
                        return
                    raise RequestError(
                        f"{name}: expected XML of MEDLINE/PubMed or of JATS ({', '.join(COLLECTIONS)} or {ARTICLE}), "
                        f"found {_tag(root)!r}. Leave this file out."
                    )
            if event == "end" and _tag(element) in tags:
                yield element
                limited.left = LONGEST_LINE
                root.clear()  # else the tree of all documents would grow in memory
    except ElementTree.ParseError as error:
        line, detail = error.position[0], ErrorString(error.code)
        if root is not None and _tag(root) in COLLECTIONS:
            raise RequestError(
                f"{name}, line {line:,}: broken XML ({detail}), so the documents after it cannot be found. "
                "Fetch this file again, or leave it out."
            ) from None
        yield Rejected("broken XML", detail, file=name, line=line)
    except RequestError:
        raise
    except (LookupError, ValueError) as error:  # an encoding that expat does not have
        yield Rejected(
            "broken XML", f"{error}; convert it to UTF-8, in its first line too, with iconv", file=name, line=1
        )


def _tag(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _document(paragraphs: list[str], name: str) -> TextItem:
    text = "\n\n".join(filter(None, paragraphs))
    return TextDocument(text, name) if text else Rejected(NO_TEXT, is_fault=False)


def _citation(element: Element) -> TextItem:
    """Title and abstract of MEDLINE; sections keep their labels, as PubMed shows them."""
    title = TRANSLATED.sub(r"\1\2", _text(element.find(".//ArticleTitle")))
    paragraphs = ["" if title.startswith(NO_TITLE) else title]
    for section in element.iterfind(".//Abstract/AbstractText"):
        text, label = CUT_BY_MEDLINE.sub("", _text(section)), section.get("Label", "")
        paragraphs.append(f"{label}: {text}" if text and label not in ("", "UNLABELLED") else text)
    return _document(paragraphs, element.findtext("PMID", ""))


def _article(element: Element) -> TextItem:
    """The paragraphs of the body of a JATS article, without headings, figures, tables and marks of references."""
    ids = element.iterfind("{*}front/{*}article-meta/{*}article-id")
    names = {number.get("pub-id-type"): number.text for number in ids}
    name = next(filter(None, map(names.get, ("pmcid", "pmc", "pmid", "doi"))), "")
    body = element.find("{*}body")
    return _document([] if body is None else _paragraphs(body), name)


def _paragraphs(body: Element) -> list[str]:
    for element in reversed(list(body.iter())):  # inner elements first
        if _tag(element) in NOT_PROSE or _is_reference(element):
            tail = element.tail
            element.clear()
            element.tail = tail
        elif _tag(element) == "break":
            element.tail = " " + (element.tail or "")
        elif _tag(element) == "p":  # a list is inside a paragraph and has its own
            element.text = BREAK + (element.text or "")
            element.tail = BREAK + (element.tail or "")
    parts = _joined(body).split(BREAK)
    return [EMPTY_BRACKETS.sub("", " ".join(part.split())) for part in parts]


def _is_reference(element: Element) -> bool:
    """A mark such as "12" (names and years stay), or a superscript with nothing left but commas between such marks."""
    if _tag(element) == "xref":
        return element.get("ref-type") == "bibr" and not any(map(str.isalpha, "".join(element.itertext())))
    holds_marks = _tag(element) == "sup" and any(_tag(inner) == "xref" for inner in element)
    return holds_marks and ONLY_SEPARATORS.fullmatch("".join(element.itertext())) is not None


def _text(element: Element | None) -> str:
    return "" if element is None else " ".join(_joined(element).split())


def _joined(element: Element) -> str:
    """The text of an element. Digits that are raised or lowered beside digits stay apart: 10^6, not 106; but Ca2+, H2O.

    Marks the places of these in `element`.
    """
    for inner in element.iter():
        tag = _tag(inner)
        if mark := SHIFTED.get(tag):
            _enclose(inner, mark)
        elif (mark := SECOND_IN_MATHML.get(tag)) and len(inner) > 1:
            _enclose(inner[1], mark)
    text = DIGITS_MEET.sub(" ", "".join(element.itertext())).replace(SHIFT_END, "")
    return SHIFTS.sub("", INDEX.sub("_", EXPONENT.sub("^", text)))


def _enclose(element: Element, mark: str) -> None:
    element.text, element.tail = mark + (element.text or ""), SHIFT_END + (element.tail or "")


READERS: dict[str, Callable[[Element], TextItem]] = {
    "MedlineCitation": _citation,
    "BookDocument": _citation,
    ARTICLE: _article,
}


REVISED, DELETED = "revised in a newer record", "deleted from PubMed"
PUBMED_FILE = re.compile(r"pubmed(\d\d)n(\d+)\.xml")  # the year, and a number that runs through baseline and updates
CITATION_COLUMNS = ["item", "number", "version", "is_deletion"]


def outdated(files: Files) -> dict[tuple[int, int], str]:
    """The records in XML files that PubMed has revised or deleted, with the reason, by numbers of file and item.

    Items are those of `read_papers`, from 1. Only the highest version of a citation is read, and of equal versions that
    of the newest file, by PubMed's file names, else by the order of files.
    """
    papers = {
        number: path for number, (source, path) in enumerate(files) if (source.format or format_of(path)) == "xml"
    }
    if not papers:
        return {}
    tables = []
    with progress("searching for revised records", len(papers), "files") as bar:
        for number in sorted(papers, key=lambda number: _age(papers[number])):
            table = pd.DataFrame(_citations(papers[number]), columns=CITATION_COLUMNS, dtype="int64")
            tables.append(table.assign(file=number))
            bar.advance(1)
    records = pd.concat(tables, ignore_index=True).sort_values(["number", "version"], kind="stable")
    is_deletion = records["is_deletion"] == 1
    is_deleted = is_deletion.groupby([records["number"], records["version"]]).transform("last")
    last = records[~is_deletion & ~is_deleted].drop_duplicates("number", keep="last")
    old = records[~is_deletion].drop(last.index)
    reasons = is_deleted[old.index].map({True: DELETED, False: REVISED})
    return dict(zip(zip(old["file"], old["item"], strict=True), reasons, strict=True))


def _citations(file: Path) -> Iterator[tuple[int, int, int, bool]]:
    """`CITATION_COLUMNS` of a file's citations and of deletions, which have the number of the item before."""
    item = 0
    for element in _elements(file, {*READERS, DELETE_CITATION}):
        is_deletion = isinstance(element, Element) and _tag(element) == DELETE_CITATION
        item += not is_deletion
        for number in element.iterfind("PMID") if isinstance(element, Element) else ():
            digits, version = (number.text or "").strip(), number.get("Version", "1")
            if digits.isdecimal() and int(digits) and version.isdecimal():
                yield item, int(digits), int(version), is_deletion


def _age(file: Path) -> tuple[int, int]:
    name = PUBMED_FILE.match(file.name)
    return (int(name[1]), int(name[2])) if name else (-1, 0)
