"""Putting words together, the same in every language."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from pipelines.samples.grammar import Clause, Meaning
from pipelines.samples.lexicon import Link

Part = TypeVar("Part")


def joined(*parts: str | None) -> str:
    """The parts that are there, with one space between them."""
    return " ".join(filter(None, parts))


def said(render: Callable[[Part], str], part: Part | None) -> str | None:
    """`part` in words, where it is there."""
    return None if part is None else render(part)


def linked(meaning: Meaning, clause: Callable[[Clause], str], links: Mapping[Link, str]) -> str:
    """`meaning` as a sentence, where a second clause has the form of the first and follows its link."""
    text = clause(meaning.main)
    if meaning.link is not None and meaning.second is not None:
        text += links[meaning.link] + clause(meaning.second)
    return sentence(text)


def sentence(text: str) -> str:
    """`text` with a capital at its start and a full stop at its end."""
    return f"{text[0].upper()}{text[1:]}."
