r"""BioC XML, versions 1 and 2: the same collections as BioC JSON, a document at a time.

expat reads it and fetches nothing, neither the DTD that files name nor other entities. Line breaks of a text are those
of XML: `\r\n` is read as `\n`, unless it is written with references to characters.
"""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from bertrelay.data.readers import LONGEST_LINE, open_input, refuse_damaged
from bertrelay.data.tables import Rejected
from bertrelay.errors import RequestError
from domain.biomedical.documents.bioc import fit, items_of, value_of
from domain.biomedical.documents.document import ANNOTATED, NAME_FORMAT, Document, Item, Reading
from domain.biomedical.documents.writing import Writer, open_text_file

READ_AT_ONCE = 1 << 16  # bytes
NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
LISTS = {
    "passage": "passages",
    "sentence": "sentences",
    "annotation": "annotations",
    "relation": "relations",
    "location": "locations",
    "node": "nodes",
}
"""Elements that an element may have several of, and their keys in BioC JSON."""


def read(path: Path, reading: Reading = ANNOTATED) -> Iterator[Item]:
    """Streams the documents of a file; memory holds one at a time.

    Raises RequestError for a file that is cut off, broken, or no BioC XML.
    """
    for line, element in _documents(path):
        try:
            text = json.dumps(_value(element))
        except Rejected as fault:
            yield fault.at(str(path), line)
            continue
        yield from items_of(text, str(path), line, reading.only_text)


def _documents(path: Path) -> Iterator[tuple[int, Element]]:
    """Line and element of each document."""
    parser = _Documents(path)
    with refuse_damaged(str(path)), open_input(str(path)) as stream:
        while content := stream.read(READ_AT_ONCE):
            parser.feed(content)
            yield from parser.take()
        parser.feed(b"", is_last=True)
    yield from parser.take()


class _Documents:
    """A parser that builds the element of each document, and of nothing else."""

    def __init__(self, path: Path) -> None:
        self._path, self._bytes = path, 0
        self._builder: ElementTree.TreeBuilder | None = None
        self._complete: list[tuple[int, Element]] = []
        self._depth, self._line = 0, 0
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text
        self._parser.SkippedEntityHandler = self._skipped

    def feed(self, content: bytes, is_last: bool = False) -> None:
        """Parses the next bytes. Raises RequestError for broken XML, and for a document that is too long."""
        self._bytes = self._bytes + len(content) if self._builder else 0
        if self._bytes > LONGEST_LINE:
            raise RequestError(
                f"{self._path}, line {self._line:,}: expected documents of at most {LONGEST_LINE >> 20} MiB, found a "
                "longer one. Is the file damaged?"
            )
        try:
            self._parser.Parse(content, is_last)
        except expat.ExpatError as error:
            raise RequestError(
                f"{self._path}, line {error.lineno:,}: broken XML ({expat.ErrorString(error.code)}), or the file is "
                "cut off. Fetch or write it again."
            ) from None

    def take(self) -> list[tuple[int, Element]]:
        """The documents that are complete since the last call."""
        complete, self._complete = self._complete, []
        return complete

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if self._depth == 0 and name != "collection":
            raise RequestError(f"{self._path}: expected BioC XML, a `collection`, found another root. {NAME_FORMAT}")
        self._depth += 1
        if self._builder is None and name == "document":
            self._builder, self._line = ElementTree.TreeBuilder(), self._parser.CurrentLineNumber
        if self._builder is not None:
            self._builder.start(name, attributes)

    def _end(self, name: str) -> None:
        self._depth -= 1
        if self._builder is not None:
            self._builder.end(name)
            if name == "document":
                self._complete.append((self._line, self._builder.close()))
                self._builder = None

    def _skipped(self, name: str, is_parameter: bool) -> None:
        """Raises RequestError for a character named as in HTML, which the DTD that is not fetched may define."""
        if not is_parameter:
            line = self._parser.CurrentLineNumber
            raise RequestError(
                f"{self._path}, line {line:,}: expected characters, or references by number, found &{name};. "
                "Write the character itself."
            )

    def _text(self, content: str) -> None:
        if self._builder is not None:
            self._builder.data(content)


