"""Which rows of a table of notes a model reads, where columns as MIMIC has them say of what kind each note is.

A model reads the kind of notes that it was trained on. All of a hospital's notes read together give other risks.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from bertrelay.data.records import canonical_id
from bertrelay.data.tables import ABSENT
from bertrelay.errors import RequestError
from bertrelay.progress import log
from domain.clinical.outcomes import OutcomeModelSettings

MARKS = ("category", "note_type", "iserror")
"""Columns, in any case, that say what a row is: MIMIC-III's category, MIMIC-IV's note_type, and what is an error."""
KINDS = {"category": {"discharge summary"}, "note_type": {"ds", "ad"}}
"""Of each column the values of discharge summaries and their addenda."""
ERRORS = {"1", "1.0", "true"}


class NoteKinds:
    """Chooses the rows that a model of these settings reads, and counts the others by their reason.

    name: of the table, for errors.
    """

    def __init__(self, how: OutcomeModelSettings, name: str) -> None:
        self._how, self._name = how, name
        self.left_out = Counter[str]()
        self._of_left_out, self._is_raw = set[str](), False

    def reads(self, marks: Mapping[str, Any], identifier: object) -> bool:
        """Whether a row is read; marks: its values in `MARKS`, `ABSENT` where the table has no such column.

        identifier: of its admission.

        Raises RequestError where the table has several kinds and does not say which of its rows the model was trained
        on.
        """
        words = {mark: str(value).strip().lower() for mark, value in marks.items() if value is not ABSENT}
        named = [mark for mark in KINDS if mark in words]
        self._is_raw |= bool(named)
        if named and (self._how.input != "discharge" or self._how.radiology):
            raise RequestError(
                f"notes: expected the notes that the model was trained on, {self._trained_on}, found a table of "
                f"several kinds, by its column {named[0]}, in {self._name}, which does not say which rows these are. "
                "Give these notes alone and without that column, as notes.parquet of the stage domain.notes has them "
                "(with --cleaned)"
            )
        reasons = [f"no discharge summary by {mark}" for mark in named if words[mark] not in KINDS[mark]]
        reasons += ["marked as an error"] if words.get("iserror") in ERRORS else []
        self.left_out.update(reasons[:1])
        if reasons:
            with suppress(ValueError):
                self._of_left_out.add(canonical_id(identifier))
        return not reasons

    @property
    def _trained_on(self) -> str:
        if self._how.input == "early":
            return "those of the first hours of a stay"
        return "discharge summaries with radiology reports" if self._how.radiology else "which its folder does not name"

    def check(self, read: int, admissions: Collection[str]) -> None:
        """Logs what was left out, and what such a table does not say. Raises RequestError where nothing was read.

        admissions: those of which a row was read.
        """
        listed = ", ".join(f"{count:,} × {reason}" for reason, count in self.left_out.items())
        if listed and not read:
            raise RequestError(
                f"notes: expected discharge summaries, which the model was trained on, found none in {self._name}; "
                f"left out {listed}. Where these are such notes, leave that column out"
            )
        if listed:
            every = read + self.left_out.total()
            without = len(self._of_left_out - {*admissions, ""})
            alone = f"; {without:,} admissions have no other rows, and so no score" if without else ""
            log(f"left out {self.left_out.total():,} of {every:,} rows, which the model does not read: {listed}{alone}")
        if self._is_raw:
            log(
                f"warning: the model was trained on {self._how.cut or 'text that ends at a cut'}; {self._name} has not "
                "the times for that, so that notes written later, which may name the outcome, are read too, in the "
                "order of the rows; the stage domain.notes writes texts as in training (score them with --cleaned)"
            )
