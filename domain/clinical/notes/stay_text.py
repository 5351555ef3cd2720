"""The notes of one stay put in order and together."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from domain.clinical.notes.cleaning import clean
from domain.clinical.notes.sections import find_sections

REPORT, ADDENDUM, OTHER = 0, 1, 2
"""Kinds of notes: a discharge summary, what was added to one later, and all else."""
BETWEEN = "\n\n"


class Note(NamedTuple):
    """A note of a stay, as the blocks hold it. `order` is the place of its row in its table."""

    hadm_id: str
    kind: int
    at: datetime | None
    order: int
    text: str

    @property
    def written(self) -> tuple[bool, Any, int]:
        """Sorts notes by time; those without one come last, in the order of their rows."""
        return self.at is None, self.at or 0, self.order


def in_order(notes: Sequence[Note]) -> list[Note]:
    """The notes of a stay: reports in time order, each followed by its addenda; before them all else, in time order.

    An addendum belongs to the last report of its admission that was written before it, else to the first one; where
    the admission has no report, to one of the stay. Without any report, addenda stand for themselves.
    """
    by_time = sorted(notes, key=lambda note: note.written)
    reports = [note for note in by_time if note.kind == REPORT]
    addenda: dict[int, list[Note]] = {place: [] for place in range(len(reports))}
    alone = []
    for addendum in (note for note in by_time if note.kind == ADDENDUM):
        if reports:
            addenda[_report_of(addendum, reports)].append(addendum)
        else:
            alone.append(addendum)
    summaries = [note for place, report in enumerate(reports) for note in (report, *addenda[place])]
    return [*(note for note in by_time if note.kind == OTHER), *summaries, *alone]


def _report_of(addendum: Note, reports: Sequence[Note]) -> int:
    """The place of the report that an addendum belongs to."""
    places = range(len(reports))
    own = [place for place in places if reports[place].hadm_id == addendum.hadm_id] or [*places]
    before = [place for place in own if reports[place].written[:2] <= addendum.written[:2]]
    return before[-1] if before else own[0]


def text_of(notes: Sequence[Note]) -> dict[str, Any]:
    """The cleaned notes of a stay as one text, in order, with its sections and the number of notes that are in it."""
    texts = [text for note in in_order(notes) if (text := clean(note.text))]
    sections, start = [], 0
    for text in texts:
        sections += [(start + section.start, start + section.end, section.name) for section in find_sections(text)]
        start += len(text) + len(BETWEEN)
    named = [dict(zip(("start", "end", "name"), section, strict=True)) for section in sections]
    return {"text": BETWEEN.join(texts), "sections": named, "n_notes": len(texts)}