def _value(element: Element) -> dict[str, Any]:
    """An element as an object of BioC JSON. Raises Rejected for a number that is none."""
    value: dict[str, Any] = {}
    for name, field in element.attrib.items():
        value[name] = _number(field) if name in ("offset", "length") else field
    for child in element:
        if child.tag == "infon":
            value.setdefault("infons", {})[child.get("key", "")] = child.text or ""
        elif child.tag in LISTS:
            value.setdefault(LISTS[child.tag], []).append(_value(child))
        elif child.tag == "offset":
            value["offset"] = _number(child.text or "")
        elif child.tag == "id" or (child.tag == "text" and (child.text or element.tag != "annotation")):
            value[child.tag] = child.text or ""
    if element.tag == "document":
        _correct_offsets(value.get("passages", []))
        # elements without annotations have none, which in JSON may be under another key
        value = {"passages": [], "annotations": [], **value}
    return value


def _correct_offsets(passages: list[dict[str, Any]]) -> None:
    """Corrects offsets of passages that count `'` as the six characters of `&apos;`, as those of BC5CDR's files do.

    The offsets of annotations do not, so their texts are where the passage should begin.
    """
    declared = end = 0
    for passage in passages:
        offset, text = passage.get("offset", 0), passage.get("text", "")
        if offset == declared and offset != end:
            passage["offset"] = max(offset, end, key=partial(_matches, passage))
        declared = offset + len(escape(text, {"'": "&apos;", '"': "&quot;"})) + 1
        end = passage.get("offset", 0) + len(text) + 1


def _matches(passage: dict[str, Any], start: int) -> int:
    """The number of annotations whose texts are at their offsets if the passage begins at `start`."""
    annotations = (annotation for annotation in passage.get("annotations", ()) if "text" in annotation)
    offsets = ((annotation["text"], annotation.get("locations", ())) for annotation in annotations)
    return sum(
        passage["text"].startswith(text, locations[0].get("offset", 0) - start)
        for text, locations in offsets
        if locations and locations[0].get("offset", 0) >= start
    )


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Rejected("an offset that is no number", "expected digits") from None


def render(document: Document) -> str:
    """A document as an element. Raises Rejected for entities without a type, and for characters that XML lacks."""
    text = _element("document", value_of(document)) + "\n"
    if NO_XML.search(text):
        raise Rejected("a character that XML cannot hold", "a control character, U+FFFE or U+FFFF")
    return text


def _element(name: str, value: dict[str, Any]) -> str:
    """An object of BioC JSON as an element, its parts in the order of the DTD."""
    attributes = {key: value[key] for key in ATTRIBUTES.get(name, ())}
    parts = [f"<{name}{''.join(f' {key}={_quoted(field)}' for key, field in attributes.items())}>"]
    if "id" in value and "id" not in attributes:
        parts.append(f"<id>{_escaped(value['id'])}</id>")
    parts += [f"<infon key={_quoted(key)}>{_escaped(text)}</infon>" for key, text in value.get("infons", {}).items()]
    if "offset" in value and "offset" not in attributes:
        parts.append(f"<offset>{value['offset']}</offset>")
    is_passage = name == "passage"
    texts = [f"<text>{_escaped(value['text'])}</text>"] if "text" in value else []
    parts += texts if is_passage else []
    for child, key in LISTS.items():
        parts += [_element(child, item) for item in value.get(key, ())]
    return "".join([*parts, *([] if is_passage else texts), f"</{name}>"])


ATTRIBUTES = {"annotation": ("id",), "relation": ("id",), "location": ("offset", "length"), "node": ("refid", "role")}


def _escaped(text: str) -> str:
    return escape(text, {"\r": "&#13;"})


def _quoted(text: object) -> str:
    return quoteattr(str(text), {"\r": "&#13;", "\n": "&#10;", "\t": "&#9;"})


HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE collection SYSTEM "BioC.dtd">\n'
    "<collection><source>BertRelay</source><date></date><key></key>\n"
)
TAIL = "</collection>\n"
WRITER = Writer(render, partial(open_text_file, head=HEAD, tail=TAIL), fit, HEAD, TAIL)
