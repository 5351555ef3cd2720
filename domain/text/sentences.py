"""Sentences of clinical and scientific English, by rules; of other languages by their marks.

One pass: a mark (. ! ? …) before white space, or a line break, may end a sentence; the characters around it decide. A
full stop of another script, such as `。`, ends one wherever it is. Tests score the rules on samples marked by hand.
"""

import math
import re
from collections.abc import Iterable, Iterator
from itertools import chain, groupby, pairwise

NARROWEST_WRAP, WIDEST_WRAP = 60, 150
"""Programs wrap lines at a width between these. The writer ended shorter lines, and all lines of a paragraph that has a
longer one."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Abbreviations are listed without their last dot; case does not count.
BEFORE_MORE = _words("dr drs mr mrs ms prof st mt vs e.g i.e cf viz approx ca fig figs eq eqs suppl vit y.o")
"""Abbreviations that belong to the next word: a name, a number, an example."""

BEFORE_NUMBERS = _words("no nos ref refs sect sec ver vol pp art tab temp resp sept")
"""Before a number these are abbreviations; elsewhere they may be words."""

BEFORE_NAMES = _words("inc ltd co corp chem univ dept jr sr gen col sp spp")
"""A name after these continues the sentence; a word that opens sentences does not."""

BEFORE_LETTERS = _words(
    "hepatitis vitamin group groups type class grade stage factor protein arm panel part phase category influenza "
    "immunoglobulin complex blood chain domain site"
)
"""Nouns after which a single capital names a kind ("hepatitis C") and is no initial."""

OPENERS = _words(
    "the this that these those he she it we they i you his her its our their there here in on at after before during "
    "since while when where if as although because however thus therefore hence moreover then also a an no not to by "
    "from with without of for and but yet so some most many few both all each one two three four several other "
    "another what who which why how was were is are do does did has have had will would patient pt please"
)
"""Words that begin sentences and are no names."""

CITATION = r"(?: ?\[\d[\d,; –-]*\]|\(\d[\d,; –-]*\)|(?<=[A-Za-z)\]]\.)\d{1,3}(?:[,–-]\d{1,3})*)"
CLOSING = "\"”’'»)\\]」』）】》〉"
OPENING = "「『（【《〈“‘"
CANDIDATE = rf"(?<![.!?…])([.!?…]++)([{CLOSING}]*){CITATION}?(?=\s)"

FULL_STOPS = "。！？｡।॥۔؟።៕។။"
"""Marks that need no white space after them: Chinese and Japanese, Hindi, Urdu, Amharic, Khmer and Burmese ones."""
WIDE_STOP = "．(?![0-9A-Za-z０-９Ａ-Ｚａ-ｚ])"  # but no point of a number or an abbreviation
QUOTE_CONTINUES = rf"(?=[{CLOSING}]+[^\s{CLOSING}{OPENING}])"  # 「はい。」と言った is one sentence
FULL_STOP = rf"(?<![．{FULL_STOPS}])(?:[{FULL_STOPS}]|{WIDE_STOP})++(?!{QUOTE_CONTINUES})[{CLOSING}]*"

MARK = re.compile(rf"{CANDIDATE}|(\n)|{FULL_STOP}")
INSIDE_WORD = re.compile(r"[(\[{\"“‘,;:/]")
WHITE_SPACE = re.compile(r"\s*")
NEXT_WORD = re.compile(r"\s*[\"“‘'(\[]*(\S*)")
ONLY_A_NUMBER = re.compile(r"\s*#?(?:\d{1,3}|[A-Za-z]|[ivxIVX]{1,15})")
NUMBERED = re.compile(r"\d{1,2}[.)]")
BULLET = re.compile(r"\s*(?:[-–*•+]+\s|\(\d{1,2}\)|\[[ xX]?\]|#)")
OPENS_IN_LOWER_CASE = re.compile(r"(?![qx]\d)[a-zα-ω]{1,4}-?[A-Z0-9]|[a-hivx]{1,3}\)")  # mRNA, p53, ii); not q24h, x2
LONG_WORD = re.compile(r"[^\W\d_]{4,}|.*[\d%)\]]")
DOTTED_CAPITALS = re.compile(r"(?:[A-Z]\.)+[A-Z]")
CONTINUES = frozenset(",;:)&/=<>±×")
WORDS_REACH = 60  # characters that hold the last two words


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """(start, end) of each sentence in `text`, in order; outside the spans there is only white space.

    A header on a line of its own, an item of a list and a line that is not wrapped are sentences too. A line break
    inside a wrapped sentence stays inside it.
    """
    return list(iterate_sentences(text))


def iterate_sentences(text: str) -> Iterator[tuple[int, int]]:
    """The same as a stream that reads at most a paragraph ahead, so that memory does not grow with the text."""
    start = 0
    for end in chain(_ends(text), [len(text)]):
        sentence = text[start:end].strip()
        if sentence:
            begin = text.index(sentence[0], start)
            yield begin, begin + len(sentence)
        start = end


def _ends(text: str) -> Iterator[int]:
    """The positions after sentences."""
    ended_lines = line_ends(text)
    ended_line, start = 0, _first_solid(text, 0)
    for mark in MARK.finditer(text):
        end = mark.end()
        if mark[3]:  # a line break
            while ended_line < end:
                ended_line = next(ended_lines, len(text) + 1)
            is_end = ended_line == end
        else:
            is_end = mark[1] is None or _is_end(text, start, mark)
        if is_end:
            yield end
            start = start if start > end else _first_solid(text, end)  # once for a run of line breaks


def _first_solid(text: str, start: int) -> int:
    """The position of the first character from `start` on that is not white space; the end if there is none."""
    space = WHITE_SPACE.match(text, start)
    return space.end() if space else start


def line_ends(text: str) -> Iterator[int]:
    """The positions after the line breaks that end a sentence."""
    position = 0
    for (line, width), (following, _) in pairwise(_with_widths(_lines(text))):
        position += len(line) + 1
        if not line.strip() or not following.strip() or _is_ended_by_writer(line.rstrip(), following, width):
            yield position


def _lines(text: str) -> Iterator[str]:
    """The lines of `text`; the last one follows the last line break, and may be empty."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start:end]
        start = end + 1
    yield text[start:]


