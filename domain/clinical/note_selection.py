"""Selection of notes: rows of MIMIC's tables by settings, admission and time; rows of other tables by their kind.

A model reads the kind of notes that it was trained on. All of a hospital's notes read together give other risks.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from bertrelay.data.records import MISSING_WORDS, canonical_id
from bertrelay.data.tables import ABSENT
from bertrelay.errors import RequestError
from bertrelay.progress import log
from domain.clinical.admissions import STAY
from domain.clinical.cohort import COHORT, MEMBERS, STAYS
from domain.clinical.mimic import IDS, ROW, TIME_FORMAT, read_blocks
from domain.clinical.settings import MORTALITY, READMISSION, ModelDescription, NotesSettings

COLUMNS = {
    "noteevents": (*IDS, "chartdate", "charttime", "storetime", "category", "description", "iserror", "text"),
    "discharge": (*IDS, "note_type", "charttime", "storetime", "text"),
    "radiology": (*IDS, "note_type", "charttime", "storetime", "text"),
}
REPORT, ADDENDUM, OTHER = 0, 1, 2
"""Kinds of notes: a discharge summary, what was added to one later, and all else."""
LAST_SECOND = np.timedelta64(86_399, "s")
"""Of a day. A note dated by its day alone may have been written as late as that."""

CHANGED = "Give it as the stage domain.cohort writes it."
UNKNOWN, NO_TEXT = "of an admission that the table of admissions does not have", "without text"
NO_ID, OUTSIDE = "without a HADM_ID", "of an admission outside the cohort"
BY_DAY, NOT_STORED = "dated by the day alone", "without a store time"
ON_RETURN = "dated by the day alone, on which the next admission began"
FAR_DAYS = 30
FAR = f"dated over {FAR_DAYS} days before the admission or after the discharge"
KEPT_FAR = f"{FAR}, kept"
WITH_OUTCOME = "with the outcome: "
"""Before a reason: how many of the notes left out for it are of a stay with the outcome."""


WORDS_SHOWN = frozenset(["", "0", "1", "f", "false", "n", "no", "t", "true", "y", "yes"])
SHOWN_VALUES = 8


class Stays(NamedTuple):
    """The stays of a cohort, numbered from 0, and the admissions that each is made of.

    table: a row for each stay, with `ends`, at death where that is before the discharge, as papers may take days; and
        `cut_off`, that of early notes.
    admissions: the row and number (`stay`) of the stay of each hadm_id, which is the index.
    known: every hadm_id that the hospital knows; None without that table.
    outcome: the column of `table` that says which stays have the outcome; None where the cohort has no such column.
    """

    table: pd.DataFrame
    admissions: pd.DataFrame
    known: frozenset[str] | None
    outcome: str | None = None


def read_stays(settings: NotesSettings, admissions: Path | None) -> Stays:
    """The stays in the folder that a cohort's stage wrote. Raises RequestError where it is no such one."""
    cohort, file = Path(settings.cohort), STAYS if settings.stays == "all" else COHORT
    try:
        stays, members = (pd.read_parquet(cohort / name).reset_index(drop=True) for name in (file, MEMBERS))
        stays[list(IDS)] = stays[list(IDS)].map(canonical_id)
        members = members[["hadm_id", STAY]].map(canonical_id)
    except (OSError, KeyError, pa.ArrowException) as error:
        raise RequestError(
            f"cohort: expected a folder with {file} and {MEMBERS}, as the stage domain.cohort writes them, found "
            f"{type(error).__name__} at {cohort}. Give its output, @cohort in a recipe."
        ) from None
    except ValueError as error:  # of an id
        raise RequestError(f"cohort: expected ids in {cohort}, found {error}. {CHANGED}") from None
    if stays["hadm_id"].duplicated().any() or members["hadm_id"].duplicated().any():
        raise RequestError(f"cohort: expected each hadm_id once in {cohort}, found one in several rows. {CHANGED}")
    if "next_stay_at" not in stays:
        raise RequestError(
            f"cohort: expected a column next_stay_at in {cohort / file}, found none; an older edition wrote it. "
            "Make the cohort again with the stage domain.cohort."
        )
    if stays.empty:
        raise RequestError(f"cohort: expected stays in {cohort / file}, found none. Look at its flow.csv.")
    ends = [name for name in ("discharged_at", "died_at") if name in stays]
    stays = stays.astype(dict.fromkeys(["admitted_at", "next_stay_at", *ends], "datetime64[s]"))
    cut_off = stays["admitted_at"] + np.timedelta64(settings.hours, "h")
    stays = stays.assign(stay=range(len(stays)), ends=stays[ends].min(axis=1), cut_off=cut_off)
    known = None
    if admissions is not None:
        blocks = read_blocks(admissions, ("hadm_id",), lambda *_: None)  # the cohort's stage has logged them
        known = frozenset(hadm_id for block in blocks for hadm_id in block["hadm_id"])
    of_members = members.merge(stays.rename(columns={"hadm_id": STAY}), on=STAY)
    label = (MORTALITY if settings.stays == "all" else READMISSION).labels[0]
    if label in stays:
        as_label(stays[label], cohort)
    return Stays(stays, of_members.set_index("hadm_id"), known, label if label in stays else None)


