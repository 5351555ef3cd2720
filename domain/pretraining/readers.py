"""Documents of tables (JSONL, CSV, TSV, Parquet), of blocks of plain text, and of XML.

XML is abstracts of MEDLINE/PubMed and articles of PubMed Central (JATS), alone or in a tar. expat reads it and fetches
nothing: external entities and DTDs are not followed, and one that is used is an error, as is an internal one that grows
beyond bounds ("billion laughs"; expat 2.4 and later). Named characters of HTML, which JATS takes from its DTD, are
known without it.
"""

import html.entities
import re
import tarfile
import zlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import groupby, islice
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from xml.parsers.expat import ErrorString

import pandas as pd

from bertrelay.data.readers import LONGEST_LINE, open_input
from bertrelay.data.records import canonical_id, rows
from bertrelay.data.tables import ABSENT, Column, Record, Table, Unusable
from bertrelay.errors import RequestError
from bertrelay.fingerprint import visible_files
from bertrelay.progress import progress
from domain.pretraining.settings import FORMATS, DocumentSource, format_of

SPLIT, TRAIN = "split", "train"
PARQUET = b"PAR1"
NO_TEXT, NOT_TRAIN, COPY = "without text", "not of the train split", "a copy of an earlier one"


class TextDocument(NamedTuple):
    """A text, paragraphs in lines, and what is known of where it comes from; unknown is empty.

    id: of the document, such as PubMed's number.
    group: whose it is, such as a patient's number.
    """

    text: str
    id: str = ""
    group: str = ""


class SkippedDocument(NamedTuple):
    """A document that is sound and is not read, for a reason to count by."""

    reason: str


Item = TextDocument | SkippedDocument | Unusable
"""What a source gives for each of its documents."""


# Files

Files = Sequence[tuple[DocumentSource, Path]]
"""Files, each with the source that it belongs to."""


def files_of(source: DocumentSource) -> list[Path]:
    """The file of `source`, or those in its folder that can be read, by name. Raises RequestError for none."""
    path = Path(source.path)
    if not path.exists():
        raise RequestError(f"documents: there is no file or folder {path}. Check the path.")
    if not path.is_dir():
        return [path]
    inner = sorted(visible_files(path), key=lambda file: file.relative_to(path).as_posix())
    wanted = {source.format} if source.format else set(FORMATS.values())
    found = [file for file in inner if file.is_file() and format_of(file) in wanted]
    if not found:
        raise RequestError(
            f"documents: the folder {path} has no file to read; expected names that end in "
            f"{', '.join(FORMATS)}, .gz or not. Check the path, or give each file and its format."
        )
    return found


def read_all(files: Files, reasons: Mapping[tuple[int, int], str], shown: bool = False) -> Iterator[Item]:
    """Streams the documents of all files.

    Of equal texts of one group, a patient's for example, the first is read alone; 70 bytes are kept of each.

    reasons: why records are left out, as `outdated` finds them. shown: whether progress is.
    """
    seen = set[int]()
    with progress("reading documents", len(files), "files", shown=shown) as bar:
        for place, (source, path) in enumerate(files):
            for number, found in enumerate(read_documents(source, path), 1):
                reason = reasons.get((place, number))
                if not reason and isinstance(found, TextDocument):
                    content = blake2b(f"{found.group}\0{found.text}".encode(), digest_size=8).digest()
                    reason = COPY if (key := int.from_bytes(content)) in seen else None
                    seen.add(key)
                yield SkippedDocument(reason) if reason else found
            bar.advance()


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


# Tables and plain text


