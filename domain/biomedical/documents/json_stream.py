"""JSON values read one after the other from a file of any size, of which only the current one is in memory."""

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
SHOWN = 3  # of the places where a value differs from its shape
NOT_JSON, NOT_UNICODE = "not JSON", "not valid Unicode"
CUT_OFF = "is the file cut off here?"


class JsonWindow:
    """A window on a JSON text that moves forward with what is read. Raises RequestError, with the line, for no JSON.

    line: the one that is being read, from 1.
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
        """Moves over `sign` when it comes next."""
        found = self.peek() == sign
        self._at += found
        return found

    def value(self) -> str:
        """Moves over the next JSON value; returns its text."""
        self.peek()
        while True:
            try:
                _, end = JSONDecoder().raw_decode(self._text, self._at)
            except (ValueError, RecursionError):  # broken, not whole yet, or a number of more digits than Python reads
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
        for line in self.places():
            yield line, self.value()

    def places(self) -> Iterator[int]:
        """The line of each element of the array that comes next; the caller moves over the element."""
        for _ in self._each("[", "]"):
            self.peek()
            yield self.line

    def members(self) -> Iterator[str]:
        """The keys of the object that comes next; the caller moves over the value of each."""
        for _ in self._each("{", "}"):
            key = json.loads(self.value())
            self._expect(":")
            yield key

    def _each(self, opening: str, closing: str) -> Iterator[None]:
        self._expect(opening)
        is_done = self.take(closing)
        while not is_done:
            yield
            is_done = self.take(closing)
            if not is_done:
                self._expect(",")

    def broken(self) -> RequestError:
        """What to raise where the file is no JSON any more."""
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

    def _move_to(self, place: int) -> None:
        self.line += self._text.count("\n", self._at, place)
        self._at = place

    def _read_on(self) -> bool:
        """Drops what was read and reads as much again as is left, at least; False at the end of the file."""
        left = self._text[self._at :]
        more = self._stream.read(max(SIZE, len(left)))
        self._text, self._at = left + more, 0
        return bool(more)


@contextmanager
def json_window(path: Path) -> Iterator[JsonWindow]:
    """A JSON file, unpacked where it is gzip. Raises RequestError for one that is cut off, damaged or not UTF-8."""
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


# Shapes of values


class Shape(BaseModel):
    """Base of what is expected of a JSON value: no coercion; other keys are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, defer_build=True)


Flag = Annotated[bool, BeforeValidator(lambda value: bool(value) if type(value) is int and value in (0, 1) else value)]
"""True or false, as 1 and 0 as well; nothing else is one."""

AnyShape = TypeVar("AnyShape", bound=Shape)


def _broken(message: str) -> tuple[str, str]:
    """Reason and detail of a value that the parser cannot read; its messages quote nothing."""
    if "hex escape" in message:
        return NOT_UNICODE, "half of a surrogate pair: a \\u escape without its other half"
    return NOT_JSON, CUT_OFF if "EOF" in message else message


def json_value(text: str) -> Any:
    """The value of a JSON text of any shape. Raises Rejected where it is none."""
    try:
        return from_json(text)
    except ValueError as error:
        raise Rejected(*_broken(str(error))) from None


def parsed(shape: type[AnyShape], value: str) -> AnyShape:
    """The JSON value in `value`. Raises Rejected when it is none or of another shape, with the places that differ."""
    return _validated(shape.model_validate_json, value)


def fitted(shape: type[AnyShape], value: object) -> AnyShape:
    """As `parsed`, of a value that was read before."""
    return _validated(shape.model_validate, value)


PLACE = "_?(offset|char|character|index|idx|pos|position)?"
FIRST_KEY = re.compile(f"(char_?)?(start|begin|from){PLACE}|offset", re.IGNORECASE)
LAST_KEY = re.compile(f"(char_?)?(end|stop|to|len|length){PLACE}", re.IGNORECASE)
PAIR_KEY = re.compile("(char_?)?(offset|span|location|position)s?", re.IGNORECASE)
"""The keys by which tools write where an annotation is: its start, its end or length, or both as a pair."""
TAG = re.compile("O|[BIESLU]-.+")


def refuse_spans(found: Shape, expected: str) -> None:
    """Raises Rejected where a key that is not read has spans: annotations in a shape that another tool writes."""
    for name, value in (found.model_extra or {}).items():
        if _has_spans(value):
            detail = f"found `{shown_id(name)}`; expected {expected}, an empty list where there are none"
            raise Rejected("entities of another shape", detail)


def _has_spans(value: object) -> bool:
    """Whether a value has places in a text: an object with start and end, lists such as `[0, 7, "Drug"]`, or tags."""
    if isinstance(value, dict):
        numbers = [name for name, each in value.items() if _is_number(each)]
        is_place = all(any(map(key.fullmatch, numbers)) for key in (FIRST_KEY, LAST_KEY))
        is_pair = any(PAIR_KEY.fullmatch(name) and _is_pair(each) for name, each in value.items())
        return is_place or is_pair or any(map(_has_spans, value.values()))
    return isinstance(value, list) and (_are_tags(value) or any(_is_pair(each) or _has_spans(each) for each in value))


def _is_number(value: object) -> bool:
    """Whether a value is a number, one in quotes, or a list, which may be of numbers."""
    return isinstance(value, int | float | list) or (isinstance(value, str) and value.isdecimal())


def _are_tags(value: list[object]) -> bool:
    """Whether these are tags of words with entities; `O` is among them, as keywords may be `["B-cell"]`."""
    is_all = all(isinstance(each, str) and TAG.fullmatch(each) for each in value)
    return is_all and "O" in value and any(each != "O" for each in value)


def _is_pair(value: object) -> bool:
    """Whether a list has a start and an end, with at most names and scores around them."""
    if not isinstance(value, list):
        return False
    places = [place for place, each in enumerate(value) if type(each) is int]
    if len(places) != 2 or places[1] != places[0] + 1 or not 0 <= value[places[0]] < value[places[1]]:
        return False
    return all(isinstance(each, str | float | int | None) for each in value)


def _validated(validate: Callable[[Any], AnyShape], value: object) -> AnyShape:
    try:
        return validate(value)
    except ValidationError as error:
        faults = error.errors(include_input=False, include_url=False, include_context=False)
    if faults[0]["type"] == "json_invalid":
        raise Rejected(*_broken(faults[0]["msg"].partition(": ")[2]))
    places = [f"{'.'.join(map(str, fault['loc'])) or 'it'}: {fault['msg']}" for fault in faults[:SHOWN]]
    raise Rejected("JSON of another shape", "; ".join([*places, *["…"][: len(faults) - SHOWN]]))
