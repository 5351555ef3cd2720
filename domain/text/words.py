"""Words of a text: letters and digits with their marks are one word, every other character is one."""

import re
import unicodedata
from functools import cache, lru_cache


def word_spans(text: str, start: int = 0, end: int | None = None) -> list[tuple[int, int]]:
    """(start, end) of each word between two places in `text`, in order; outside them there is only white space."""
    return [found.span() for found in _pattern().finditer(text, start, len(text) if end is None else end)]


@lru_cache(maxsize=1 << 16)
def is_word(token: str) -> bool:
    """Whether a text that is `token` alone is one word."""
    return word_spans(token) == [(0, len(token))]


@cache
def _pattern() -> re.Pattern[str]:
    # Marks up to 0xFFFF: of a class of characters beyond it, `re` compares one after the other.
    marks = "".join(chr(code) for code in range(0x10000) if unicodedata.category(chr(code))[0] == "M")
    return re.compile(rf"[^\W_]+(?:[{marks}]+[^\W_]*)*|\S")