def read_table(source: DocumentSource, file: Path) -> Iterator[Item]:
    """Streams the rows of a table; those of another split than `train` are left out.

    The column `split` of a table, as clinical notes have it, is read whatever the source names and whatever the format:
    notes of validation and test patients are never trained on, nor records without a split beside others with one.
    Raises RequestError at the end where a group, such as a patient, is in train and in another split.
    """
    table = Table.model_validate({"path": str(file), "format": source.format})
    wanted = {"text": source.text, "id": source.id, "group": source.group, "split": source.split}
    columns = {name: column for name, column in wanted.items() if column is not None}
    without_split = None if _has_splits(table, source.text) else TRAIN
    in_train, elsewhere = set[str](), set[str]()  # groups
    for row in rows(table, list(columns.values()), optional=[SPLIT]):
        if isinstance(row, Unusable):
            yield row
            continue
        *given, own_split = row.values
        values = dict(zip(columns, given, strict=True))
        text, *names = (values.get(column) for column in ("text", "id", "group"))
        is_train = values.get("split", TRAIN) == (without_split if own_split is ABSENT else own_split) == TRAIN
        with suppress(ValueError):  # of what is no id, which is reported below
            (in_train if is_train else elsewhere).add(canonical_id(values.get("group")))
        if not is_train:
            yield SkippedDocument(NOT_TRAIN)
        elif text is not None and not isinstance(text, str):
            yield Unusable(row.file, row.line, "not text")
        elif not text or text.isspace():
            yield SkippedDocument(NO_TEXT)
        else:
            try:
                yield TextDocument(text, *map(canonical_id, names))
            except ValueError as error:
                yield Unusable(row.file, row.line, str(error))
    if shared := in_train & elsewhere - {""}:
        raise RequestError(
            f"documents: expected the rows of each {source.group} in one split, found {len(shared):,} in train and in "
            f"another one in {file}. Split by {source.group}."
        )


def _has_splits(table: Table, text: Column) -> bool:
    """Whether a record has a split: of JSON lines any one, of other formats the first."""
    records = (row for row in rows(table, [text], optional=[SPLIT]) if isinstance(row, Record))
    return any(row.values[-1] is not ABSENT for row in islice(records, None if table.file_format == "jsonl" else 1))


def read_blocks(file: Path) -> Iterator[Item]:
    """Streams documents with blank lines between them; one that has a line that cannot be read is unusable."""
    with open_input(str(file)) as stream:
        if stream.read(len(PARQUET)) == PARQUET:  # as plain text its splits would not be seen
            raise RequestError(f"documents: {file} is Parquet and is to be read as blocks; give format = 'parquet'.")
    table = Table.model_validate({"path": str(file), "format": "lines"})
    for has_text, block in groupby(
        rows(table, [0]), lambda row: isinstance(row, Unusable) or bool(row.values[0].strip())
    ):
        if has_text:
            lines = list(block)
            fault = next((line for line in lines if isinstance(line, Unusable)), None)
            yield fault or TextDocument("\n".join(line.values[0] for line in lines if isinstance(line, Record)))


# XML

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
"""What stands between the first and the second part of a formula: x^2, 1/2."""
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


def read_papers(file: Path) -> Iterator[Item]:
    """Streams the documents of an XML file or of a tar of such files; memory holds one at a time.

    Broken XML makes an article that is a file of its own unusable; in a collection nothing after it can be read.
    Raises RequestError for that, and for a file that is cut off or neither MEDLINE nor JATS; in a tar such a one is
    unusable.
    """
    for element in _elements(file, READERS):
        yield element if isinstance(element, Unusable) else READERS[_tag(element)](element)


def _elements(file: Path, tags: Container[str]) -> Iterator[Element | Unusable]:
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
    """Whether it is XML, and not hidden, as what a Mac packs beside each file (`._a.xml`) is."""
    path = PurePosixPath(member.name)
    is_hidden = any(part[0] == "." for part in path.parts)
    return member.isfile() and path.suffix.lower() in (".xml", ".nxml") and not is_hidden


