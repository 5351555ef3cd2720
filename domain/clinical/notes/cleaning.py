"""A note as models read it: typed tokens for what was removed, wrapped lines joined, empty ones and rules taken out.

Every word, number, decimal point and check box stays, and so do the lines that their writer ended.
"""

import re
from itertools import pairwise

from domain.clinical.notes.marks import with_tokens
from domain.clinical.notes.sections import begins_with_header
from domain.sentences import line_ends

LINE_BREAKS = re.compile(r"\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1b\x7f]")
RULE = re.compile(r"[-=_*~#+]{4,}(?: [-=_*~#+]{4,})*")
TIMED = re.compile(r"(?:___|\[\*\*[^*\n]*\*\*\]) \d\d?:\d\d")
"""How a line of laboratory values begins: with its date, which was removed, and its time."""
EMPTY_LINES = re.compile(r"\n{3,}")


def clean(text: str) -> str:
    """`text` of a note, cleaned; empty when nothing but white space and rules stood there."""
    text = CONTROLS.sub(" ", LINE_BREAKS.sub("\n", text))
    lines = (" ".join(line.split()) for line in text.split("\n"))
    text = "\n".join("" if RULE.fullmatch(line) else line for line in lines)
    # Joined before marks are replaced: as they are, lines have the width that a program wrapped them at.
    return EMPTY_LINES.sub("\n\n", with_tokens(_joined(text))).strip()


def _joined(text: str) -> str:
    """`text` with a space for each line break that a program has set: no sentence ends there, and nothing begins."""
    places = [0, *line_ends(text), len(text)]
    joined = []
    for start, end in pairwise(places):
        first, *others = text[start:end].removesuffix("\n").split("\n")
        joined.append("".join([first, *(("\n" if _begins_anew(line) else " ") + line for line in others)]))
    return "\n".join(joined)


def _begins_anew(line: str) -> bool:
    return TIMED.match(line) is not None or begins_with_header(line)
