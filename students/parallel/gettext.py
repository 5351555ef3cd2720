"""Gettext catalogues as messages: `.po`, which people write, and `.mo`, which programs read; both parsed by polib.

polib reads strings without a look at their quotes, and a `.mo` without a look at its length. Both are checked before.
"""

import re
import struct
from bisect import bisect_right
from codecs import lookup
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from gettext import c2py  # undocumented, and the one parser of plural rules in the library
from typing import IO, Any, NamedTuple, cast

import polib

from bertrelay.data import readers
from bertrelay.data.encodings import conversion_hint
from bertrelay.data.tables import Rejected
from bertrelay.errors import RequestError

FUZZY, OBSOLETE, NO_SUCH_FORM = "fuzzy", "obsolete", "a plural form that the header does not have"
MOST_FORMS = 10  # Arabic has six
LINE = re.compile(
    r"\s*(?P<obsolete>#~)?\s*"
    r"(?:(?P<keyword>msgctxt|msgid_plural|msgid|msgstr)(?!\w)\s*(?:\[\s*(?P<form>\d)\s*\]\s*)?)?"
    r'(?P<text>"(?:[^"\\]|\\[bfnrtv"\\])*")?\s*(?P<rest>.*)',
    re.DOTALL,
)
"""A line of a `.po` file that is no comment, and the rest that is none; a keyword may stand apart from its text."""
STRING = re.compile('(#~ )?"')
"""A string that continues the one before; after a comment it continues none."""
BROKEN = '"?"'
"""Stands for a string that cannot be read: an empty one would begin the header."""
REPEATED_FORM = re.compile(r'^(?:#~ )?(msgstr\[\d\]) .*\n(?:(?:(?:#~ )?".*)?\n)*(?:#~ )?\1 ', re.MULTILINE)
COMMENT = re.compile(r"\s*#(?!~(?!\|))(?P<flags>,.*fuzzy)?")
"""A comment, or the former text of a message (`#|`, `#~|`)."""
UNDECODED = re.compile("[\udc80-\udcff]")
"""Bytes that are not valid in the encoding, as the error handler surrogateescape leaves them."""
ACCELERATOR = re.compile(r"[_&](?=[^\W\d_])")
CHARSET = re.compile(rb'^msgid\s*""\s*?msgstr\s*(?:"[^\n]*\n)*?"[^\n]*?charset=([\w.:-]+)', re.MULTILINE)
"""In the header of a `.po` file, which is the translation of the empty text."""
NO_CHARACTER_SETS = {"punycode", "idna", "unicode-escape", "raw-unicode-escape", "undefined"}
"""Codecs of text that no file is written in; one of them takes quadratic time."""
HEADER_BYTES = 1 << 16
MO_ORDERS = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}
"""Byte order of a `.mo` file by its first four bytes."""


class Message(NamedTuple):
    """An English text and its translation.

    dropped: why it is not to be used, as its translators marked it.
    """

    english: str
    other: str
    dropped: str = ""


@dataclass
class Header:
    """The language of a catalogue and its plural rule: the number of forms, and which of them is for one thing."""

    language: str = ""
    singular_form: int = 0
    forms: int = 2

    @classmethod
    def parse(cls, file: str, fields: Mapping[str, str]) -> "Header":
        """Reads the `fields` of a header. Raises RequestError for a plural rule that cannot be used."""
        values = {name.strip().lower(): value for name, value in fields.items()}
        language = values.get("language", "")
        rule = re.search(r"nplurals\s*=\s*(\d+)\s*;\s*plural\s*=\s*([^;\n]+)", values.get("plural-forms", ""))
        if rule is None:
            return cls(language)
        try:
            if len(rule[1]) > 2 or int(rule[1]) > MOST_FORMS:
                raise ValueError(f"expected at most {MOST_FORMS} plural forms, found nplurals={rule[1][:20]}")
            return cls(language, c2py(rule[2])(1), int(rule[1]))
        except ArithmeticError as error:
            fault = f"{rule[2][:60]}: {error}"
        except ValueError as error:
            fault = str(error)
        raise RequestError(f"{file}: Plural-Forms: {fault}. Fix the header of the catalogue.")


class Catalogue(NamedTuple):
    """The language that the header names, or nothing, and the messages, which are parsed as they are iterated over."""

    language: str
    messages: Iterator[Message | Rejected]


