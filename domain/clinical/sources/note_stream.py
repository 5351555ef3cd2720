"""Notes of any source but MIMIC, by the meaning that the recipe gives their types."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd

from bertrelay.data.records import is_missing
from domain.clinical.sources.form import ADDENDUM, OTHER, REPORT, NoteReader, Reject
from domain.clinical.sources.reading import first_fault
from domain.clinical.sources.rows import LAST_SECOND, places
from domain.clinical.sources.settings import HospitalSource, NoteMap, plain
from domain.clinical.sources.values import (
    EMPTY,
    SHOWN_FROM,
    VALUES_SHOWN,
    Meanings,
    candidates,
    refuse_unmapped,
    shown_one,
    times_of,
)

NOT_CARRIED = {
    "stored_at": "all: this source has no times of saving or signing, and the times that notes describe may be early",
    "note_type": "all: this source has no types of notes, and each counts as a discharge summary",
}
"""Lines of the flow table on what the source does not have."""


class SourceNotes:
    """The notes of a reader, with the meaning that the settings give their types."""

    def __init__(self, source: HospitalSource, note_map: NoteMap, reader: NoteReader) -> None:
        self._source, self._map, self._reader = source, note_map, reader
        self._rows = 0
        self._unmapped = Counter[str]()
        self._subjects: dict[str, set[str]] = {}  # of each such value, as many as make it one that may be shown
        self.files: Mapping[str, Path] = reader.files
        self.has_early = source.has("note_type")

    def tables(self) -> list[str]:
        """Names the files of notes."""
        return list(self.files)

    def registered(self) -> None:
        """Returns None: the source does not list all stays."""

    def not_carried(self) -> list[str]:
        """Describes what the notes do not have."""
        return [line for column, line in NOT_CARRIED.items() if not self._source.has(column)]

    def unmapped_types(self) -> list[tuple[str, int]]:
        """Counts the notes by a type that the map lacks; rare types together."""
        shown = [value for value, _ in self._unmapped.most_common() if len(self._subjects[value]) >= SHOWN_FROM]
        listed = [(repr(value), self._unmapped[value]) for value in shown[:VALUES_SHOWN]]
        rare = self._unmapped.total() - sum(count for _, count in listed)
        return [*listed, *([(f"values of fewer than {SHOWN_FROM} patients", rare)] if rare else [])]

    def blocks(self, table: str, reject: Reject) -> Iterator[pd.DataFrame]:
        """Streams the notes in the form of all sources.

        Raises RequestError at the end where more notes are of types that the map lacks than may be.
        """
        meanings = Meanings(next(self._map.groups()), "note_type")
        for block in self._reader.blocks(table, reject):
            rows = self._formed(block, meanings, table, reject)
            self._count_unmapped(rows)
            yield rows
        if self._unmapped.total() > self._source.max_unmapped * self._rows:
            refuse_unmapped("note_type", self.unmapped_types(), self._rows, self._source.max_unmapped)

    def _formed(self, block: pd.DataFrame, meanings: Meanings, table: str, reject: Reject) -> pd.DataFrame:
        """Brings a block into the form of all sources; rejects rows with a wrong time or a text that is none."""
        charted = times_of(block["charted_at"], self._source)
        stored = times_of(block.get("stored_at", pd.Series(None, block.index, dtype=object)), self._source)
        has_text = block["text"].map(lambda text: isinstance(text, str) or is_missing(text)).astype(bool)
        faults = ("charted_at is " + charted.faults).where(charted.faults != "", "")
        faults = first_fault(faults, stored.faults != "", "stored_at is " + stored.faults)
        faults = first_fault(faults, ~has_text, "text is something other than text")
        is_used = faults == ""
        for (file, row), fault in zip(places(block[~is_used], str(self.files[table])), faults[~is_used], strict=True):
            reject(file, row, fault)
        stored_at = stored.times.mask(stored.by_day, stored.times + LAST_SECOND)
        is_charted_day = charted.by_day & ~(stored_at >= charted.times)
        is_stored_day = stored.by_day & ~(charted.times > stored_at)
        written = pd.concat([charted.times, stored_at], axis=1).max(axis=1)
        kinds = pd.Series("discharge", block.index, dtype=object)
        if "note_type" in block:
            block = block.assign(note_type=block["note_type"].map(candidates))
            kinds = meanings.look_up(block["note_type"])
        block = block.assign(
            text=block["text"].where(~block["text"].map(is_missing).astype(bool), ""),
            kind=kinds.map({"discharge": REPORT, "addendum": ADDENDUM}).fillna(OTHER).astype(int),
            is_radiology=kinds == "radiology",
            is_error=(kinds == "error") | block.get("is_withdrawn", False),
            is_unmapped=kinds.isna(),
            charted=charted.times.mask(charted.by_day, charted.times + LAST_SECOND),
            written=written.mask(is_charted_day, charted.times + LAST_SECOND),
            by_day=is_charted_day | is_stored_day,
            is_stored=stored.times.notna(),
        )
        return block[is_used]

    def _count_unmapped(self, rows: pd.DataFrame) -> None:
        self._rows += len(rows)
        unmapped = rows[rows["is_unmapped"]]
        for subject, value in zip(unmapped["subject_id"], unmapped.get("note_type", []), strict=True):
            name = plain(shown_one(value)) or EMPTY
            self._unmapped[name] += 1
            subjects = self._subjects.setdefault(name, set())
            if len(subjects) < SHOWN_FROM:
                subjects.add(subject)
