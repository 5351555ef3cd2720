"""Translation memories as segments: TMX 1.4, XLIFF 1.2 and 2, read as a stream of any length in the same memory.

Entities that a file declares are refused, so that no file can expand without end or reach for another one.
"""

import re
from collections.abc import Iterator
from typing import IO, NamedTuple, NoReturn
from xml.parsers import expat

from bertrelay.data.encodings import conversion_hint
from bertrelay.data.tables import Unusable
from bertrelay.errors import RequestError

CHUNK_BYTES = 1 << 16
LONGEST_TOKEN = 4 << 20
"""Bytes of a tag or a sentence at most: both are held whole."""
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
SEGMENTS = ("trans-unit", "segment")  # of XLIFF 1.2 and 2
AROUND_SEGMENTS = ("xliff", "file", "body", "group", "unit")
FILE_LANGUAGES = {"source": ("srcLang", "source-language"), "target": ("trgLang", "target-language")}

Attributes = dict[str, str]


def without_tags(text: str) -> str:
    """`text` without inline tags; a space is left where one separates words."""
    return INLINE_TAG.sub(lambda tag: " " if tag[1].lower() in SEPARATING else "", text)


class Segment(NamedTuple):
    """A sentence in the languages a file has it in: (code as it is written there, text), a code perhaps twice.

    tagged: whether inline tags were in it. dropped: why it is not to be used.
    """

    texts: list[tuple[str, str]]
    tagged: bool = False
    dropped: str = ""


