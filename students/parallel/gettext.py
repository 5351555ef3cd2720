"""Gettext catalogues as segments: `.po`, which people write, and `.mo`, which programs read."""

import re
import struct
from codecs import lookup
from collections.abc import Iterator
from dataclasses import dataclass, field
from gettext import c2py  # undocumented, and the one parser of plural rules in the library
from typing import IO, NamedTuple

from bertrelay.data.encodings import conversion_hint
from bertrelay.data.readers import LONGEST_LINE, bounded_lines, is_too_long
from bertrelay.data.tables import Unusable
from bertrelay.errors import RequestError

FUZZY, OBSOLETE, NO_SUCH_FORM = "fuzzy", "obsolete", "a plural form that the header does not have"
MOST_FORMS = 10  # Arabic has six
TOKEN = re.compile(
    r"\s*(?:(?P<keyword>msgctxt|msgid_plural|msgid|msgstr)(?!\w)(?:\s*\[\s*(?P<form>\d+)\s*\])?"
    r'|"(?P<text>(?:[^"\\]|\\.)*)")\s*'
)
"""A keyword or a text, of which a line may have several or one."""
ESCAPE = re.compile(r"((?:\\(?:[0-7]{1,3}|x[0-9a-fA-F]{1,2}))+)|\\(.)")
"""Bytes, which together may be one character, or a letter."""
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", '"': '"', "\\": "\\"}
ACCELERATOR = re.compile(r"[_&](?=[^\W\d_])")
CHARSET = re.compile(rb'^msgid\s*""\s*?msgstr\s*(?:"[^\n]*\n)*?"[^\n]*?charset=([\w.:-]+)', re.MULTILINE)
"""In the header of a `.po` file, which is the translation of the empty text."""
NO_CHARACTER_SETS = {"punycode", "idna", "unicode-escape", "raw-unicode-escape", "undefined"}
"""Codecs of text that no file is written in; one of them takes quadratic time."""
CONTEXT = "\x04"
HEADER_BYTES = 1 << 16
NEW_LINE = b"\n"
MO_MAGIC = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}


class Message(NamedTuple):
    """An English text and its translation. `line` is the one it begins in; of a `.mo` the number of the message.

    dropped: why it is not to be used, as its translators marked it.
    """

    line: int
    english: str
    other: str
    dropped: str = ""


@dataclass
class Header:
    """What the first entry of a catalogue says about all: its language, and which plural form is for one thing."""

    language: str = ""
    of_one: int = 0
    forms: int = 2

    @classmethod
    def parse(cls, text: str) -> "Header":
        """The header in the translation of the empty text. Raises ValueError for a plural rule that is none."""
        lines = (line.partition(":") for line in text.splitlines())
        values = {name.strip().lower(): value.strip() for name, _, value in lines}
        rule = re.search(r"nplurals\s*=\s*(\d+)\s*;\s*plural\s*=\s*([^;\n]+)", values.get("plural-forms", ""))
        if rule is None:
            return cls(values.get("language", ""))
        if len(rule[1]) > 2 or int(rule[1]) > MOST_FORMS:
            raise ValueError(f"expected at most {MOST_FORMS} plural forms, found nplurals={rule[1][:20]}")
        try:
            return cls(values.get("language", ""), c2py(rule[2])(1), int(rule[1]))
        except ArithmeticError as error:
            raise ValueError(f"{rule[2][:60]}: {error}") from None


def without_accelerators(english: str, other: str) -> tuple[str, str]:
    """Both texts without the one `_` or `&` that marks a key: `_Open`, `E&xit`; `AT&T` and `foo_bar` stay."""
    place = _accelerator(english)
    return _without(english, place), _without(other, _accelerator(other, place is not None))


def _accelerator(text: str, english_has_mark: bool | None = None) -> int | None:
    """The place of the mark in `text`: before a word, or in one.

    english_has_mark: of a translation, in which a mark is in a word only if its English has one. In the English it is
        known by the capital that labels begin with (`Prefere_nces`, but `foo_bar`).
    """
    if len(places := [match.start() for match in ACCELERATOR.finditer(text)]) != 1:
        return None
    place = places[0]
    before, after = re.split(r"\s", text[:place])[-1], text[place + 1]
    if not before[-1:].isalnum():
        return place
    if before[-1].isupper() and after.isupper():
        return None
    is_label = before.isalpha() and before[0].isupper() and after.islower()
    return place if (is_label if english_has_mark is None else english_has_mark) else None


def _without(text: str, place: int | None) -> str:
    return text if place is None else text[:place] + text[place + 1 :]