def read_po(file: str, stream: IO[bytes]) -> Catalogue:
    """Reads a `.po` file, whole. An entry with a broken string or invalid bytes is an `Rejected` of its line.

    Raises RequestError for a header that cannot be used, and for keywords in another order than that of an entry.
    """
    data = _read_whole(file, stream)
    charset = CHARSET.search(data[:HEADER_BYTES])
    encoding = charset[1].decode() if charset and charset[1] != b"CHARSET" else "utf-8"
    source = "which its header names" if charset else "which is meant where its header names none"
    _check_charset(f"{file}, line {_line_number(data, charset.start(1) if charset else 0):,}", encoding)
    try:
        text = data.removeprefix(b"\xef\xbb\xbf").decode(encoding, "surrogateescape")
    except UnicodeDecodeError as error:
        line = _line_number(data, error.start)
        raise RequestError(f"{file}, line {line:,}: not valid {encoding.upper()}, {source}") from None
    lines, faults, after_comment = list[str](), dict[int, Rejected](), False
    for number, raw in enumerate(text.split("\n"), 1):
        lines.append(_polib_line(raw))
        if UNDECODED.search(raw):
            conversion = "" if faults else conversion_hint(file, raw.encode(encoding, "surrogateescape"))
            detail = f"{source}{conversion}" if conversion else ""
            faults[number] = Rejected(f"not valid {encoding.upper()}", detail, file=file, line=number)
        elif not COMMENT.match(raw) and (_groups(raw)[-1] or (after_comment and STRING.match(lines[-1]))):
            faults[number] = Rejected(
                "not a line of a .po file", "expected one text in double quotes", file=file, line=number
            )
        after_comment = bool(COMMENT.match(raw)) or (after_comment and not lines[-1])
    starts = [number for number, line in enumerate(lines) if line.startswith("msgid ")]
    first = _parse_po(file, lines[: starts[1]] if len(starts) > 1 else lines)
    header = Header.parse(f"{file}, line {starts[0] + 1 if starts else 1:,}", first.metadata)
    return Catalogue(header.language, _po_messages(file, lines, faults, header))


def _line_number(data: bytes, position: int) -> int:
    return data.count(b"\n", 0, position) + 1


def _polib_line(line: str) -> str:
    """Writes a line as polib reads it; of comments only the flag of a fuzzy entry, and those of invalid bytes, remain.

    polib refuses `#comment`, `#,fuzzy`, and `msgid` on a line of its own.
    """
    if comment := COMMENT.match(line):
        return f"#, {FUZZY}" if comment["flags"] else "#, unreadable" if UNDECODED.search(line) else ""
    obsolete, keyword, form, text, rest = _groups(line)
    text = BROKEN if rest and (keyword or '"' in line) else text
    if not (keyword or text):
        return ""
    return " ".join(filter(None, (obsolete, f"{keyword}[{form}]" if form else keyword, text or '""')))


def _groups(line: str) -> Sequence[str]:
    return cast("re.Match[str]", LINE.match(line)).groups("")


class _Lines(str):
    """Text that polib splits at line breaks only, and not at U+2028 and the like."""

    def splitlines(self, keepends: bool = False) -> list[str]:  # noqa: ARG002 (of str)
        return self.split("\n")


def _parse_po(file: str, lines: list[str]) -> polib.POFile:
    text = _Lines("\n".join([*lines, ""]))
    if repeated := REPEATED_FORM.search(text):  # of which polib keeps the last
        line = text.count("\n", 0, repeated.end()) + 1
        raise RequestError(f"{file}, line {line:,}: {repeated[1]} is there twice")
    try:
        return polib.pofile(text, encoding="utf-8")
    except OSError as error:
        line = int(re.findall(r"\d+", str(error))[-1])
        raise RequestError(
            f"{file}, line {line:,}: expected msgctxt, msgid, msgid_plural and msgstr in this order, "
            f"each on a line of its own. Let gettext write the catalogue again: msgcat {file} -o NEW.po"
        ) from None


def _po_messages(
    file: str, lines: list[str], faults: dict[int, Rejected], header: Header
) -> Iterator[Message | Rejected]:
    entries = _parse_po(file, lines)
    starts = [entry.linenum for entry in entries]
    fault_of = {bisect_right(starts, line) - 1: faults[line] for line in sorted(faults, reverse=True)}
    obsolete = {bisect_right(starts, line) - 1 for line, text in enumerate(lines, 1) if text.startswith("#~")}
    if -1 in fault_of:  # in the header
        yield fault_of[-1]
    for number, entry in enumerate(entries):
        entry.obsolete = number in obsolete  # as a whole, even if some of its lines only are marked
        if number in fault_of:
            yield fault_of[number]
        elif bool(entry.msgid_plural) != bool(entry.msgstr_plural):
            yield Rejected("msgid_plural and the forms of msgstr do not fit", file=file, line=max(entry.linenum, 1))
        else:
            yield from _pairs(entry, header)


