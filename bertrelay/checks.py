"""Checks of the arguments of public functions: choices, counts, and texts one by one, streamed or as a list."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from numbers import Integral
from typing import Any

from bertrelay.errors import RequestError, describe


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raises RequestError unless the `value` of this name is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise RequestError(f"{name}: expected {', '.join(choices[:-1])} or {choices[-1]}, found {describe(value)}")


def check_count(name: str, count: int | None) -> None:
    """Raises RequestError for a count of less than one; None stands for the default."""
    if count is not None and (not isinstance(count, Integral) or count < 1):
        raise RequestError(f"{name}: expected 1 or more, found {describe(count)}")


def check_dimensions(dimensions: Sequence[int], dim: int) -> None:
    """Raises RequestError where vectors of `dim` dimensions are to be cut to more than they have."""
    if dimensions and max(dimensions) > dim:
        raise RequestError(f"dimensions: expected at most the {dim} of the model's vectors, found {max(dimensions)}")


def list_texts(texts: Iterable[str], name: str) -> list[str]:
    """`texts` as a list. Raises RequestError, which begins with `name`, for anything but an iterable of texts."""
    return list(iterate_texts(texts, name))


def iterate_texts(texts: Iterable[str], name: str) -> Iterator[str]:
    """Streams `texts`, checked one by one; raises as `list_texts` does, at once for what is not iterable."""
    iterator = _iterator(texts, name, "texts", "[text]")
    return (_valid_text(text, name, position) for position, text in enumerate(iterator))


def iterate_pairs(pairs: Iterable[tuple[str, str]], name: str) -> Iterator[tuple[str, str]]:
    """Streams pairs of texts, checked one by one. Raises RequestError, which begins with `name`, for anything else."""
    for position, pair in enumerate(_iterator(pairs, name, "pairs of texts", "[(first, second)]")):
        shape = (len(pair),) if isinstance(pair, tuple | list) else getattr(pair, "shape", None)  # a row of an array
        if shape != (2,):
            raise RequestError(
                f"{name}: expected two texts, (first, second), found {type(pair).__name__} at position {position}"
            )
        yield _valid_text(pair[0], name, position), _valid_text(pair[1], name, position)


def _valid_text(text: object, name: str, position: int) -> str:
    if not isinstance(text, str):
        raise RequestError(f"{name}: expected text, found {type(text).__name__} at position {position}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{name}: expected valid Unicode, found half of a surrogate pair at character {error.start:,} of the text "
            f"at position {position}. Read it with the encoding it was written in, or leave it out"
        ) from None
    return text


def _iterator(values: Any, name: str, items: str, example: str) -> Iterator[Any]:
    kind = type(values).__name__
    if isinstance(values, str):
        kind = f"one string; write {example}"
    elif isinstance(values, Mapping) or hasattr(values, "columns") or hasattr(values, "column_names"):
        kind = f'a {kind}, which would give its keys or column names; pass one column of it, such as frame["text"]'
    elif not isinstance(values, bytes):
        with suppress(TypeError):  # an array without dimensions raises it too, though it has the method
            return iter(values.to_pylist() if hasattr(values, "to_pylist") else values)  # pyarrow iterates scalars
    raise RequestError(f"{name}: expected a list of {items}, found {kind}")
