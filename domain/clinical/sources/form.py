"""The form in which every source gives its stays and its notes, so that no rule after it depends on the source.

The table of admissions has a row for each admission with a subject and a beginning, sorted by `ORDER`:

- subject_id, hadm_id: text. has_own_id: false where the hadm_id is missing or an earlier row's, and stands for nothing.
- admitted_at; discharged_at, null of an open one. is_by_day: one of the two is only a date. An admission then begins
  with the day, and a discharge ends with it.
- is_planned, is_observation, is_newborn; left_as, a `Discharge` or null. admission_type and discharge_location are the
  values of the source, in upper case.
- died_in_hospital; died_at, the time of that death, else null; day_of_death, wherever.
- sex, age (whole years, 91 for all over 89), race, insurance, null where unknown.
- is_whole: false where something else of the row is wrong.
- followed_until: the end of the subject's data, null where unknown; only of a source that has it.

A block of notes has a row for each note:

- subject_id, hadm_id: text, empty where missing. text. row: its number in the file.
- kind: `REPORT`, `ADDENDUM` or `OTHER`. is_radiology. is_error: marked as an error, or of a type that does not
  count. is_unmapped: of a type whose meaning is unknown.
- charted: the time that it describes; written: the time from which on it could be read, null where neither is known.
- by_day: dated by its day only; then written is the end of the day. is_stored: has a store time.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from bertrelay.data.records import Rejects

if TYPE_CHECKING:
    import pandas as pd

ORDER = ["subject_id", "admitted_at", "discharged_at", "hadm_id"]
Discharge = Literal["acute-care-transfer", "against-medical-advice", "hospice"]
ESSENTIAL = ("subject_id", "admitted_at")
"""Columns that make an admission a return and a limit to text, even if others of its row are wrong."""
ROW = "row"
"""The column with the number of a row: the header is row 1, and a text over several lines is one row."""
FAULT = "fault"
"""The column with the fault of a row that is kept; empty without one."""
FILE = "file"
"""The column with the file of a row, of a source that has several."""
BLOCK_ROWS = 2048

REPORT, ADDENDUM, OTHER = 0, 1, 2
"""Kinds of notes: a discharge summary, an addendum to one, and all others."""

Reject = Callable[[str, int, str], object]
"""Is called with the file, row number and reason of a row that cannot be used."""
Count = Callable[[str, "pd.DataFrame"], "pd.DataFrame"]
"""Records the counts of admissions after a step, or of a part of them, in the flow table; returns the admissions."""


class Hospital(Protocol):
    """A source of admissions."""

    def admissions(self, rejects: Rejects, count: Count) -> "pd.DataFrame":
        """Reads every admission with a subject and a beginning; counts the other rows."""

    def codes(self, admissions: "pd.Series[int]", rejects: Rejects) -> "pd.DataFrame | None":
        """Reads the diagnoses of some admissions: admission, seq_num, code and version; None without their table.

        admissions: the number of each admission, by hadm_id.
        """


class NoteSource(Protocol):
    """A source of notes.

    files: those that decide the texts, by name. has_early: it has notes other than discharge summaries and radiology.
    """

    files: Mapping[str, Path]

    @property
    def has_early(self) -> bool: ...

    def tables(self) -> list[str]:
        """Names the tables of notes that are read, of `files`."""

    def blocks(self, table: str, reject: Reject) -> "Iterator[pd.DataFrame]":
        """Streams the notes of `table` in blocks."""

    def registered(self) -> frozenset[str] | None:
        """Reads every hadm_id of the table of admissions; None without that table."""

    def unmapped_types(self) -> list[tuple[str, int]]:
        """Counts the notes that were read by a type whose meaning is unknown."""

    def not_carried(self) -> list[str]:
        """Describes what the source does not have, for the flow table."""


class StayReader(Protocol):
    """Reads stays from a source whose values have no meaning yet.

    file: that of its stays, for messages.
    """

    file: Path

    def blocks(self, reject: Reject) -> "Iterator[pd.DataFrame]":
        """Streams stays in blocks under the names of `StayColumns`, with `ROW` and `FAULT`; ids are text.

        Columns that only some sources have:

        - `FILE`.
        - is_void: of what did not take place.
        - is_still_in: not discharged, whatever the end.
        - is_listed: of a subject whom the table of patients has.
        - is_born_by_year: born is only a year.
        - is_dead_undated: of a subject who is dead, without a date.

        A type of admission or a discharge location may be a tuple: values that may have a meaning, the last of which
        is shown.
        """


class NoteReader(Protocol):
    """Reads notes from a source whose values have no meaning yet. files: those that decide the texts, by name."""

    files: Mapping[str, Path]

    def blocks(self, table: str, reject: Reject) -> "Iterator[pd.DataFrame]":
        """Streams the notes of a file in blocks under the names of `NoteColumns`, as `StayReader` does stays.

        is_withdrawn: a column that only some sources have, true for what does not count.
        """
