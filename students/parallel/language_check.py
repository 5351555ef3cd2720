"""Check of the language of texts, which shows that columns are swapped or that a code is wrong.

The letters of the texts are compared with the script of their language in CLDR. Between two languages of Latin script
frequent English words are counted in both.
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
from students.parallel.settings import ENGLISH

FIRST_TEXTS, STRIDE = 2_000, 64
"""The first texts are all checked, then one in 64."""
FEWEST = 20
"""Fewest texts from which anything is concluded."""
FEW_LETTERS = 0.1
"""Fraction of letters in the script of the language, below which a text is misplaced."""
LETTER = regex.compile(r"\p{L}")
IN_SCRIPT = r"\p{{Script={}}}"
LATIN = ("Latn",)
ENGLISH_WORD = re.compile(r"\b(?:the|and|with|that|this|from|you|are|which|they)\b", re.IGNORECASE)
SENTENCE_WORDS = 5


@lru_cache(maxsize=256)
def _letter_pattern(scripts: tuple[str, ...]) -> Any:
    """The pattern of one letter of the scripts; None where they are unknown, or Unicode lacks one of them."""
    if "" in scripts:
        return None
    try:
        return regex.compile(rf"[[{''.join(map(IN_SCRIPT.format, scripts))}]&&\p{{L}}]", regex.V1)
    except regex.error:
        return None


class LanguageTexts:
    """Counts of texts that should be in one language: of all, and of those with hardly a letter of its script.

    A text without any letter is not counted.

    seen: all texts that were added. texts: those that were checked. misplaced: those in another script.
    foreign_letters: letters of the first misplaced texts.
    sentences, with_english: checked texts of several words, and those of them that have a frequent English word.
    """

    def __init__(self, language: str) -> None:
        self.language, self.scripts = language, likely_scripts(language)
        self.seen = self.texts = self.misplaced = 0
        self.foreign_letters: Counter[str] = Counter()
        self.sentences = self.with_english = 0

    def add(self, text: str) -> None:
        self.seen += 1
        letter = _letter_pattern(self.scripts)
        if letter is None or (self.seen > FIRST_TEXTS and self.seen % STRIDE):
            return
        letters = len(LETTER.findall(text))
        self.texts += letters > 0
        if len(letter.findall(text)) < FEW_LETTERS * letters:
            self.misplaced += 1
            if self.misplaced <= FEWEST:
                self.foreign_letters.update(LETTER.findall(text))
        if self.scripts == LATIN and text.count(" ") >= SENTENCE_WORDS - 1:
            self.sentences += 1
            self.with_english += bool(ENGLISH_WORD.search(text))

    @property
    def misplaced_fraction(self) -> float:
        return self.misplaced / self.texts if self.texts else 0.0

    @property
    def english_fraction(self) -> float | None:
        """The fraction of sentences with a frequent English word; None if there are too few sentences."""
        return self.with_english / self.sentences if self.sentences >= FEWEST else None

    def describe(self) -> str:
        """`100.0% of 700 texts in en have hardly a letter of its script, Latn; theirs is Hangul`."""
        names = Counter(name_of(letter, "?").partition(" ")[0] for letter in self.foreign_letters.elements())
        script = names.most_common(1)[0][0].replace("CJK", "Chinese").title() if names else "none"
        return (
            f"{self.misplaced_fraction:.1%} of {self.texts:,} texts in {self.language} have hardly a letter of its "
            f"script, {' or '.join(self.scripts)}; theirs is {script}"
        )


class LanguageCheck:
    """The texts of a source, in English and another language, or in one language only."""

    def __init__(self, languages: Sequence[str]) -> None:
        self.parts = [LanguageTexts(language) for language in languages]

    def add(self, texts: Iterable[str]) -> None:
        for part, text in zip(self.parts, texts, strict=True):
            part.add(text)

    def misplaced_fractions(self) -> dict[str, float]:
        """By language the fraction of texts with hardly a letter of its script, where there are any."""
        return {part.language: part.misplaced_fraction for part in self.parts if part.misplaced}

    @property
    def swapped_fraction(self) -> float:
        """By how much the fraction of sentences with an English word is higher where English should not be."""
        english, *others = [part.english_fraction for part in self.parts] or [None]
        others = [] if any(part.language.startswith(ENGLISH) for part in self.parts[1:]) else others
        return max([0.0, *(other - english for other in others if other is not None and english is not None)])

    def check(self, name: str, limit: float) -> None:
        """Raises RequestError if more than `limit` of the texts seem to be in another language; logs a few.

        name: of the source.
        """
        wrong = [part for part in self.parts if part.misplaced_fraction > limit and part.texts >= FEWEST]
        findings = [part.describe() for part in wrong]
        if not wrong and self.swapped_fraction > limit:
            fractions = " and ".join(f"{part.english_fraction:.1%} of those in {part.language}" for part in self.parts)
            findings = [f"frequent English words are in {fractions}"]
        if not findings:
            if few := [part.describe() for part in self.parts if part.misplaced]:
                log(f"{name}: {'; '.join(few)}")
            return
        swapped = len(self.parts) > 1 and (not wrong or wrong[0] is self.parts[0] or len(wrong) == len(self.parts))
        code = f"{wrong[-1].language}-Latn or another script" if wrong else ""
        hint = (
            "The two languages seem to be swapped: exchange the columns or files"
            if swapped
            else f"Check the code of the language, and the column; if both are right, name the script too ({code})"
        )
        raise RequestError(
            f"{name}: {'; '.join(findings)}. {hint}. For text that is right as it is, raise max_misplaced, "
            f"now {limit:g}."
        )
