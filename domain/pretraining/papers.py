"""Documents in XML: abstracts of MEDLINE/PubMed, articles of PubMed Central (JATS), alone or in a tar.

expat reads them. It fetches nothing: external entities and DTDs are not followed, and one that is used is an error, as
is an internal one that grows beyond bounds ("billion laughs"; expat 2.4 and later). Named characters of HTML, which
JATS takes from its DTD, are known without it.
"""

import html.entities
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple, TypeVar
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from xml.parsers.expat import ErrorString

from bertrelay.data.readers import open_input
from bertrelay.data.tables import Unusable
from bertrelay.errors import RequestError
from domain.pretraining.documents import NO_TEXT, Document, Item, LeftOut

COLLECTIONS = ("PubmedArticleSet", "MedlineCitationSet", "pmc-articleset")
ARTICLE, DELETED = "article", "DeleteCitation"
NOT_PROSE = {
    "title", "label", "fig", "fig-group", "table-wrap", "table-wrap-group", "table", "disp-formula",
    "disp-formula-group", "tex-math", "supplementary-material", "ref-list", "fn-group", "fn", "object-id",
}  # fmt: skip
NAMED_CHARACTERS = {name[:-1]: text for name, text in html.entities.html5.items() if name.endswith(";")}
BREAK = "\0"  # no XML holds one
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
    return _read(file, {**dict.fromkeys(READERS, _citation_of), DELETED: _deleted}, lambda _: Citation())


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
    return Document(text, name) if text else LeftOut(NO_TEXT)


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
        elif _tag(element) == "p":  # a list stands inside a paragraph and has its own
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