def as_label(column: pd.Series, cohort: Path) -> NDArray[np.bool_]:
    """A column as booleans. Raises RequestError for all else than booleans and 0 or 1, with the counts of values.

    Values are shown where they are numbers or words for yes and no: another column may hold a patient's text.
    """
    is_label = column.map(
        lambda value: isinstance(value, bool | np.bool_) or (isinstance(value, Real) and value in (0, 1))
    )
    if is_label.all():
        return column.to_numpy(np.bool_)
    others = column[~is_label].map(
        lambda value: repr(value) if isinstance(value, Real) or _is_word(value) else "other text"
    )
    counts = ", ".join(f"{count:,} × {value}" for value, count in others.value_counts().head(SHOWN_VALUES).items())
    raise RequestError(
        f"cohort: expected {column.name} in {cohort} as booleans, or 0 and 1, found {len(others):,} of "
        f"{len(column):,} otherwise: {counts}. Text is no label, as any would be true: write booleans"
    )


def _is_word(value: object) -> bool:
    return isinstance(value, str) and value.strip().casefold() in WORDS_SHOWN


def choose_notes(
    rows: pd.DataFrame, table: str, stays: Stays, settings: NotesSettings
) -> tuple[pd.DataFrame, Counter[str]]:
    """The notes of a block of `table` that the settings name, and counts of the others by reason.

    Columns: stay, hadm_id, kind, at (as text, None where unknown), order, text.
    """
    of = stays.admissions.reindex(rows["hadm_id"]).set_index(rows.index)
    kinds, is_radiology = _kinds(rows, table)
    charted, written, by_day = _times(rows, table)
    is_early, is_late = settings.input == "early", written >= of["cut_off"]
    hours, returned_at = settings.after_discharge_hours, of["next_stay_at"]
    if settings.cut == "discharge":  # a later return moves no cut, not even on the day of the discharge
        hours, returned_at = 0, returned_at.where(returned_at <= of["ends"])
    until = of["ends"] + np.timedelta64(round(hours * 3600), "s")
    until = until.mask(by_day, until.dt.floor("D") + LAST_SECOND)
    reasons = {
        "marked as an error": _equals(rows, "iserror", "1"),
        NO_ID: rows["hadm_id"] == "",
        "no discharge summary": (not is_early) & (kinds == OTHER) & ~(is_radiology & settings.radiology),
        "a discharge summary": is_early & (kinds != OTHER),
        UNKNOWN: ~rows["hadm_id"].isin(rows["hadm_id"] if stays.known is None else stays.known),
        OUTSIDE: of["stay"].isna(),
        "of another subject than the admission": of["subject_id"] != rows["subject_id"],
        "of a stay that ended before the cut-off": is_early & ~(of["ends"] > of["cut_off"]),
        "without time and date": written.isna(),
        "written after the next admission began": written >= returned_at,
        "written too long after the discharge": (not is_early) & (written > until),
        "charted after the cut-off": is_early & is_late & (charted >= of["cut_off"]),
        "charted before the cut-off and stored after it": is_early & is_late,
        NO_TEXT: rows["text"].str.strip().isin({"", *MISSING_WORDS}),
    }
    why = np.select(list(reasons.values()), list(reasons), "")  # the first that applies
    is_kept = why == ""
    counts = Counter({reason: int((why == reason).sum()) for reason in reasons})
    far = np.timedelta64(FAR_DAYS, "D")
    is_far = (charted < of["admitted_at"] - far) | (charted > of["ends"] + far)
    facts = {BY_DAY: by_day, NOT_STORED: rows["storetime"].isna(), ON_RETURN: written >= of["next_stay_at"]}
    facts[KEPT_FAR] = is_far
    counts |= {fact: int((is_kept & is_so).sum()) for fact, is_so in facts.items()} | {FAR: int(is_far.sum())}
    if stays.outcome is not None:
        has_outcome = of[stays.outcome].eq(True)
        counts |= {WITH_OUTCOME + reason: int((has_outcome & (why == reason)).sum()) for reason in reasons}
    at = charted.dt.strftime(TIME_FORMAT).astype(object).where(charted.notna(), None)  # pandas' own varies by block
    notes = rows[["hadm_id"]].assign(kind=kinds, at=at, order=rows[ROW], text=rows["text"])
    notes.insert(0, "stay", of["stay"].fillna(-1).astype(int))
    return notes[is_kept], counts


