"""JSON values of a file of any size, with only the current one in memory; their validation by pydantic."""

import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from json import JSONDecoder
from pathlib import Path
from typing import Annotated, Any, TextIO, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import from_json

from bertrelay.data.encodings import NOT_UTF8, conversion_hint
from bertrelay.data.readers import LONGEST_LINE, open_input
from bertrelay.data.tables import Rejected
from bertrelay.errors import RequestError
from domain.reading import shown_id

WHITE = re.compile(r"[ \t\n\r]*")
SIZE = 1 << 20  # characters
KINDS = {"{": "an object", "[": "a list"}
SHOWN = 3  # of the differences between a value and its shape
NOT_JSON, NOT_UNICODE = "not JSON", "not valid Unicode"
CUT_OFF = "is the file cut off here?"


class JsonWindow:
    """A window on a JSON text that moves forward as values are read. Raises RequestError, with the line, for no JSON.

    line: the current line, from 1.
    """

    def __init__(self, stream: TextIO, file: str) -> None:
        self.file, self.line = file, 1
        self._stream, self._text, self._at = stream, "", 0

    def peek(self) -> str:
        """The next character that is not white space; empty at the end of the file."""
        while True:
            white = WHITE.match(self._text, self._at)
            self._move_to(white.end() if white else self._at)
            if self._at < len(self._text) or not self._read_on():
                return self._text[self._at : self._at + 1]

    def take(self, sign: str) -> bool:
        """Moves over `sign` if it comes next; True if it did."""
        is_next = self.peek() == sign
        self._at += is_next
        return is_next

    def value(self) -> str:
        """Moves over the next JSON value; returns its text."""
        self.peek()
        while True:
            try:
                _, end = JSONDecoder().raw_decode(self._text, self._at)
            except (ValueError, RecursionError):  # broken, incomplete, or a number of more digits than Python reads
                if len(self._text) - self._at > LONGEST_LINE:
                    raise RequestError(
                        f"{self.file}, line {self.line:,}: expected JSON values of at most {LONGEST_LINE >> 20} MiB, "
                        "found a longer one. Is the file damaged?"
                    ) from None
                if not self._read_on():
                    raise self.broken() from None
                continue
            if end < len(self._text) or not self._read_on():  # else a number may continue
                text = self._text[self._at : end]
                self._move_to(end)
                return text

    def elements(self) -> Iterator[tuple[int, str]]:
        """Line and text of each element of the array that comes next."""
        for line in self.element_lines():
            yield line, self.value()

    def element_lines(self) -> Iterator[int]:
        """The line of each element of the array that comes next; the caller moves over the element."""
        for _ in self._items("[", "]"):
            self.peek()
            yield self.line

    def members(self) -> Iterator[str]:
        """The keys of the object that comes next; the caller moves over the value of each."""
        for _ in self._items("{", "}"):
            key = json.loads(self.value())
            self._expect(":")
            yield key

    def _items(self, opening: str, closing: str) -> Iterator[None]:
        self._expect(opening)
        is_done = self.take(closing)
        while not is_done:
            yield
            is_done = self.take(closing)
            if not is_done:
                self._expect(",")

    def broken(self) -> RequestError:
        """The error for a file that is no JSON from here on."""
        return RequestError(
            f"{self.file}, line {self.line:,}: the JSON value that begins here is broken, or the file is cut off. "
            "Fetch or write it again."
        )

    def _expect(self, sign: str) -> None:
        if self.take(sign):
            return
        if sign in KINDS and self.peek():
            raise RequestError(
                f"{self.file}, line {self.line:,}: expected {KINDS[sign]}, found {KINDS.get(self.peek(), 'a value')}. "
                "Is it the right file, and of this format?"
            )
        raise self.broken()

    def _move_to(self, position: int) -> None:
        self.line += self._text.count("\n", self._at, position)
        self._at = position

    def _read_on(self) -> bool:
        """Drops the text before the position, and at least doubles the rest; False at the end of the file."""
        rest = self._text[self._at :]
        more = self._stream.read(max(SIZE, len(rest)))
        self._text, self._at = rest + more, 0
        return bool(more)


@contextmanager
def json_window(path: Path) -> Iterator[JsonWindow]:
    """Opens a JSON file, which may be gzip. Raises RequestError for one that is cut off, damaged or not UTF-8."""
    with open_input(str(path)) as stream:
        window = JsonWindow(io.TextIOWrapper(stream, encoding="utf-8-sig", newline=""), str(path))
        try:
            yield window
        except UnicodeDecodeError as error:
            raise RequestError(
                f"{path}, after line {window.line:,}: {NOT_UTF8}{conversion_hint(str(path), error.object)}. "
                "Give it in UTF-8, whole."
            ) from None
        except (EOFError, OSError, zlib.error) as error:
            raise RequestError(
                f"{path}, after line {window.line:,}: cut off or damaged ({type(error).__name__}). "
                "Fetch or write it again."
            ) from None


