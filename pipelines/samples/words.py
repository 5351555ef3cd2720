"""Putting words together, the same in every language."""

from collections.abc import Callable
from typing import TypeVar

Part = TypeVar("Part")


def joined(*parts: str | None) -> str:
    """The parts that are there, with one space between them."""
    return " ".join(filter(None, parts))


def said(render: Callable[[Part], str], part: Part | None) -> str | None:
    """`part` in words, where it is there."""
    return None if part is None else render(part)


def sentence(text: str) -> str:
    """`text` with a capital at its start and a full stop at its end."""
    return f"{text[0].upper()}{text[1:]}."