class _Limited:
    """A stream of XML that ends the work where one document takes more than `LONGEST_LINE` of it, as it is held whole.

    left: bytes until then.
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


def _parsed(stream: IO[bytes], name: str, tags: Container[str], in_tar: bool = False) -> Iterator[Element | Unusable]:
    parser, limited = ElementTree.XMLParser(), _Limited(stream, name)
    parser.entity.update(NAMED_CHARACTERS)
    root: Element | None = None
    try:
        for event, element in ElementTree.iterparse(limited, ("start", "end"), parser):
            if root is None:
                root = element
                if _tag(root) not in (*COLLECTIONS, ARTICLE):
                    if in_tar:
                        yield Unusable(name, 1, "neither MEDLINE/PubMed nor JATS", f"found {_tag(root)!r}")
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
        yield Unusable(name, line, "broken XML", detail)
    except RequestError:
        raise
    except (LookupError, ValueError) as error:  # an encoding that expat does not have
        yield Unusable(name, 1, "broken XML", f"{error}; convert it to UTF-8, in its first line too, with iconv")


def _tag(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _document(paragraphs: list[str], name: str) -> Item:
    text = "\n\n".join(filter(None, paragraphs))
    return TextDocument(text, name) if text else SkippedDocument(NO_TEXT)


def _citation(element: Element) -> Item:
    """Title and abstract of MEDLINE; sections keep their labels, as PubMed shows them."""
    title = TRANSLATED.sub(r"\1\2", _text(element.find(".//ArticleTitle")))
    paragraphs = ["" if title.startswith(NO_TITLE) else title]
    for section in element.iterfind(".//Abstract/AbstractText"):
        text, label = CUT_BY_MEDLINE.sub("", _text(section)), section.get("Label", "")
        paragraphs.append(f"{label}: {text}" if text and label not in ("", "UNLABELLED") else text)
    return _document(paragraphs, element.findtext("PMID", ""))


def _article(element: Element) -> Item:
    """The paragraphs of the body of a JATS article, without headings, figures, tables and marks of references."""
    ids = element.iterfind("{*}front/{*}article-meta/{*}article-id")
    names = {found.get("pub-id-type"): found.text for found in ids}
    name = next(filter(None, map(names.get, ("pmcid", "pmc", "pmid", "doi"))), "")
    body = element.find("{*}body")
    return _document([] if body is None else _paragraphs(body), name)


def _paragraphs(body: Element) -> list[str]:
    for element in reversed(list(body.iter())):  # what is inside another comes first
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


READERS: dict[str, Callable[[Element], Item]] = {
    "MedlineCitation": _citation,
    "BookDocument": _citation,
    ARTICLE: _article,
}


# Revised records of PubMed

REVISED, DELETED = "revised in a newer record", "deleted from PubMed"
PUBMED_FILE = re.compile(r"pubmed(\d\d)n(\d+)\.xml")  # the year, and a number that runs through baseline and updates
CITATION_COLUMNS = ["item", "number", "version", "is_deletion"]


def outdated(files: Files) -> dict[tuple[int, int], str]:
    """The records in XML files that PubMed has revised or deleted, with the reason: by the places of file and item.

    Items are those of `read_papers`, from 1. The highest version of a citation is kept, and of equal ones that of the
    newest file; files are as old as PubMed's names, others as they are ordered.
    """
    papers = {place: path for place, (source, path) in enumerate(files) if (source.format or format_of(path)) == "xml"}
    if not papers:
        return {}
    tables = []
    with progress("searching for revised records", len(papers), "files") as bar:
        for place in sorted(papers, key=lambda place: _age(papers[place])):
            table = pd.DataFrame(_citations(papers[place]), columns=CITATION_COLUMNS, dtype="int64")
            tables.append(table.assign(place=place))
            bar.advance(1)
    records = pd.concat(tables, ignore_index=True).sort_values(["number", "version"], kind="stable")
    is_deletion = records["is_deletion"] == 1
    is_deleted = is_deletion.groupby([records["number"], records["version"]]).transform("last")
    last = records[~is_deletion & ~is_deleted].drop_duplicates("number", keep="last")
    old = records[~is_deletion].drop(last.index)
    reasons = is_deleted[old.index].map({True: DELETED, False: REVISED})
    return dict(zip(zip(old["place"], old["item"], strict=True), reasons, strict=True))


def _citations(file: Path) -> Iterator[tuple[int, int, int, bool]]:
    """`CITATION_COLUMNS` of the citations of a file and of those that it deletes, which count to the item before."""
    item = 0
    for element in _elements(file, {*READERS, DELETE_CITATION}):
        is_deletion = isinstance(element, Element) and _tag(element) == DELETE_CITATION
        item += not is_deletion
        for number in element.iterfind("PMID") if isinstance(element, Element) else ():
            digits, version = (number.text or "").strip(), number.get("Version", "1")
            if digits.isdecimal() and int(digits) and version.isdecimal():
                yield item, int(digits), int(version), is_deletion


def _age(file: Path) -> tuple[int, int]:
    found = PUBMED_FILE.match(file.name)
    return (int(found[1]), int(found[2])) if found else (-1, 0)
