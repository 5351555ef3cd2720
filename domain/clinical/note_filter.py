"""Rows of MIMIC's tables of notes: which of them the settings name, whose they are, and when they were written."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bertrelay.data.records import RejectList
from bertrelay.errors import RequestError
from domain.clinical.admissions import STAY
from domain.clinical.cohort import COHORT, MEMBERS
from domain.clinical.ids import canonical_ids
from domain.clinical.mimic import ROW, read_blocks
from domain.clinical.settings import NotesSettings

Booleans = NDArray[np.bool_]
Integers = NDArray[np.int64]
Times = NDArray[np.datetime64]

COLUMNS = {
    "noteevents": (
        *("subject_id", "hadm_id", "chartdate", "charttime", "storetime"),
        *("category", "description", "iserror", "text"),
    ),
    "discharge": ("subject_id", "hadm_id", "note_type", "charttime", "storetime", "text"),
    "radiology": ("subject_id", "hadm_id", "note_type", "charttime", "storetime", "text"),
}
REPORT, ADDENDUM, OTHER = 0, 1, 2
"""Kinds of notes: a discharge summary, what was added to one later, and all else."""
LAST_SECOND = np.timedelta64(86_399, "s")
"""Of a day. A note dated by its day alone may have been written as late as that."""

NOTE_SCHEMA = pa.schema(
    {
        "stay": pa.int32(),
        "hadm_id": pa.string(),
        "kind": pa.int8(),
        "at": pa.timestamp("s"),
        "order": pa.int64(),
        "text": pa.string(),
    }
)

ERROR, NO_ADMISSION = "marked as an error", "without a HADM_ID"
NOT_DISCHARGE, DISCHARGE = "no discharge summary", "a discharge summary"
UNKNOWN, OUTSIDE = "of an admission that the table of admissions does not have", "of an admission outside the cohort"
OTHER_SUBJECT = "of another subject than the admission"
ENDED, NO_TIME = "of a stay that ended before the cut-off", "without time and date"
NEXT_STAY, AFTER_DISCHARGE = "written after the next admission began", "written too long after the discharge"
LATE, STORED_LATE = "charted after the cut-off", "charted before the cut-off and stored after it"
NO_TEXT = "without text"
REASONS = (
    *(ERROR, NO_ADMISSION, NOT_DISCHARGE, DISCHARGE, UNKNOWN, OUTSIDE, OTHER_SUBJECT),
    *(ENDED, NO_TIME, NEXT_STAY, AFTER_DISCHARGE, LATE, STORED_LATE, NO_TEXT),
)
"""Why a note is left out, in the order in which they are checked."""
NEXT_STAY_AT = "next_stay_at"
BY_DAY, NOT_STORED = "dated by the day alone", "without a store time"


@dataclass(frozen=True)
class Stays:
    """The stays of a cohort, numbered from 0, and the admissions that each is made of.

    next_begins: when the subject's next stay begins, planned or not, (stays,).
    of_admission: hadm_id to the number of its stay.
    admissions: every hadm_id that the hospital knows; None without that table.
    """

    table: pa.Table
    next_begins: Times
    of_admission: dict[str, int]
    admissions: frozenset[str] | None

    @property
    def subjects(self) -> list[str]:
        found: list[str] = self.table["subject_id"].to_pylist()
        return found

    @property
    def begins(self) -> Times:
        """When each stay begins, (stays,)."""
        found: Times = self.table["admitted_at"].to_numpy()
        return found

    @property
    def ends(self) -> Times:
        """When each stay ends, (stays,): at death where that is before the discharge, as papers may take days."""
        discharged: Times = self.table["discharged_at"].to_numpy()
        died = self.table["died_at"].to_numpy() if "died_at" in self.table.column_names else discharged
        return np.fmin(discharged, died)


def read_stays(cohort: Path, admissions: Path | None, file: str = COHORT) -> Stays:
    """The stays of `file` in the folder that a cohort's stage wrote. Raises RequestError where that is no such one."""
    import pyarrow.parquet as pq

    try:
        stays, members = pq.read_table(cohort / file), pq.read_table(cohort / MEMBERS)
        for column in ("subject_id", "hadm_id"):
            stays = stays.set_column(stays.schema.get_field_index(column), column, canonical_ids(stays[column]))
        if NEXT_STAY_AT not in stays.column_names:
            raise RequestError(
                f"cohort: expected a column {NEXT_STAY_AT} in {cohort / file}, found none; an older edition wrote it. "
                "Make the cohort again with the stage domain.cohort."
            )
        next_begins = stays[NEXT_STAY_AT].cast(pa.timestamp("s")).to_numpy()
        ids, of_stay = (canonical_ids(members[column]).to_pylist() for column in ("hadm_id", STAY))
    except (OSError, KeyError, pa.ArrowException) as error:
        raise RequestError(
            f"cohort: expected a folder with {file} and {MEMBERS}, as the stage domain.cohort writes them, found "
            f"{type(error).__name__} at {cohort}. Give its output, @cohort in a recipe."
        ) from None
    if stays.num_rows == 0:
        raise RequestError(f"cohort: expected stays in {cohort / file}, found none. Look at its flow.csv.")
    number = {hadm_id: place for place, hadm_id in enumerate(stays["hadm_id"].to_pylist())}
    of_admission = {hadm_id: number[stay] for hadm_id, stay in zip(ids, of_stay, strict=True) if stay in number}
    return Stays(stays, next_begins, of_admission, _known(admissions))


