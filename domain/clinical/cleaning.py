"""The text of a stay: typed tokens for what was removed, wrapped lines joined, sections by their headers.

MIMIC-III says what it removed (`[**Hospital1 18**]`), MIMIC-IV does not (`___`); there the words around it decide.
Pretraining keeps these tokens whole and never masks them (`protected_tokens`). Every word, number, decimal point and
check box stays, and so do the lines that their writer ended.
"""

import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from domain.text.sentences import line_ends

NAME, DATE, AGE, HOSPITAL, PLACE = "[NAME]", "[DATE]", "[AGE]", "[HOSPITAL]", "[PLACE]"
PHONE, ADDRESS, ID, REMOVED = "[PHONE]", "[ADDRESS]", "[ID]", "[REMOVED]"

TOKENS = (NAME, DATE, AGE, HOSPITAL, PLACE, PHONE, ADDRESS, ID, REMOVED)
"""All tokens; `REMOVED` is for marks of unknown kind, `ADDRESS` for addresses of the web or of mail."""

LONGEST_MARK = 200  # characters; a mark that never ends swallows no text
MARK_OF_III = re.compile(rf"\[\*\*(.{{0,{LONGEST_MARK}}}?)\*\*\]", re.DOTALL)
MARK_OF_IV = re.compile(r"(?<!_)___(?!_)")

WORDS_OF_III = (
    (PHONE, r"telephone|fax|pager|beeper|phone"),
    (ADDRESS, r"e-?mail|url"),
    (HOSPITAL, r"hospital|ward ?name|clinic"),
    (ID, r"numeric identifier|number|job|serial|mrn|ssn"),
    (AGE, r"age over|age"),
    (DATE, r"date|month|year|day|holiday"),
    (NAME, r"name|initials?|(?:attending|dictator|contact) info|known|doctor|cc contact"),
    (PLACE, r"location|address|street|apartment|city|state|country|county|zip ?code|po box|university|company"),
)
"""In this order, as `Hospital Unit Name` is no name and `Telephone Number` no number."""
KINDS_OF_III = [(token, re.compile(rf"\b(?:{words})", re.IGNORECASE)) for token, words in WORDS_OF_III]
FULL_DATE = re.compile(r"\s*\d{0,4}(?:\s*[-/]\s*\d{0,4}){0,2}\s*")

BEFORE_IV = (
    (NAME, r"\b(?:mr|mrs|ms|miss|dr|drs|prof|attending|name|provider|pcp|wife|husband|daughter|son)\.?:?"),
    (PHONE, r"\b(?:phone|telephone|tel|fax|pager|beeper|call)(?: (?:number|no|#|at))?[.:#]*"),
    (ID, r"\b(?:unit no|mrn|record number|medical record|account)[.:#]*"),
    (DATE, r"\b(?:date|date of birth|dob|dated|since|until|on|as of|dictated|transcribed)\.?:?"),
    (AGE, r"\b(?:age|aged):?"),
    (HOSPITAL, r"\b(?:facility|hospital|transferred (?:from|to)|admitted to)[.:]?"),
    (PLACE, r"\b(?:lives in|resides in|moved (?:from|to)|born in|address|city)[.:]?"),
)
AFTER_IV = (
    (AGE, r"[- ]*(?:year|yr|y/?o\b|yo[mf]\b)"),
    (HOSPITAL, r" (?:hospital|medical center|clinic|rehab\w*|nursing home)\b"),
    (DATE, r" \d\d:\d\d ?(?:[ap]m)?\b"),
    (PHONE, r"[-. ]+(?:x|ext)\b"),
    (NAME, r",? (?:m\.?d|r\.?n|ph\.?d|d\.?o|n\.?p)\b"),
)
KINDS_AFTER_IV = [(token, re.compile(rule, re.IGNORECASE)) for token, rule in AFTER_IV]
KINDS_BEFORE_IV = [(token, re.compile(rule + r"\s{0,3}$", re.IGNORECASE)) for token, rule in BEFORE_IV]
REACH = 40  # characters before a mark that are read


def _token_of_iii(mark: re.Match[str]) -> str:
    """Returns the token for a mark of MIMIC-III by the words in it."""
    words = mark[1]
    if any(letter.isdigit() for letter in words) and FULL_DATE.fullmatch(words):
        return DATE
    return next((token for token, kind in KINDS_OF_III if kind.search(words)), REMOVED)


