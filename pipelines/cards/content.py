"""The content of a card: what the kinds of models have to state, and text that Markdown shows as it is written."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.report.tables import Listing

LITERAL = {**{ord(sign): f"\\{sign}" for sign in "\\`*[]|"}, ord("<"): "&lt;", ord("&"): "&amp;"}
ADDRESS = re.compile(r":(?=//)|@(?=[\w-]+\.)|(?<=www)\.")
"""Signs that make text an address, which is a link without any sign of Markdown."""


@dataclass(frozen=True)
class Section:
    """A section of a card: paragraphs of Markdown, then a table whose cells are Markdown. level: of its title."""

    title: str
    paragraphs: Sequence[str] = ()
    table: Listing | None = None
    level: int = 2


@dataclass(frozen=True)
class Subject:
    """The statements of a card that depend on the kind of model.

    library, task, tags: for Hugging Face's metadata. languages: that the model is for, where they are recorded.
    opening: paragraphs on what the model gives for what. facts: rows of the first table, name to value.
    before_use, sections: before the examples, and between the trainings and the evaluation.
    examples: Python code by the words before it; `{model}` in it is the name of the model.
    set_apart: rows of the metrics' tables that a section has, so that the evaluation leaves them out.
    """

    library: str
    task: str
    tags: Sequence[str]
    opening: Sequence[str]
    facts: dict[str, str]
    examples: dict[str, str]
    limits: Sequence[str]
    languages: Sequence[str] = ()
    before_use: Sequence[Section] = ()
    sections: Sequence[Section] = ()
    set_apart: frozenset[str] = frozenset()


def literal(text: str) -> str:
    """Escapes `text` for a line or a cell of Markdown, in which no link, image or address of it is live."""
    escaped = " ".join(text.split()).translate(LITERAL)
    return ADDRESS.sub(lambda sign: f"&#{ord(sign[0])};", escaped)