def _known(admissions: Path | None) -> frozenset[str] | None:
    if admissions is None:
        return None
    blocks = read_blocks(admissions, ("hadm_id",), RejectList())  # the cohort's stage has logged them
    return frozenset(hadm_id for block in blocks for hadm_id in block.rows["hadm_id"].to_pylist())


@dataclass
class RowFilter:
    """Which rows of a block are still in, and how many fell out for which reason."""

    mask: Booleans
    counts: Counter[str] = field(default_factory=Counter)

    def drop(self, reason: str, wrong: Booleans) -> None:
        """Leaves out the rows that are `wrong`; what fell out before is not counted again."""
        self.counts[reason] += int((self.mask & wrong).sum())
        self.mask &= ~wrong


class NoteFilter:
    """Chooses, of a block of rows, the notes that the settings name."""

    def __init__(self, stays: Stays, settings: NotesSettings) -> None:
        self.stays, self.settings = stays, settings
        self.subjects = stays.subjects
        self.cut_offs = stays.begins + np.timedelta64(settings.hours, "h")
        self.open = stays.ends > self.cut_offs
        self.until = stays.ends + np.timedelta64(round(settings.after_discharge_hours * 3600), "s")
        self.until_day_ends = self.until.astype("datetime64[D]") + LAST_SECOND

    def __call__(self, rows: pa.Table, table: str) -> tuple[pa.Table, Counter[str]]:
        """The notes of a block of `table` as `NOTE_SCHEMA` has them, by stay, and counts of the others by reason."""
        kinds, is_radiology = _kinds(rows, table)
        hadm_ids = rows["hadm_id"].to_pylist()
        numbers = self.stays.of_admission
        stays = np.array([numbers.get(hadm_id, -1) for hadm_id in hadm_ids], np.int32)
        charted, written, by_day = _times(rows, table)
        rows_left = RowFilter(np.ones(rows.num_rows, bool))
        rows_left.drop(ERROR, _equals(rows, "iserror", "1"))
        rows_left.drop(NO_ADMISSION, _equals(rows, "hadm_id", ""))
        self._drop_other_kinds(rows_left, kinds, is_radiology)
        self._drop_other_stays(rows_left, stays, hadm_ids, rows["subject_id"].to_pylist())
        self._drop_late(rows_left, stays, charted, written, by_day)
        rows_left.drop(NO_TEXT, _is_blank(rows["text"]))
        rows_left.counts[BY_DAY] = int((rows_left.mask & by_day).sum())
        rows_left.counts[NOT_STORED] = int((rows_left.mask & np.isnat(rows["storetime"].to_numpy())).sum())
        columns = [stays, rows["hadm_id"], kinds, pa.array(charted), rows[ROW], rows["text"]]
        kept = pa.table(columns, names=NOTE_SCHEMA.names).filter(pa.array(rows_left.mask)).cast(NOTE_SCHEMA)
        return kept.take(pc.sort_indices(kept, [("stay", "ascending")])), rows_left.counts

    def _drop_other_kinds(self, rows_left: RowFilter, kinds: NDArray[np.int8], is_radiology: Booleans) -> None:
        if self.settings.input == "early":
            rows_left.drop(DISCHARGE, kinds != OTHER)
        else:
            rows_left.drop(NOT_DISCHARGE, (kinds == OTHER) & ~(is_radiology & self.settings.radiology))

    def _drop_other_stays(
        self, rows_left: RowFilter, stays: NDArray[np.int32], hadm_ids: list[str], subjects: list[str]
    ) -> None:
        known = self.stays.admissions
        if known is not None:
            rows_left.drop(UNKNOWN, np.array([hadm_id not in known for hadm_id in hadm_ids], bool))
        rows_left.drop(OUTSIDE, stays < 0)
        whose = (self.subjects[stay] for stay in stays.tolist())
        rows_left.drop(
            OTHER_SUBJECT, np.array([one != other for one, other in zip(whose, subjects, strict=True)], bool)
        )

    def _drop_late(
        self, rows_left: RowFilter, stays: NDArray[np.int32], charted: Times, written: Times, by_day: Booleans
    ) -> None:
        """Leaves out what nobody could read at the time of the prediction."""
        is_early = self.settings.input == "early"
        if is_early:
            rows_left.drop(ENDED, ~self.open[stays])
        rows_left.drop(NO_TIME, np.isnat(written))
        rows_left.drop(NEXT_STAY, written >= self.stays.next_begins[stays])
        if is_early:
            too_late = written >= self.cut_offs[stays]
            rows_left.drop(LATE, too_late & (charted >= self.cut_offs[stays]))
            rows_left.drop(STORED_LATE, too_late)
        else:
            until = np.where(by_day, self.until_day_ends[stays], self.until[stays])
            rows_left.drop(AFTER_DISCHARGE, written > until)


