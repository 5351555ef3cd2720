"""Translation memories as segments: TMX 1.4, XLIFF 1.2 and 2, read as a stream of any length in the same memory.

Entities that a file declares are refused, so that no file can expand without end or reach for another one.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Literal, NamedTuple, NoReturn
from xml.etree.ElementTree import Element
from xml.parsers import expat

from bertrelay.data.encodings import conversion_hint
from bertrelay.data.tables import Rejected
from bertrelay.errors import RequestError

CHUNK_BYTES = 1 << 16
LONGEST_TOKEN = 4 << 20
"""Most bytes of a tag or a segment: both are held whole."""
DEEPEST = 200
"""Most elements in each other."""
NATIVE = frozenset({"bpt", "ept", "ph", "it", "ut", "sub", "x", "bx", "ex"})
"""Elements inside a sentence whose content is code of the original format; of it only a placeholder is text."""
PLACEHOLDER = re.compile(
    r"%(?:\d++\$|\(\w++\))?[-+#0]*+\d*+(?:\.\d++)?+(?:hh?|ll?|[qjzt])?[diouxXeEfFgGcrsap@](?!\w)"  # printf
    r"|%(?:L?\d{1,2}|n)(?!\w)"  # Qt
    r"|\$?\{[\w.:!-]*\}|\$[^\W\d]\w*\$?"  # Python, ICU, shell; $300 is an amount
)
INLINE_TAG = re.compile(r"""</?([A-Za-z][\w:.-]*)(?:\s+[\w:.-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'<>=]+))*\s*/?>""")
"""A tag of HTML or XML; what stands between < and > otherwise, as in `a <b and c> d`, is text."""
SEPARATING = frozenset({"br", "p", "li", "div", "tr", "td", "th", "hr"})
"""Elements between whose texts a reader sees white space."""
LINE_BREAKS = frozenset({("ctype", "lb"), ("type", "lb"), ("subType", "xlf:lb")})
"""Attributes by which XLIFF 1.2, TMX and XLIFF 2 mark the code of a line break."""
UNTRANSLATED_STATES = frozenset({"new", "needs-translation", "initial"})  # of targets, and of segments of XLIFF 2
UNTRANSLATED = "not translated"
XML_LANGUAGE = "xml:lang"
TMX_AROUND = frozenset({"tmx", "body", "tuv"})
SEGMENTS = ("trans-unit", "segment")  # of XLIFF 1.2 and 2
XLIFF_AROUND = frozenset({"xliff", "file", "body", "group", "unit"})
FILE_LANGUAGES = {"source": ("srcLang", "source-language"), "target": ("trgLang", "target-language")}


def without_tags(text: str) -> str:
    """`text` without inline tags; a space is left where one separates words."""
    return INLINE_TAG.sub(lambda tag: " " if tag[1].lower() in SEPARATING else "", text)


class Segment(NamedTuple):
    """A sentence in the languages of a file: (code as it is written there, text), a code perhaps twice.

    tagged: True if inline tags were in it. dropped: why it is not to be used.
    """

    texts: list[tuple[str, str]]
    tagged: bool = False
    dropped: str = ""


def read_tmx(file: str, stream: IO[bytes], language: str = "") -> Iterator[Segment | Rejected]:  # noqa: ARG001
    """Streams the segments of TMX: a `tu` has a `tuv` for each language, with the sentence in `seg`.

    language: without effect, as each text of TMX names its own.
    """
    for record in _Records(file, stream, ("tu",), "seg", TMX_AROUND):
        if isinstance(record, Rejected):
            yield record
            continue
        variants = [(variant, sentence) for variant in record[-1] for sentence in variant if sentence.tag == "seg"]
        codes = [variant.get(XML_LANGUAGE, "") or variant.get("lang", "") for variant, _ in variants]
        yield _segment(codes, [sentence for _, sentence in variants])


def read_xliff(file: str, stream: IO[bytes], language: str = "") -> Iterator[Segment | Rejected]:
    """Streams the segments of XLIFF 1.2 (`trans-unit`) and 2 (`segment`): a `source` and a `target`.

    Other sources and targets are not read: those of matches, alternatives, binary units.

    language: of the translations in a file that names none.
    """
    for record in _Records(file, stream, SEGMENTS, "source", XLIFF_AROUND):
        if isinstance(record, Rejected):
            yield record
            continue
        sentences = [child for child in record[-1] if child.tag in FILE_LANGUAGES]
        codes = [_xliff_language(sentence, record, language) for sentence in sentences]
        states = {element.get("state") for element in (record[-1], *sentences)}
        translate = next((value for element in reversed(record) if (value := element.get("translate"))), "yes")
        is_untranslated = translate == "no" or not states.isdisjoint(UNTRANSLATED_STATES)
        yield _segment(codes, sentences, UNTRANSLATED if is_untranslated else "")


def _xliff_language(sentence: Element, record: Sequence[Element], language: str) -> str:
    """The code of a source or target: its own, else that of its file, else `language` for a target."""
    files = [element for element in reversed(record) if element.tag in ("file", "xliff")]
    codes = [sentence.get(XML_LANGUAGE), *(file.get(key) for file in files for key in FILE_LANGUAGES[sentence.tag])]
    return next(filter(None, codes), language if sentence.tag == "target" else "")


def _segment(codes: Iterable[str], sentences: Sequence[Element], dropped: str = "") -> Segment:
    tagged = any(child.tag for sentence in sentences for child in sentence)
    return Segment(list(zip(codes, map(_text, sentences), strict=True)), tagged, dropped)


def _text(element: Element) -> str:
    """The text of a sentence, or of an element in it."""
    parts = [element.text or ""]
    for child in element:
        parts += [_inline_text(child), child.tail or ""]
    return "".join(parts)


def _inline_text(element: Element) -> str:
    """The text of an inline element, with spaces for a line break; of code of another format only a placeholder."""
    space = " " if element.tag.lower() in SEPARATING else ""
    before = " " if LINE_BREAKS.intersection(element.items()) else space
    if element.tag not in NATIVE:
        return before + _text(element) + space
    code = "".join(element.itertext()).strip()
    if PLACEHOLDER.fullmatch(code):
        return before + code
    return before + (" " if INLINE_TAG.fullmatch(code) and without_tags(code) else "")


class _Records:
    """Parses XML and yields each segment as a tree, at the end of the list of the elements around it, outermost first.

    Of the elements around it there are only names, without their prefixes, and attributes. A segment in another one,
    and a sentence outside of segments, is an `Rejected` with its line, and its content is left out.

    `<tmx><body><tu><tuv>…</tuv></tu></body></tmx>` gives `[tmx, body, tu]`, and only `tu` has children.

    names: of the elements that are segments.
    sentence: element of a sentence, which `around` cannot have directly.
    """

    def __init__(
        self, file: str, stream: IO[bytes], names: tuple[str, ...], sentence: str, around: frozenset[str]
    ) -> None:
        self._file, self._stream = file, stream
        self._names, self._sentence, self._around_names = names, sentence, around
        self._around: list[Element] = []  # elements that are open, outside of segments
        self._tree: list[Element] = []  # elements that are open, the first of them a segment; without a tag if refused
        self._done: list[list[Element] | Rejected] = []
        self._names_encoding = False  # another one than UTF-8
        self._read = self._passed = self._begun = 0  # bytes: in all, up to the last tag, up to the segment
        parser = self._parser = expat.ParserCreate()
        parser.buffer_text, parser.buffer_size = True, CHUNK_BYTES
        parser.XmlDeclHandler = self._declare
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._add_text
        parser.EntityDeclHandler = self._refuse_entity
        parser.SkippedEntityHandler = self._refuse_entity

    def __iter__(self) -> Iterator[list[Element] | Rejected]:
        while True:
            chunk = self._stream.read(CHUNK_BYTES)
            try:
                self._parser.Parse(chunk, not chunk)
                self._check_length(len(chunk))
            except RequestError:  # a ValueError too
                raise
            except expat.ExpatError as error:
                fault = expat.ErrorString(error.code)
                fault += "" if self._names_encoding else conversion_hint(self._file, chunk)
                raise RequestError(f"{self._file}, line {error.lineno:,}: not well-formed XML: {fault}") from None
            except (LookupError, ValueError) as error:  # an encoding that is unknown, or of several bytes a letter
                raise RequestError(
                    f"{self._file}: its encoding cannot be read ({error}). Convert it to UTF-8, in its first line too"
                    f"{conversion_hint(self._file, chunk) or '.'}"
                ) from None
            yield from self._done
            self._done.clear()
            if not chunk:
                return

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        name = name.rpartition(":")[2]
        around, tree = self._around, self._tree
        if len(around) + len(tree) >= DEEPEST:
            raise self._refusal(f"at most {DEEPEST} elements in each other, found more")
        if tree:
            is_refused = not tree[-1].tag  # as all that is in a refused element
            if name in self._names and not is_refused:
                is_refused = self._refuse(f"a {name} in another one")
            element = Element("" if is_refused else name, attributes)
            tree[-1].append(element)
            tree.append(element)
            return
        is_refused = name == self._sentence and bool(around) and around[-1].tag in self._around_names
        if is_refused:
            self._refuse(f"a {name} outside of a {' or '.join(self._names)}")
        if is_refused or name in self._names:
            tree.append(Element("" if is_refused else name, attributes))
            self._begun = self._parser.CurrentByteIndex
        else:
            around.append(Element(name, attributes))

    def _refuse(self, reason: str) -> Literal[True]:
        self._done.append(Rejected(reason, file=self._file, line=self._parser.CurrentLineNumber))
        return True

    def _add_text(self, text: str) -> None:
        if not self._tree:
            return
        element = self._tree[-1]
        if len(element):
            element[-1].tail = (element[-1].tail or "") + text
        else:
            element.text = (element.text or "") + text

    def _end(self, name: str) -> None:  # noqa: ARG002 (of expat)
        if not self._tree:
            self._around.pop()
            return
        element = self._tree.pop()
        if not element.tag:
            element.clear()
        elif not self._tree:
            self._done.append([*self._around, element])

    def _declare(self, version: str, encoding: str | None, standalone: int) -> None:  # noqa: ARG002 (of expat)
        self._names_encoding = (encoding or "utf-8").lower() not in ("utf-8", "utf8")

    def _check_length(self, more: int) -> None:
        """Raises RequestError for a segment or a tag without an end. more: bytes that the parser was given."""
        self._read += more
        self._passed = max(self._passed, self._parser.CurrentByteIndex)  # -1 where it has passed nothing new
        begun = min(self._passed, self._begun) if self._tree else self._passed
        if self._read - begun > LONGEST_TOKEN:
            size = f"{LONGEST_TOKEN >> 20} MiB"
            raise self._refusal(f"segments and tags of at most {size}, found a longer one. Is the file damaged?")

    def _refuse_entity(self, name: str, *_: object) -> NoReturn:
        raise self._refusal(
            f"no entities but those of XML, found {name!r}. Entities of a file's own are not expanded; replace them by "
            "what they stand for."
        )

    def _refusal(self, expected: str) -> RequestError:
        return RequestError(f"{self._file}, line {self._parser.CurrentLineNumber:,}: expected {expected}")
