"""The small change of notes: dates and names behind marks, numbers, and lines broken as programs break them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random

LINE = 76
NUMBERS = {"few": (2, 9), "minute": (10, 59), "hundred": (90, 140), "hundreds": (141, 320)}
MARK = re.compile(r"\[\*\*[^*]*\*\*\]")


def filled(random: Random, templates: Iterable[str], day: datetime) -> list[str]:
    """`templates` with dates shortly before `day`, names and numbers in them, marked as MIMIC-III marks them."""
    blanks = _Blanks(random, day)
    return [template.format_map(blanks) if "{" in template else template for template in templates]


@dataclass(frozen=True)
class _Blanks:
    """What is put for `{date}` and the like: something else each time."""

    random: Random
    day: datetime

    def __getitem__(self, name: str) -> str:
        random = self.random
        match name:
            case "date":
                return date_mark(self.day - timedelta(days=random.randrange(20)))
            case "name":
                return f"[**Last Name (STitle) {random.randrange(9999)}**]"
            case "hospital":
                return f"[**Hospital{random.randint(1, 4)} {random.randrange(99)}**]"
            case "phone":
                return f"[**Telephone/Fax (1) {random.randrange(9999)}**]"
            case "ratio":
                return f"{random.uniform(0.6, 2.4):.1f}"
            case "percent":
                return f"{random.uniform(24, 38):.1f}"
            case _:
                return str(random.randint(*NUMBERS[name]))


def date_mark(day: datetime) -> str:
    return f"[**{day.year}-{day.month}-{day.day}**]"


def marked_as_in_iv(text: str) -> str:
    """`text` with all marks as MIMIC-IV has them: three underscores that do not say what they hide."""
    return MARK.sub("___", text)


def prose(sentences: Sequence[str]) -> str:
    """A paragraph, its lines broken where they are full."""
    text = " ".join(sentences)
    lines, start = [], 0
    while len(text) - start > LINE:
        end = text.rindex(" ", start, start + LINE)
        lines.append(text[start:end])
        start = end + 1
    return "\n".join((*lines, text[start:]))


def numbered(items: Sequence[str]) -> str:
    return "\n".join(f"{number}. {item}" for number, item in enumerate(items, start=1))


def vitals(random: Random) -> str:
    return (
        f"Vitals: T {random.uniform(96.8, 99.9):.1f} BP {random.randint(95, 160)}/{random.randint(50, 95)} "
        f"HR {random.randint(55, 115)} RR {random.randint(12, 26)} O2 sat {random.randint(90, 100)}% RA"
    )