def messages(line: int, texts: dict[str, str], header: Header, dropped: str = "") -> Iterator[Message]:
    """The pairs of an entry: of one with plural forms the singular with its form, the plural with each other one."""
    english, plural = texts["msgid"], texts.get("msgid_plural")
    if plural is None:
        pairs = [(english, texts["msgstr"])]
    else:
        forms = [texts.get(f"msgstr[{form}]", "") for form in range(header.forms)]
        is_plural = [header.forms == 1 or form != header.of_one for form in range(header.forms)]
        pairs = [(plural if many else english, form) for many, form in zip(is_plural, forms, strict=True)]
        known = {"msgid", "msgid_plural", "msgctxt", *(f"msgstr[{form}]" for form in range(header.forms))}
        for other in (text for name, text in texts.items() if name not in known):
            yield Message(line, plural, other, dropped or NO_SUCH_FORM)
    for source, translation in pairs:
        yield Message(line, *without_accelerators(source, translation), dropped)


def unescaped(quoted: str, encoding: str = "utf-8") -> str:
    """The text of what stands between quotes. Raises ValueError where an escape is unknown."""

    def character(escape: re.Match[str]) -> str:
        numbers, letter = escape.groups()
        if numbers:
            codes = (int(code[1:], 16) if code[0] == "x" else int(code, 8) for code in numbers.split("\\")[1:])
            return bytes(codes).decode(encoding)
        if letter not in ESCAPES:
            raise ValueError(f"unknown escape \\{letter}")
        return ESCAPES[letter]

    return ESCAPE.sub(character, quoted)


@dataclass
class _Entry:
    """An entry while its lines are read; `key` is the keyword that a further line of text belongs to."""

    line: int = 0
    texts: dict[str, str] = field(default_factory=dict)
    key: str = ""
    dropped: str = ""
    fault: Unusable | None = None

    @property
    def is_translated(self) -> bool:
        return self.key.startswith("msgstr") and self.key in self.texts

    def ends_before(self, keyword: str) -> bool:
        """Whether `keyword` belongs to the next entry; # is that of a comment."""
        if keyword == "#":
            return self.is_translated
        if keyword == "msgctxt":
            return bool(self.texts or self.fault)
        return keyword == "msgid" and ("msgid" in self.texts or self.is_translated or bool(self.fault))


class PoReader:
    """Reads a `.po` file line by line; `header` is known once its first entry has passed."""

    def __init__(self, file: str, stream: IO[bytes]) -> None:
        self.file, self.header = file, Header()
        start = stream.read(HEADER_BYTES)
        named = CHARSET.search(start)
        self._encoding = named[1].decode() if named and named[1] != b"CHARSET" else "utf-8"
        self._named = "which its header names" if named else "which is meant where its header names none"
        _check_charset(f"{file}, line {start[: named.start(1) if named else 0].count(NEW_LINE) + 1}", self._encoding)
        self._start, self._stream = start.removeprefix(b"\xef\xbb\xbf"), stream

    def _lines(self) -> Iterator[bytes]:
        *lines, last = self._start.split(b"\n")
        yield from lines
        for line in bounded_lines(self._stream):
            if is_too_long(last + line):
                raise RequestError(f"{self.file}: expected lines, found one of more than {LONGEST_LINE >> 20} MiB.")
            yield last + line
            last = b""
        if last:
            yield last

    def __iter__(self) -> Iterator[Message | Unusable]:
        entry = _Entry()
        for number, raw in enumerate(self._lines(), 1):
            try:
                line = raw.decode(self._encoding).strip()
            except UnicodeDecodeError:
                conversion = "" if entry.fault else conversion_hint(self.file, raw)
                detail = f"{self._named}{conversion}" if conversion else ""
                entry.fault = entry.fault or Unusable(self.file, number, f"not valid {self._encoding.upper()}", detail)
                continue
            is_old = line.startswith("#~")
            for keyword, text in self._tokens(line[2:].strip() if is_old else line):
                if entry.ends_before(keyword):
                    yield from self._finished(entry)
                    entry = _Entry()
                self._add(entry, number, keyword, text, is_old)
        yield from self._finished(entry)

    @staticmethod
    def _tokens(line: str) -> Iterator[tuple[str, str | None]]:
        """(keyword, "") or ("", text) of each token of a line; ("#", comment); ("", None) of what is none of them."""
        if line.startswith("#"):
            yield from [] if line.startswith("#|") else [("#", line)]
            return
        place = len(line) if line.startswith("|") else 0  # `#~|`, what an obsolete entry was before
        while place < len(line):
            token = TOKEN.match(line, place)
            if token is None:
                yield "", None
                return
            form = f"[{token['form']}]" if token["form"] else ""
            yield (token["keyword"] or "") + form, token["text"] or ""
            place = token.end()

    def _add(self, entry: _Entry, number: int, keyword: str, text: str | None, is_old: bool) -> None:
        """Adds a token to the entry it belongs to."""
        if keyword == "#":
            if str(text).startswith("#,") and "fuzzy" in str(text):
                entry.dropped = FUZZY
            return
        try:
            if keyword and keyword in entry.texts:
                raise ValueError(f"{keyword} is there twice")
            if text is None:
                raise ValueError("expected one text in double quotes")
            if not (keyword or entry.key):
                raise ValueError("expected msgid")
            if not keyword:
                entry.texts[entry.key] = entry.texts.get(entry.key, "") + unescaped(text, self._encoding)
        except ValueError as error:
            entry.fault = entry.fault or Unusable(self.file, number, "not a line of a .po file", str(error))
        entry.key = keyword or entry.key
        entry.line = entry.line or number
        entry.dropped = OBSOLETE if is_old else entry.dropped

    def _finished(self, entry: _Entry) -> Iterator[Message | Unusable]:
        texts = entry.texts
        if entry.fault:
            yield entry.fault
        elif texts and not ("msgid" in texts and entry.is_translated):
            yield Unusable(self.file, entry.line, "an entry without msgid or msgstr")
        elif texts and ("msgid_plural" in texts) == ("msgstr" in texts):
            yield Unusable(self.file, entry.line, "msgid_plural and the forms of msgstr do not fit")
        elif texts.get("msgid") == "" and "msgctxt" not in texts:
            self.header = _header(f"{self.file}, line {entry.line:,}", texts.get("msgstr", ""))
        elif texts:
            yield from messages(entry.line, texts, self.header, entry.dropped)