def _kinds(rows: pa.Table, table: str) -> tuple[NDArray[np.int8], Booleans]:
    """The kind of each note, and whether it is a radiology report."""
    if table != "noteevents":
        is_radiology = np.full(rows.num_rows, table == "radiology")
        is_addendum = _equals(rows, "note_type", "ad")
        return np.where(is_radiology, OTHER, np.where(is_addendum, ADDENDUM, REPORT)).astype(np.int8), is_radiology
    is_discharge = _equals(rows, "category", "discharge summary")
    is_addendum = _equals(rows, "description", "addendum")
    kinds = np.where(is_discharge, np.where(is_addendum, ADDENDUM, REPORT), OTHER)
    return kinds.astype(np.int8), _equals(rows, "category", "radiology")


def _equals(rows: pa.Table, column: str, value: str) -> Booleans:
    """Where a column holds `value`, in any case and with any space around it; nowhere in a table without it."""
    if column not in rows.column_names:
        return np.zeros(rows.num_rows, bool)
    text = pc.utf8_lower(pc.utf8_trim_whitespace(pc.fill_null(rows[column], "")))
    return np.asarray(pc.equal(text, value), bool)


def _times(rows: pa.Table, table: str) -> tuple[Times, Times, Booleans]:
    """When each note was charted and when it was written, and where only the day is known, at the end of which it is.

    Written is the later of chart and store time: a note speaks of the one, and could be read from the other on.
    """
    charted, stored = rows["charttime"].to_numpy(), rows["storetime"].to_numpy()
    if table == "noteevents":
        days, has_day_alone = rows["chartdate"].to_numpy(), np.isnat(charted)
        begins, charted = np.where(has_day_alone, days, charted), np.where(has_day_alone, days + LAST_SECOND, charted)
    else:  # MIMIC-IV charts its discharge notes at midnight of their day
        days, begins = charted.astype("datetime64[D]"), charted
        has_day_alone = (charted == days) & (table == "discharge")
    by_day = has_day_alone & ~np.isnat(days) & ~(stored >= days)  # else the store time says when on that day
    return charted, np.where(by_day, days + LAST_SECOND, np.fmax(begins, stored)), by_day


def _is_blank(text: pa.ChunkedArray) -> Booleans:
    return np.asarray(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(pc.fill_null(text, ""))), 0), bool)
