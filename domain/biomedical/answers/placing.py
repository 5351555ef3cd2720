"""Where a right answer stands in its context: by its offset, by one mended, or by its words."""

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from domain.biomedical.answers.questions import Answer, Synonyms

Placing = Literal["in place", "mended", "nowhere"]
Alignment = Literal["exactly", "by case", "in a synonym", "not found"]

ALIGNMENTS: tuple[Alignment, ...] = ("exactly", "by case", "in a synonym", "not found")
"""How an answer was found, the best first."""

MOST_SHIFT = 10  # characters; what stands further off may be another mention


def placed(context: str, text: str, start: int) -> tuple[Answer | None, Placing]:
    """The answer at `start`, else one at most `MOST_SHIFT` characters off.

    One that is no part of a longer word goes before one that is; then the nearest, and of two the earlier.
    """
    if start >= 0 and context.startswith(text, start):
        return Answer(text, start), "in place"
    begin = max(0, start - MOST_SHIFT)
    around = context[begin : max(0, start + MOST_SHIFT + len(text))]
    found = [begin + place for place in _places(text, around)]
    if not found:
        return None, "nowhere"
    whole = {answer.start for answer in _mentions(context, text, re.NOFLAG)}
    return Answer(text, min(found, key=lambda place: (place not in whole, abs(place - start)))), "mended"


def aligned(context: str, wordings: Synonyms) -> tuple[tuple[Answer, ...], Alignment]:
    """Where an answer without offsets stands: its first wording, in other cases, or else a synonym of it.

    Every mention of the best kind counts; a mention begins and ends where words do. `Ret` is not in `retina`.
    """
    name, synonyms = wordings[0], wordings[1:]
    tries: list[tuple[Alignment, Sequence[str], re.RegexFlag]] = [
        ("exactly", [name], re.NOFLAG),
        ("by case", [name], re.IGNORECASE),
        ("in a synonym", synonyms, re.NOFLAG),
        ("in a synonym", synonyms, re.IGNORECASE),
    ]
    for how, texts, flags in tries:
        found = {answer for text in texts for answer in _mentions(context, text, flags)}
        if found:
            return tuple(sorted(found, key=lambda answer: answer.start)), how
    return (), "not found"


def _places(text: str, around: str) -> Iterator[int]:
    place = around.find(text)
    while place >= 0:
        yield place
        place = around.find(text, place + 1)


def _mentions(context: str, text: str, flags: re.RegexFlag) -> Iterator[Answer]:
    """Mentions of `text` that are no part of a longer word."""
    before = r"(?<!\w)" if re.match(r"\w", text) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", text) else ""
    for found in re.finditer(before + re.escape(text) + after, context, flags):
        yield Answer(found[0], found.start())
