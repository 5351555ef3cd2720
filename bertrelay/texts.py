"""Texts that a caller passes: checked one by one, streamed or as a list."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from bertrelay.errors import RequestError


def texts_of(given: Iterable[str], name: str) -> list[str]:
    """`given` as a list. Raises RequestError, which begins with `name`, for what is no iterable of texts."""
    return list(each_text(given, name))


def each_text(given: Iterable[str], name: str) -> Iterator[str]:
    """Streams `given`, each checked; raises as `texts_of` does, at once for what is no iterable of texts."""
    texts = _iterator(given, name, "texts", "[text]")
    return (_checked(text, name, f"position {place}") for place, text in enumerate(texts))


def _checked(text: object, name: str, place: str) -> str:
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
    for number, pair in enumerate(_iterator(given, name, "pairs of texts", "[(first, second)]")):
        place = f"position {number}"
        shape = (len(pair),) if isinstance(pair, tuple | list) else getattr(pair, "shape", None)  # of an array's row
        if shape != (2,):
            raise RequestError(f"{name}: expected two texts, (first, second), found {type(pair).__name__} at {place}")
        yield _checked(pair[0], name, place), _checked(pair[1], name, place)


def _iterator(given: Any, name: str, items: str, example: str) -> Iterator[Any]:
    kind = type(given).__name__
    if isinstance(given, str):
        kind = f"one string; write {example}"
    elif isinstance(given, Mapping) or hasattr(given, "columns") or hasattr(given, "column_names"):
        kind = f'a {kind}, which would give its keys or column names; pass one column of it, such as frame["text"]'
    elif not isinstance(given, bytes):
        with suppress(TypeError):  # of an array without dimensions too, which has the method
            return iter(given.to_pylist() if hasattr(given, "to_pylist") else given)  # of pyarrow, not its scalars
    raise RequestError(f"{name}: expected a list of {items}, found {kind}")