def read_mo(file: str, stream: IO[bytes]) -> Catalogue:
    """Reads a `.mo` file, whole. Raises RequestError for one that is cut off, damaged, or has a header of no use."""
    data = _read_whole(file, stream)
    charset = re.search(rb"charset=([\w.:-]+)", _check_mo(file, data))
    encoding = charset[1].decode() if charset else "utf-8"
    _check_charset(file, encoding)
    try:
        entries = polib.mofile(data, encoding=encoding)
    except UnicodeDecodeError:
        raise RequestError(f"{file}: not valid {encoding.upper()}, which its header names. Compile it again.") from None
    header = Header.parse(file, entries.metadata)
    return Catalogue(header.language, (message for entry in entries for message in _pairs(entry, header)))


def _check_mo(file: str, data: bytes) -> bytes:
    """Returns the header of a `.mo`. Raises RequestError unless every text lies in the file and ends in NUL."""
    order = MO_ORDERS.get(data[:4])
    if order is None:
        raise RequestError(f"{file}: expected a .mo file, found one that begins otherwise. Compile it again.")
    try:
        revision, count, *tables = struct.unpack_from(f"{order}4I", data, 4)
        if revision >> 16 > 1:
            raise RequestError(f"{file}: expected revision 0 or 1 of the .mo format, found {revision >> 16}")
        spans = [span for table in tables for span in struct.iter_unpack(f"{order}2I", _slice(data, table, count * 8))]
        texts = [_slice(data, position, length + 1) for length, position in spans]
    except struct.error:
        raise _damaged(file) from None
    if any(text[-1] for text in texts):
        raise _damaged(file)
    return texts[count] if count and len(texts[0]) == 1 else b""


def _slice(data: bytes, position: int, length: int) -> bytes:
    if position + length > len(data):
        raise struct.error
    return data[position : position + length]


def _damaged(file: str) -> RequestError:
    return RequestError(
        f"{file}: a text or a table ends after the file does: it is cut off or damaged. Compile it again."
    )


def _read_whole(file: str, stream: IO[bytes]) -> bytes:
    data = stream.read(readers.LONGEST_LINE + 1)
    if len(data) > readers.LONGEST_LINE:
        raise RequestError(f"{file}: expected at most {readers.LONGEST_LINE >> 20} MiB, found more. Is it a catalogue?")
    return data


def _check_charset(file: str, name: str) -> None:
    try:
        if lookup(name).name in NO_CHARACTER_SETS:
            raise LookupError
        b"a".decode(name)  # `hex` and others are codecs, and no character sets
    except (LookupError, UnicodeError):
        raise RequestError(f"{file}: expected a character set, found charset={name}. Fix its header.") from None


def _pairs(entry: Any, header: Header) -> Iterator[Message]:
    """Streams the pairs of an entry; of plural forms the singular with its form, and the plural with each other one.

    `a file`, `files` in Russian: `a file`/`файл`, `files`/`файла`, `files`/`файлов`.
    """
    dropped = OBSOLETE if entry.obsolete else FUZZY if FUZZY in entry.flags else ""
    if not entry.msgid_plural:
        yield Message(*without_accelerators(entry.msgid, entry.msgstr), dropped)
        return
    for form, other in {**dict.fromkeys(range(header.forms), ""), **entry.msgstr_plural}.items():
        is_plural = header.forms == 1 or form != header.singular_form
        english, other = without_accelerators(entry.msgid_plural if is_plural else entry.msgid, other)
        yield Message(english, other, dropped or ("" if form < header.forms else NO_SUCH_FORM))


def without_accelerators(english: str, other: str) -> tuple[str, str]:
    """Both texts without the one `_` or `&` that marks a key: `_Open`, `E&xit`; `AT&T` and `foo_bar` stay."""
    mark = _accelerator(english)
    return _without(english, mark), _without(other, _accelerator(other, mark is not None))


def _accelerator(text: str, english_has_mark: bool | None = None) -> int | None:
    """The position of the mark in `text`: before a word, or in one.

    english_has_mark: of a translation, in which a mark is in a word only if its English has one. In the English it is
        recognised by the capital that labels begin with (`Prefere_nces`, but `foo_bar`).
    """
    if len(marks := [match.start() for match in ACCELERATOR.finditer(text)]) != 1:
        return None
    mark = marks[0]
    before, after = re.split(r"\s", text[:mark])[-1], text[mark + 1]
    if not before[-1:].isalnum():
        return mark
    if before[-1].isupper() and after.isupper():
        return None
    is_label = before.isalpha() and before[0].isupper() and after.islower()
    return mark if (is_label if english_has_mark is None else english_has_mark) else None


def _without(text: str, mark: int | None) -> str:
    return text if mark is None else text[:mark] + text[mark + 1 :]