def _with_widths(lines: Iterable[str]) -> Iterator[tuple[str, float]]:
    """Each line with the width at which its paragraph may be wrapped, that of its longest line."""
    for _, paragraph in groupby(lines, key=lambda line: bool(line.strip())):
        listed = list(paragraph)
        width = max(NARROWEST_WRAP, *map(len, listed))
        for line in listed:
            yield line, width if width <= WIDEST_WRAP else math.inf


def _is_ended_by_writer(line: str, following: str, width: float) -> bool:
    """True if the writer ended `line`, not a program that wraps: the next word would have fitted.

    At a width of 80, `Na 131` before `K 4.0` is ended by its writer; a line of 78 characters before `potassium` is not.
    """
    first_word = following.split(None, 1)[0]
    had_space = len(line) + 1 + len(first_word) <= width
    if BULLET.match(following) or line.endswith(":"):
        return True
    if NUMBERED.fullmatch(first_word):
        return had_space or line.endswith((".", ";"))
    continues = first_word[0].islower() and len(line) >= NARROWEST_WRAP and line[-1] not in ".!?"
    return had_space and not continues


def _is_end(text: str, start: int, match: re.Match[str]) -> bool:
    """True if a mark before white space ends the sentence that begins at `start`."""
    mark, closing = match[1], match[2]
    before, word = _words_before(text, start, match.start())
    following = _word_after(text, match.end())
    if not following:
        return True
    if following[0] in CONTINUES:
        return False
    if mark != ".":
        is_apart = text[match.start() - 1].isspace()  # "? pneumonia"
        return not following[0].islower() or (mark[0] in "!?" and not closing and not is_apart)
    is_number_of_item = ONLY_A_NUMBER.fullmatch(text, start, match.start()) or (word == "1" and before.endswith(":"))
    return not is_number_of_item and _full_stop_ends(before, word, following)


def _full_stop_ends(before: str, word: str, following: str) -> bool:
    """True if a full stop between `before word` and `following` is more than the dot of an abbreviation.

    `("by", "Dr", "Osei")` gives False, `("has", "fever", "He")` True.
    """
    lowered = word.lower()
    if lowered in BEFORE_MORE:
        return False
    if following[0].islower():
        return OPENS_IN_LOWER_CASE.match(following) is not None
    if following[0].isdigit():
        is_word = LONG_WORD.fullmatch(word) or NUMBERED.fullmatch(following)
        return is_word is not None and lowered not in BEFORE_NUMBERS
    opens = following.rstrip(",:;").lower() in OPENERS
    if len(word) == 1 and word.isupper():
        return opens or before.lower() in BEFORE_LETTERS or before[-1:].isdigit()
    if lowered in BEFORE_NAMES or DOTTED_CAPITALS.fullmatch(word):
        return opens
    return True


def _words_before(text: str, start: int, end: int) -> tuple[str, str]:
    """The last two words of a sentence up to `end`, the last one without brackets and quotes in front of it."""
    *others, word = ["", "", *text[max(start, end - WORDS_REACH) : end].split()][-2:]
    return others[0], INSIDE_WORD.split(word)[-1]


def _word_after(text: str, end: int) -> str:
    """The word after a mark, without quotes and brackets; empty at the end of the text."""
    match = NEXT_WORD.match(text, end)
    return match[1] if match else ""