def _kinds(rows: pd.DataFrame, table: str) -> tuple["pd.Series[int]", "pd.Series[bool]"]:
    """The kind of each note, and whether it is a radiology report."""
    if table == "noteevents":
        is_radiology, is_report = _equals(rows, "category", "radiology"), _equals(rows, "category", "discharge summary")
        is_addendum = _equals(rows, "description", "addendum")
    else:
        is_radiology = pd.Series(table == "radiology", rows.index)
        is_report, is_addendum = ~is_radiology, _equals(rows, "note_type", "ad")
    kinds = pd.Series(OTHER, rows.index).mask(is_report, REPORT).mask(is_report & is_addendum, ADDENDUM)
    return kinds, is_radiology


def _equals(rows: pd.DataFrame, column: str, value: str) -> "pd.Series[bool]":
    """Where a column is `value`, in any case and with any space around it; nowhere in a table without it."""
    return rows[column].str.strip().str.lower() == value if column in rows else pd.Series(False, rows.index)


def _times(
    rows: pd.DataFrame, table: str
) -> tuple["pd.Series[pd.Timestamp]", "pd.Series[pd.Timestamp]", "pd.Series[bool]"]:
    """When each note was charted and when it was written, and where only the day is known, at the end of which it is.

    Written is the later of chart and store time: a note speaks of the one, and could be read from the other on.
    """
    charted, stored = rows["charttime"], rows["storetime"]
    if table == "noteevents":
        days, has_day_alone = rows["chartdate"], charted.isna()
        begins, charted = charted.fillna(days), charted.fillna(days + LAST_SECOND)
    else:  # MIMIC-IV charts its discharge notes at midnight of their day
        days, begins = charted.dt.floor("D"), charted
        has_day_alone = (charted == days) & (table == "discharge")
    by_day = has_day_alone & days.notna() & ~(stored >= days)  # else the store time says when on that day
    written = pd.concat([begins, stored], axis=1).max(axis=1).mask(by_day, days + LAST_SECOND)
    return charted, written, by_day


MARKS = ("category", "note_type", "iserror")
"""Columns, in any case, that say what a row is: MIMIC-III's category, MIMIC-IV's note_type, and what is an error."""
KINDS = {"category": {"discharge summary"}, "note_type": {"ds", "ad"}}
"""Of each column the values of discharge summaries and their addenda."""
ERRORS = {"1", "1.0", "true"}


class NoteKinds:
    """Chooses the rows that a model of these settings reads, and counts the others by their reason.

    name: of the table, for errors.
    """

    def __init__(self, description: ModelDescription, name: str) -> None:
        self._description, self._name = description, name
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
        if named and (self._description.input != "discharge" or self._description.radiology):
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
        if self._description.input == "early":
            return "those of the first hours of a stay"
        if self._description.radiology:
            return "discharge summaries with radiology reports"
        return "which its folder does not name"

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
                f"warning: the model was trained on {self._description.cut or 'text that ends at a cut'}; {self._name} "
                "has not the times for that, so that notes written later, which may name the outcome, are read too, in "
                "the order of the rows; the stage domain.notes writes texts as in training (score them with --cleaned)"
            )