def _token_of_iv(mark: re.Match[str]) -> str:
    """Returns the token for a mark of MIMIC-IV by the words after it, else by those before it."""
    text, before = mark.string, mark.string[max(0, mark.start() - REACH) : mark.start()]
    after = (token for token, kind in KINDS_AFTER_IV if kind.match(text, mark.end()))
    earlier = (token for token, kind in KINDS_BEFORE_IV if kind.search(before))
    return next(after, None) or next(earlier, REMOVED)


NAMES = frozenset(Path(__file__).with_name("section_names.txt").read_text(encoding="utf-8").splitlines())
"""Headers that are recognised wherever a line begins with them and a colon, or has nothing else."""

HEADER = re.compile(
    r"""^[ \t]*(?:[#*•]+[ ]?)?
        (?P<name>[A-Za-z][A-Za-z0-9/&,'() \t-]{1,58}[A-Za-z0-9)])
        [ \t]*(?:(?P<colon>:)|$)""",
    re.MULTILINE | re.VERBOSE,
)
MOST_WORDS = 8
FEWEST_LETTERS = 4
"""A shorter name in capitals before a colon ("BP:", "WBC:") is that of a measurement."""


class Section(NamedTuple):
    """A section of a text: its header and the text after it, up to the next header.

    start, end: in characters of the text; the header is in it.
    name: the header's, in lower case.
    """

    start: int
    end: int
    name: str


def find_sections(text: str) -> list[Section]:
    """Returns the sections of one note, in order; text before its first header is in none."""
    headers = [header for header in HEADER.finditer(text) if _is_header(header, text)]
    starts = [*(header.start("name") for header in headers), len(text)]
    names = (" ".join(header["name"].lower().split()) for header in headers)
    return [Section(start, end, name) for (start, end), name in zip(pairwise(starts), names, strict=True)]


def _is_header(header: re.Match[str], text: str) -> bool:
    """Accepts known names, names with a colon that fill a line, and longer names in capitals before a colon."""
    name, words = header["name"], header["name"].split()
    if " ".join(words).lower() in NAMES:
        return True
    if not header["colon"] or len(words) > MOST_WORDS or not words[0][0].isupper():
        return False
    if name.isupper():
        return sum(map(str.isalpha, name)) >= FEWEST_LETTERS
    line_end = text.find("\n", header.end())
    return not text[header.end() : line_end if line_end >= 0 else None].strip()


LINE_BREAKS = re.compile(r"\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1b\x7f]")
RULE = re.compile(r"(?!\++(?: \++)*$)[-=_*~#+]{4,}(?: [-=_*~#+]{4,})*")
"""A drawn line. One of plus signs only is a finding: `++++` is more than `+++`."""
TIMED = re.compile(r"(?:___|\[\*\*[^*\n]*\*\*\]) \d\d?:\d\d")
"""Beginning of a line of measured values: its date, which was removed, and its time."""
EMPTY_LINES = re.compile(r"\n{3,}")


def clean(text: str) -> str:
    """Cleans the text of a note; empty where it has only white space and drawn lines.

    Seen by [**Known lastname 1**] on [**2101-3-4**].    →    Seen by [NAME] on [DATE].
    """
    text = CONTROLS.sub(" ", LINE_BREAKS.sub("\n", text))
    lines = (" ".join(line.split()) for line in text.split("\n"))
    text = "\n".join("" if RULE.fullmatch(line) else line for line in lines)
    # Joined before marks are replaced: as they are, lines have the width that a program wrapped them at.
    text = MARK_OF_IV.sub(_token_of_iv, MARK_OF_III.sub(_token_of_iii, _joined(text)))
    return EMPTY_LINES.sub("\n\n", text).strip()


def _joined(text: str) -> str:
    """Replaces the line breaks that a program has set by spaces: no sentence ends there, and nothing begins."""
    joined = []
    for start, end in pairwise([0, *line_ends(text), len(text)]):
        first, *others = text[start:end].removesuffix("\n").split("\n")
        for line in others:
            header = HEADER.match(line)
            begins = TIMED.match(line) or (header is not None and _is_header(header, line))
            first += ("\n" if begins else " ") + line
        joined.append(first)
    return "\n".join(joined)


BETWEEN = "\n\n"
"""Text between two notes of a stay."""
