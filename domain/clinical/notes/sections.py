"""The sections of a clinical note, by the headers that its lines begin with."""

import re
from collections.abc import Iterator
from typing import NamedTuple

KNOWN = """
    action | addendum | admission date | admission diagnosis | admission medications | allergies | assessment |
    assessment and plan | assessment/plan | assessment & plan | attending | birth history | brief hospital course |
    chief complaint | code status | comparison | comments | condition at discharge | condition on discharge | consults |
    course in the emergency department | data | date of birth | diagnosis | diagnoses | diet | discharge condition |
    discharge date | discharge diagnosis | discharge diagnoses | discharge disposition | discharge exam |
    discharge instructions | discharge labs | discharge medications | discharge physical exam | discharge plan |
    disposition | events | exam | examination | facility | family history | final diagnosis | final report | findings |
    follow up | follow-up | followup instructions | follow-up instructions | follow up plans | history |
    history of present illness | history of the present illness | hospital course | hospital course by problem |
    hospital course by system | hpi | imaging | impression | indication | indications | interim history |
    interpretation | lab results | laboratory data | labs | major surgical or invasive procedure | medication changes |
    medications | medications at home | medications on admission | medications on discharge | medications on transfer |
    microbiology | neurological exam | objective | other past medical history | past medical history |
    past surgical history | pathology | pertinent results | physical exam | physical exam on admission |
    physical exam on discharge | physical examination | plan | pmh | present illness | procedures | psh |
    radiology | reason for admission | reason for this examination | reason for visit | response | review of systems |
    secondary diagnoses | secondary diagnosis | service | sex | social history | studies | subjective | summary |
    technique | transitional issues | underlying medical condition | vital signs | wet read
"""
NAMES = frozenset(name.strip() for name in KNOWN.split("|"))
"""Headers that are told wherever a line begins with them, followed by a colon or alone."""

HEADER = re.compile(
    r"""^[ \t]*(?:[#*•]+[ ]?)?
        (?P<name>[A-Za-z][A-Za-z0-9/&,'() \t-]{1,58}[A-Za-z0-9)])
        [ \t]*(?:(?P<colon>:)|(?=[ \t]*$))""",
    re.MULTILINE | re.VERBOSE,
)
MOST_WORDS = 8
FEWEST_LETTERS = 4
"""A shorter one in capitals before a colon ("BP:", "WBC:") is a figure's name."""


class Section(NamedTuple):
    """A section of a text: its header and what follows it, up to the next header.

    start, end: in characters of the text; the header is in it.
    name: the header's, in lower case.
    """

    start: int
    end: int
    name: str


def find_sections(text: str) -> list[Section]:
    """The sections of one note, in order; what stands before its first header is in none."""
    headers = list(_headers(text))
    starts = [*(start for start, _ in headers), len(text)]
    return [Section(start, end, name) for (start, name), end in zip(headers, starts[1:], strict=True)]


def begins_with_header(line: str) -> bool:
    """Whether a section begins with this line."""
    found = HEADER.match(line)
    return found is not None and _is_header(found, line)


def _headers(text: str) -> Iterator[tuple[int, str]]:
    for found in HEADER.finditer(text):
        if _is_header(found, text):
            yield found.start("name"), _plain(found["name"])


def _is_header(found: re.Match[str], text: str) -> bool:
    """Known names; names that have a line to themselves before a colon; longer ones in capitals before a colon."""
    name = found["name"]
    if _plain(name) in NAMES:
        return True
    words = name.split()
    if not found["colon"] or len(words) > MOST_WORDS or not words[0][0].isupper():
        return False
    if name.isupper():
        return sum(map(str.isalpha, name)) >= FEWEST_LETTERS
    line_end = text.find("\n", found.end())
    return not text[found.end() : line_end if line_end >= 0 else None].strip()


def _plain(name: str) -> str:
    return " ".join(name.lower().split())
