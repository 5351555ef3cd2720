"""Forms of a name that are compared: without case and punctuation, as a set of words, and the parts of a composite."""

import re
import unicodedata
from functools import lru_cache

GRAM = 3
PUNCTUATION = re.compile(r"[^\w]+|_")
COORDINATION = re.compile(r"\s*,\s*(?:and|or)\s+|\s+(?:and/or|and|or)\s+|\s*/\s*|\s*,\s*")
FEW_LETTERS = 3


@lru_cache(maxsize=1 << 16)
def normalized(name: str) -> str:
    """The name in lower case, its words apart by one space: `Tooth  Agenesis, Selective` is `tooth agenesis selective`.

    Characters are those of Unicode's NFKC, so that wide and narrow ones are equal.
    """
    return PUNCTUATION.sub(" ", unicodedata.normalize("NFKC", name).lower()).strip()


def words_of(name: str) -> str:
    """The words of a normalized name in alphabetical order, those of four letters and more without a plural `s`.

    So `breast cancers` and `Cancer, Breast` are equal.
    """
    words = {word[:-1] if len(word) > FEW_LETTERS and _is_plural(word) else word for word in name.split()}
    return " ".join(sorted(words))


def _is_plural(word: str) -> bool:
    return word.endswith("s") and not word.endswith(("ss", "us", "is"))


def grams(name: str) -> frozenset[str]:
    """The three-character sequences of a normalized name, with a space before and after it."""
    padded = f" {name} "
    return frozenset(padded[at : at + GRAM] for at in range(len(padded) - GRAM + 1))


def likeness(first: frozenset[str], second: frozenset[str]) -> float:
    """Dice's coefficient of two sets, from 0 to 1: twice the number in common, by the sum of their sizes."""
    return 2 * len(first & second) / max(1, len(first) + len(second))


def readings_of(mention: str) -> list[list[str]]:
    """The lists of names that a composite mention may stand for; none where it has no `and`, `or`, comma or slash.

    `renal or hepatic failure` gives `renal`, `hepatic failure`, and `renal failure`, `hepatic failure`: the parts as
    they are, and those before the last one with its last word. `fever and cough` gives `fever`, `cough` alone.
    """
    parts = [part for part in COORDINATION.split(mention.strip()) if part.strip()]
    if len(parts) < 2:
        return []
    *modifiers, head = parts[-1].split()
    return [parts, [*(f"{part} {head}" for part in parts[:-1]), parts[-1]]] if modifiers else [parts]
