"""Whether texts are in the language they should be in: what shows that columns are swapped, or a code is wrong.

The script of a language, as CLDR knows it, is compared with the letters of its texts. Of two languages of Latin script
frequent English words are looked for in both.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any
from unicodedata import name as name_of

import regex

from bertrelay.errors import RequestError
from bertrelay.languages import likely_scripts
from bertrelay.progress import log

ENGLISH = "en"
LOOKED_AT, THEN_EVERY = 2_000, 64
"""So many texts are looked at from the first on, then one in so many."""
FEWEST = 20
"""Of fewer texts nothing is concluded."""
FEW_LETTERS = 0.1
LETTER = regex.compile(r"\p{L}")
IN_SCRIPT = r"\p{{Script={}}}"
LATIN = ("Latn",)
ENGLISH_WORD = re.compile(r"\b(?:the|and|with|that|this|from|you|are|which|they)\b", re.IGNORECASE)
WORDS_OF_A_SENTENCE = 5


@lru_cache(maxsize=256)
def _letter_of(scripts: tuple[str, ...]) -> Any:
    """A pattern of one letter of the scripts; None where they are unknown, or Unicode does not have one of them."""
    if "" in scripts:
        return None
    try:
        return regex.compile(rf"[[{''.join(map(IN_SCRIPT.format, scripts))}]&&\p{{L}}]", regex.V1)
    except regex.error:
        return None


class LanguageTexts:
    """Texts that should be in one language: how many are looked at, and how many have hardly a letter of its script.

    A text without any letter is not counted.
    """

    def __init__(self, language: str) -> None:
        self.language, self.scripts = language, likely_scripts(language)
        self.texts = self.misplaced = self.given = 0
        self.foreign: Counter[str] = Counter()  # letters of the first of those texts
        self.long = self.with_english = 0

    def add(self, text: str) -> None:
        self.given += 1
        own = _letter_of(self.scripts)
        if own is None or (self.given > LOOKED_AT and self.given % THEN_EVERY):
            return
        letters = len(LETTER.findall(text))
        self.texts += letters > 0
        if len(own.findall(text)) < FEW_LETTERS * letters:
            self.misplaced += 1
            if self.misplaced <= FEWEST:
                self.foreign.update(LETTER.findall(text))
        if self.scripts == LATIN and text.count(" ") >= WORDS_OF_A_SENTENCE - 1:
            self.long += 1
            self.with_english += bool(ENGLISH_WORD.search(text))

    @property
    def share(self) -> float:
        return self.misplaced / self.texts if self.texts else 0.0

    @property
    def english(self) -> float | None:
        """The share of sentences with a frequent English word; None of too few."""
        return self.with_english / self.long if self.long >= FEWEST else None

    def words(self) -> str:
        """`100.0% of 700 texts in en have hardly a letter of its script, Latn; theirs is Hangul`."""
        names = Counter(name_of(letter, "?").partition(" ")[0] for letter in self.foreign.elements())
        found = names.most_common(1)[0][0].replace("CJK", "Chinese").title() if names else "none"
        return (
            f"{self.share:.1%} of {self.texts:,} texts in {self.language} have hardly a letter of its script, "
            f"{' or '.join(self.scripts)}; theirs is {found}"
        )


class LanguageCheck:
    """The texts of a source, in English and another language, or in one language only."""

    def __init__(self, languages: Sequence[str]) -> None:
        self.parts = [LanguageTexts(language) for language in languages]

    def add(self, texts: Iterable[str]) -> None:
        for part, text in zip(self.parts, texts, strict=True):
            part.add(text)

    def shares(self) -> dict[str, float]:
        """By language the share of texts that have hardly a letter of its script, where there are any."""
        return {part.language: part.share for part in self.parts if part.misplaced}

    @property
    def swapped(self) -> float:
        """By how much the share of sentences with an English word is higher where English should not be."""
        english, *others = [part.english for part in self.parts] or [None]
        others = [] if any(part.language.startswith(ENGLISH) for part in self.parts[1:]) else others
        return max([0.0, *(other - english for other in others if other is not None and english is not None)])

    def check(self, name: str, limit: float) -> None:
        """Raises RequestError where more than `limit` of the texts seem to be in another language; reports fewer."""
        wrong = [part for part in self.parts if part.share > limit and part.texts >= FEWEST]
        found = [part.words() for part in wrong]
        if not wrong and self.swapped > limit:
            shares = " and ".join(f"{part.english:.1%} of those in {part.language}" for part in self.parts)
            found = [f"frequent English words are in {shares}"]
        if not found:
            if some := [part.words() for part in self.parts if part.misplaced]:
                log(f"{name}: {'; '.join(some)}")
            return
        swapped = len(self.parts) > 1 and (not wrong or wrong[0] is self.parts[0] or len(wrong) == len(self.parts))
        named = f"{wrong[-1].language}-Latn or another script" if wrong else ""
        hint = (
            "The two languages seem to be swapped: exchange the columns or files"
            if swapped
            else f"Check the code of the language, and the column; if both are right, name the script too ({named})"
        )
        raise RequestError(
            f"{name}: {'; '.join(found)}. {hint}. For text that is right as it is, raise max_misplaced, now {limit:g}."
        )