class XmlReader:
    """The frame of a reader of XML: its `start` and `end` see every element, and fill `done` with segments.

    A sentence is collected between `collect` and `text`; inline tags in it are left out.

    records: the elements of a segment, none of which may be in another.
    language: of the translations in a file that names none.
    """

    records: tuple[str, ...]

    def __init__(self, file: str, stream: IO[bytes], language: str = "") -> None:
        self.file, self._stream, self.language = file, stream, language
        self.done: list[Segment | Unusable] = []
        self.is_open = False  # a segment
        self._refused = 0  # elements open in one that is not read
        self.texts: list[tuple[str, str]] = []
        self._language = ""  # of the sentence that is collected
        self.tagged = False
        self._parts: list[str] | None = None  # of the sentence that is collected
        self._inline: list[bool] = []  # of each element open in it, whether its content is text
        self._native: list[str] = []  # the content that is none
        self._names_encoding = False  # another one than UTF-8
        self._given = self._passed = self._begun = 0  # bytes: in all, up to the last tag, up to the sentence
        parser = self._parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.XmlDeclHandler = self._declare
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.EntityDeclHandler = self._refuse_entity
        parser.SkippedEntityHandler = self._refuse_entity

    def start(self, name: str, attributes: Attributes) -> None:
        """An element outside of sentences begins."""
        raise NotImplementedError

    def end(self, name: str) -> None:
        """An element outside of sentences ends."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Segment | Unusable]:
        while True:
            chunk = self._stream.read(CHUNK_BYTES)
            try:
                self._parser.Parse(chunk, not chunk)
                self._check_length(len(chunk))
            except expat.ExpatError as error:
                fault = expat.ErrorString(error.code)
                fault += "" if self._names_encoding else conversion_hint(self.file, chunk)
                raise RequestError(f"{self.file}, line {error.lineno:,}: not well-formed XML: {fault}") from None
            except (LookupError, ValueError) as error:  # of several bytes a letter, or unknown
                if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                    raise  # of a handler, not of the parser
                raise RequestError(
                    f"{self.file}: its encoding cannot be read ({error}). Convert it to UTF-8, in its first line too"
                    f"{conversion_hint(self.file, chunk) or '.'}"
                ) from None
            yield from self.done
            self.done.clear()
            if not chunk:
                return

    def _declare(self, version: str, encoding: str | None, standalone: int) -> None:  # noqa: ARG002 (of expat)
        self._names_encoding = (encoding or "utf-8").lower() not in ("utf-8", "utf8")

    def _check_length(self, more: int) -> None:
        """Raises RequestError for a sentence or a tag without an end. more: bytes that the parser was given."""
        self._given += more
        self._passed = max(self._passed, self._parser.CurrentByteIndex)  # -1 where it has passed nothing new
        begun = self._passed if self._parts is None else min(self._passed, self._begun)
        if self._given - begun > LONGEST_TOKEN:
            raise RequestError(
                f"{self.file}, line {self.here():,}: expected sentences and tags of at most {LONGEST_TOKEN >> 20} MiB, "
                "found a longer one. Is the file damaged?"
            )

    def here(self) -> int:
        return self._parser.CurrentLineNumber

    def collect(self) -> None:
        self._parts, self._begun = [], self._parser.CurrentByteIndex
        self._parser.CharacterDataHandler = self._parts.append

    def finish(self, dropped: str = "") -> None:
        self.done.append(Segment(self.texts, self.tagged, dropped))
        self.is_open = False

    def begin(self) -> None:
        self.texts, self.tagged, self.is_open = [], False, True

    def refuse(self, reason: str) -> None:
        """Counts the element that begins here, and all in it, as a record that cannot be used."""
        self.done.append(Unusable(self.file, self.here(), reason))
        self._refused = 1
        self._kept_handler, self._parser.CharacterDataHandler = self._parser.CharacterDataHandler, None

    def text(self) -> str:
        text = "".join(self._parts or ())
        self._parts = self._parser.CharacterDataHandler = None
        return text

    def _start(self, name: str, attributes: Attributes) -> None:
        name = name.rpartition(":")[2]
        if self._refused:
            self._refused += 1
            return
        if self.is_open and name in self.records:
            self.refuse(f"a {name} in another one")
            return
        if self._parts is None:
            self.start(name, attributes)
            return
        self.tagged = True
        is_text = not self._inline or self._inline[-1]
        if is_text and (name.lower() in SEPARATING or LINE_BREAKS.intersection(attributes.items())):
            self._parts.append(" ")
        is_text = is_text and name not in NATIVE
        self._inline.append(is_text)
        if not is_text:
            self._parser.CharacterDataHandler = self._native.append

    def _end(self, name: str) -> None:
        if self._refused:
            self._refused -= 1
            if not self._refused:
                self._parser.CharacterDataHandler = self._kept_handler
            return
        if not self._inline:
            self.end(name.rpartition(":")[2])
            return
        self._inline.pop()
        if self._parts is not None and (not self._inline or self._inline[-1]):
            native = "".join(self._native).strip()
            self._native.clear()
            if PLACEHOLDER.fullmatch(native):
                self._parts.append(native)
            elif name.lower() in SEPARATING or (INLINE_TAG.fullmatch(native) and without_tags(native)):
                self._parts.append(" ")
            self._parser.CharacterDataHandler = self._parts.append

    def _refuse_entity(self, name: str, *_: object) -> NoReturn:
        raise RequestError(
            f"{self.file}, line {self.here():,}: expected no entities but those of XML, found {name!r}. Entities of a "
            "file's own are not expanded; replace them by what they stand for."
        )


class TmxReader(XmlReader):
    """Segments of TMX: `tu` has a `tuv` for each language, with the sentence in `seg`."""

    records = ("tu",)

    def start(self, name: str, attributes: Attributes) -> None:
        match name:
            case "tu":
                self.begin()
            case "tuv":
                self._language = attributes.get(XML_LANGUAGE) or attributes.get("lang", "")
            case "seg" if not self.is_open:
                self.refuse("a seg outside of a tu")
            case "seg":
                self.collect()

    def end(self, name: str) -> None:
        match name:
            case "seg":
                self.texts.append((self._language, self.text()))
            case "tuv":
                self._language = ""
            case "tu":
                self.finish()


class XliffReader(XmlReader):
    """Segments of XLIFF 1.2 (`trans-unit`) and 2 (`segment`): a `source` and a `target`.

    What else holds sources and targets is not read: matches, alternatives, binary units.
    """

    records = SEGMENTS

    def __init__(self, file: str, stream: IO[bytes], language: str = "") -> None:
        super().__init__(file, stream, language)
        self._open = [("", False)]  # each element that is open, and whether its content is not to be translated
        self._languages = {"source": "", "target": language}
        self._dropped = ""

    def start(self, name: str, attributes: Attributes) -> None:
        parent, fixed = self._open[-1]
        fixed = attributes.get("translate", "no" if fixed else "yes") == "no"
        self._open.append((name, fixed))
        if name in ("xliff", "file"):
            for side, keys in FILE_LANGUAGES.items():
                self._languages[side] = next(filter(None, map(attributes.get, keys)), self._languages[side])
        elif name in SEGMENTS:
            self.begin()
            self._dropped = UNTRANSLATED if fixed or attributes.get("state") in UNTRANSLATED_STATES else ""
        elif name in self._languages and parent in SEGMENTS:
            if attributes.get("state") in UNTRANSLATED_STATES:
                self._dropped = UNTRANSLATED
            self._language = attributes.get(XML_LANGUAGE) or self._languages[name]
            self.collect()
        elif name == "source" and parent in AROUND_SEGMENTS:
            self._open.pop()
            self.refuse(f"a source outside of a {' or '.join(SEGMENTS)}")

    def end(self, name: str) -> None:
        self._open.pop()
        if name in SEGMENTS:
            self.finish(self._dropped)
        elif self._parts is not None:
            self.texts.append((self._language, self.text()))