class Shape(BaseModel):
    """Base of the models of JSON values: no coercion; other keys are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, defer_build=True)


Flag = Annotated[bool, BeforeValidator(lambda value: bool(value) if type(value) is int and value in (0, 1) else value)]
"""True or false, also as 1 and 0."""

AnyShape = TypeVar("AnyShape", bound=Shape)


def _broken(message: str) -> tuple[str, str]:
    """Reason and detail of a value that the parser cannot read; neither quotes it."""
    if "hex escape" in message:
        return NOT_UNICODE, "half of a surrogate pair: a \\u escape without its other half"
    return NOT_JSON, CUT_OFF if "EOF" in message else message


def json_value(text: str) -> Any:
    """The value of a JSON text of any shape. Raises Rejected for no JSON."""
    try:
        return from_json(text)
    except ValueError as error:
        raise Rejected(*_broken(str(error))) from None


def parsed(shape: type[AnyShape], value: str) -> AnyShape:
    """The JSON value in `value`. Raises Rejected for no JSON, and for another shape with the keys that differ."""
    return _validated(shape.model_validate_json, value)


def fitted(shape: type[AnyShape], value: object) -> AnyShape:
    """Validates a value that was read before, as `parsed` does."""
    return _validated(shape.model_validate, value)


UNIT = "_?(offset|char|character|index|idx|pos|position)?"
FIRST_KEY = re.compile(f"(char_?)?(start|begin|from){UNIT}|offset", re.IGNORECASE)
LAST_KEY = re.compile(f"(char_?)?(end|stop|to|len|length){UNIT}", re.IGNORECASE)
PAIR_KEY = re.compile("(char_?)?(offset|span|location|position)s?", re.IGNORECASE)
"""Keys of other tools for the start of an annotation, for its end or length, and for both as a pair."""
TAG = re.compile("O|[BIESLU]-.+")


def refuse_spans(value: Shape, expected: str) -> None:
    """Raises Rejected if a key that is not read has spans, which are annotations in the shape of another tool."""
    for name, extra in (value.model_extra or {}).items():
        if _has_spans(extra):
            detail = f"found `{shown_id(name)}`; expected {expected}, an empty list where there are none"
            raise Rejected("entities of another shape", detail)


def _has_spans(value: object) -> bool:
    """True if a value has positions in a text: an object with start and end, a list as `[0, 7, "Drug"]`, or tags."""
    if isinstance(value, dict):
        numbers = [name for name, number in value.items() if _is_number(number)]
        is_span = all(any(map(key.fullmatch, numbers)) for key in (FIRST_KEY, LAST_KEY))
        is_pair = any(PAIR_KEY.fullmatch(name) and _is_pair(pair) for name, pair in value.items())
        return is_span or is_pair or any(map(_has_spans, value.values()))
    return isinstance(value, list) and (_are_tags(value) or any(_is_pair(item) or _has_spans(item) for item in value))


def _is_number(value: object) -> bool:
    """True for a number, one in quotes, or a list, which may be of numbers."""
    return isinstance(value, int | float | list) or (isinstance(value, str) and value.isdecimal())


def _are_tags(value: list[object]) -> bool:
    """True for tags of words with entities, among them `O`, as `["B-cell"]` may be a keyword."""
    is_all = all(isinstance(tag, str) and TAG.fullmatch(tag) for tag in value)
    return is_all and "O" in value and any(tag != "O" for tag in value)


def _is_pair(value: object) -> bool:
    """True for a list with a start and an end, and at most names and scores around them."""
    if not isinstance(value, list):
        return False
    numbers = [at for at, item in enumerate(value) if type(item) is int]
    if len(numbers) != 2 or numbers[1] != numbers[0] + 1 or not 0 <= value[numbers[0]] < value[numbers[1]]:
        return False
    return all(isinstance(item, str | float | int | None) for item in value)


def _validated(validate: Callable[[Any], AnyShape], value: object) -> AnyShape:
    try:
        return validate(value)
    except ValidationError as error:
        faults = error.errors(include_input=False, include_url=False, include_context=False)
    if faults[0]["type"] == "json_invalid":
        raise Rejected(*_broken(faults[0]["msg"].partition(": ")[2]))
    differences = [f"{'.'.join(map(str, fault['loc'])) or 'it'}: {fault['msg']}" for fault in faults[:SHOWN]]
    raise Rejected("JSON of another shape", "; ".join([*differences, *["…"][: len(faults) - SHOWN]]))