def _check_charset(file: str, name: str) -> None:
    try:
        if lookup(name).name in NO_CHARACTER_SETS:
            raise LookupError
        b"a".decode(name)  # `hex` and others are codecs, and no character sets
    except (LookupError, UnicodeError):
        raise RequestError(f"{file}: expected a character set, found charset={name}. Fix its header.") from None


def _header(file: str, text: str) -> Header:
    try:
        return Header.parse(text)
    except ValueError as error:
        raise RequestError(f"{file}: Plural-Forms: {error}. Fix the header of the catalogue.") from None


class MoReader:
    """Reads a `.mo` file, which is in memory as a whole; every length and place in it is checked."""

    def __init__(self, file: str, stream: IO[bytes]) -> None:
        self.file, self._data = file, stream.read(LONGEST_LINE + 1)
        if len(self._data) > LONGEST_LINE:
            raise RequestError(f"{file}: expected at most {LONGEST_LINE >> 20} MiB, found more. Is it a catalogue?")
        order = MO_MAGIC.get(self._data[:4])
        if order is None:
            raise RequestError(f"{file}: expected a .mo file, found one that begins otherwise. Compile it again.")
        revision, count, originals, translations = self._numbers(f"{order}4I", 4)
        if revision >> 16 > 1:
            raise RequestError(f"{file}: expected revision 0 or 1 of the .mo format, found {revision >> 16}")
        if count * 8 > len(self._data):
            raise self._damaged("its table of messages")
        places = (self._numbers(f"{order}{2 * count}I", table) for table in (originals, translations))
        self._places = [list(zip(table[::2], table[1::2], strict=True)) for table in places]  # (length, place)
        self._encoding, self.header = "utf-8", Header()
        if count and not self._places[0][0][0]:
            head = self._bytes(self._places[1][0], 0)
            named = re.search(rb"charset=([\w.:-]+)", head)
            self._encoding = named[1].decode() if named else "utf-8"
            _check_charset(file, self._encoding)
            self.header = _header(file, head.decode(self._encoding, errors="replace"))

    def _damaged(self, what: str) -> RequestError:
        return RequestError(
            f"{self.file}: {what} ends after the file does: it is cut off or damaged. Compile it again."
        )

    def _numbers(self, form: str, place: int) -> tuple[int, ...]:
        try:
            return struct.unpack_from(form, self._data, place)
        except struct.error:
            raise self._damaged("its table of messages") from None

    def _bytes(self, where: tuple[int, int], number: int) -> bytes:
        length, place = where
        if place + length >= len(self._data) or self._data[place + length]:  # each text ends in NUL
            raise self._damaged(f"message {number:,}")
        return self._data[place : place + length]

    def __iter__(self) -> Iterator[Message | Unusable]:
        for number, (original, translation) in enumerate(zip(*self._places, strict=True)):
            raw = self._bytes(original, number), self._bytes(translation, number)
            if not raw[0]:
                continue
            try:
                source, translated = (text.decode(self._encoding) for text in raw)
            except UnicodeDecodeError:
                yield Unusable(self.file, number, f"not valid {self._encoding.upper()}")
                continue
            singular, *plural = source.rpartition(CONTEXT)[2].split("\0")
            texts = {"msgid": singular, "msgstr": translated}
            if plural:
                forms = {f"msgstr[{form}]": text for form, text in enumerate(translated.split("\0"))}
                texts = {"msgid": singular, "msgid_plural": plural[0], **forms}
            yield from messages(number, texts, self.header)
