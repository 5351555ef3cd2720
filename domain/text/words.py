"""Words of a text: runs of letters and digits with their marks; every other character is a word by itself.

Scripts that put no spaces between words are split into characters, each with the marks that combine with it.
"""

import re
import unicodedata
from functools import cache, lru_cache

UNSPACED_SCRIPTS = {
    "Thai and Lao": "\u0e00-\u0eff",
    "Burmese": "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f",
    "Khmer": "\u1780-\u17ff",
    "Chinese and Japanese": "\u2e80-\u2fff\u3005-\u3007\u3021-\u302f\u3031-\u312f\u3190-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00016fe2-\U00016fff\U0001aff0-\U0001b16f\U00020000-\U0003ffff",
}
"""The scripts without spaces between words, as ranges of a class of `re`."""
UNSPACED = "".join(UNSPACED_SCRIPTS.values())
HANGUL = "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff"
"""Korean, as ranges of a class of `re`: there are spaces, and particles follow a noun without one."""

STACKERS = "\u1039\u17d2"
"""The Burmese and the Khmer sign that set the next consonant below the one before."""
FURTHER_MARKS = "\u0e33\u0eb3\uff9e\uff9f\U000e0100-\U000e01ef"
"""Characters that combine with the one before and are no marks to Unicode, and the variants of ideographs."""


def word_spans(text: str, start: int = 0, end: int | None = None) -> list[tuple[int, int]]:
    """(start, end) of each word between two positions in `text`, in order; outside them there is only white space.

    `COX-2 and 高血压` has the words COX, -, 2, and, 高, 血, 压; Thai `น้ำ`, four characters with two marks, is one word.
    """
    return [match.span() for match in _pattern().finditer(text, start, len(text) if end is None else end)]


@lru_cache(maxsize=1 << 16)
def is_word(token: str) -> bool:
    """True if raw text that is `token` only is one word."""
    return word_spans(token) == [(0, len(token))]


@cache
def _pattern() -> re.Pattern[str]:
    # Marks up to 0xFFFF: of a class of characters beyond it, `re` compares one after the other.
    marks = "".join(chr(code) for code in range(0x10000) if unicodedata.category(chr(code))[0] == "M")
    letters = rf"[^\W_{UNSPACED}]"
    character = rf"[{UNSPACED}](?:[{marks}{FURTHER_MARKS}]|(?<=[{STACKERS}])[{UNSPACED}])*"
    return re.compile(rf"{letters}+(?:[{marks}]+{letters}*)*|{character}|\S")
