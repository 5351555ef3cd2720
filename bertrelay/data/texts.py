"""Texts that a caller gives: any iterable of them is read through, and what holds none is an error that says so."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bertrelay.errors import RequestError


def texts_of(given: Iterable[str], name: str) -> list[str]:
    """`given` as a list. Raises RequestError, which begins with `name`, for what is no iterable of texts."""
    return list(each_text(given, name))


def each_text(given: Iterable[str], name: str) -> Iterator[str]:
    """Streams `given`, each checked; raises as `texts_of` does, at once for what is no iterable of texts."""
    texts = _iterator(given, name, "texts", "[text]")
    return (checked_text(text, name, f"position {place}") for place, text in enumerate(texts))


def checked_text(text: object, name: str, place: str) -> str:
    """`text`. Raises RequestError, without it, where it is none, or no valid Unicode."""
    if not isinstance(text, str):
        raise RequestError(f"{name}: expected text, found {type(text).__name__} at {place}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{name}: expected valid Unicode, found half of a surrogate pair at character {error.start:,} of the text "
            f"at {place}. Read it with the encoding it was written in, or leave it out"
        ) from None
    return text


def each_pair(given: Iterable[tuple[str, str]], name: str) -> Iterator[tuple[str, str]]:
    """Streams pairs of texts, each checked. Raises RequestError, which begins with `name`, for what is none."""
    pairs = _iterator(given, name, "pairs of texts", "[(first, second)]")
    return (_checked_pair(pair, name, f"position {place}") for place, pair in enumerate(pairs))


def _checked_pair(pair: object, name: str, place: str) -> tuple[str, str]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise RequestError(f"{name}: expected two texts, (first, second), found another thing at {place}")
    return checked_text(pair[0], name, place), checked_text(pair[1], name, place)


def _iterator(given: Any, name: str, items: str, example: str) -> Iterator[Any]:
    found = type(given).__name__
    if isinstance(given, str):
        raise RequestError(f"{name}: expected a list of {items}, found one string; write {example}")
    if isinstance(given, Mapping) or hasattr(given, "columns") or hasattr(given, "column_names"):
        raise RequestError(
            f"{name}: expected a list of {items}, found a {found}, which would give its keys or column names; "
            'pass one column of it, such as frame["text"]'
        )
    if isinstance(given, bytes):
        raise RequestError(f"{name}: expected a list of {items}, found {found}")
    try:
        return iter(given)
    except TypeError:  # of an array without dimensions too, which has the method
        raise RequestError(f"{name}: expected a list of {items}, found {found}") from None
