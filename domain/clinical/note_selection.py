"""Selection of notes: rows of a hospital's notes by settings, admission and time; rows of other tables by their kind.

A model reads the kind of notes that it was trained on; other notes of a hospital give other risks.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from bertrelay.data.readers import is_unicode
from bertrelay.data.records import MISSING_WORDS, canonical_id, is_missing
from bertrelay.data.tables import ABSENT
from bertrelay.errors import RequestError
from bertrelay.progress import log
from domain.clinical.settings import MORTALITY, READMISSION, ModelDescription, NotesSettings
from domain.clinical.sources.form import OTHER, ROW
from domain.clinical.sources.rows import LAST_SECOND
from domain.clinical.stage_files import COHORT, MEMBERS, STAY, STAYS, as_label, read_columns

SORTABLE = "%Y-%m-%d %H:%M:%S"
UNKNOWN, NO_TEXT = "of an admission that the table of admissions does not have", "without text"
UNMAPPED = "of a type that the map of the source does not have"
NO_ID, OUTSIDE = "without a HADM_ID", "of an admission outside the cohort"
BY_DAY, NOT_STORED = "dated by the day alone", "without a store time"
BY_TIME = "of a stay by their time alone"
ON_RETURN = "dated by the day alone, on which the next admission began"
FAR_DAYS = 30
FAR = f"dated over {FAR_DAYS} days before the admission or after the discharge"
KEPT_FAR = f"{FAR}, kept"
WITH_OUTCOME = "with the outcome: "
"""Before a reason, in a count of the notes left out for it that are of a stay with the outcome."""


class Stays(NamedTuple):
    """The stays of a cohort, numbered from 0, and the admissions that they are made of.

    table: a row for each stay, with `ends`, its discharge, or its death where that is earlier (a discharge on paper may
        take days), and `cut_off`, the end of early notes.
    admissions: by hadm_id the row and the number (`stay`) of the stay.
    registered: every hadm_id of the table of admissions; None without that table.
    outcome: the column of `table` that is true for stays with the outcome; None where the cohort has no such column.
    """

    table: pd.DataFrame
    admissions: pd.DataFrame
    registered: frozenset[str] | None
    outcome: str | None = None


def read_stays(settings: NotesSettings, registered: frozenset[str] | None) -> Stays:
    """Reads the stays in the folder that a cohort's stage wrote; `registered` as in `Stays`.

    Raises RequestError where a file of it is missing or has something else than that stage writes.
    """
    cohort, file = Path(settings.cohort), STAYS if settings.stays == "all" else COHORT
    for name in (file, MEMBERS):
        if not (cohort / name).is_file():
            raise RequestError(
                f"cohort: expected a folder with {file} and {MEMBERS}, as the stage domain.cohort writes them, found "
                f"no {name} in {cohort}. Give its output, @cohort in a recipe."
            )
    label = (MORTALITY if settings.stays == "all" else READMISSION).labels[0]
    columns = ("subject_id", "hadm_id", "admitted_at", "discharged_at", "next_stay_at", "split")
    stays = read_columns(cohort / file, columns, optional=("died_at", label))
    members = read_columns(cohort / MEMBERS, ("hadm_id", STAY))
    if stays.empty:
        raise RequestError(f"cohort: expected stays in {cohort / file}, found none. Look at its flow.csv.")
    ends = [name for name in ("discharged_at", "died_at") if name in stays]
    stays = stays.astype(dict.fromkeys(["admitted_at", "next_stay_at", *ends], "datetime64[s]"))
    cut_off = stays["admitted_at"] + np.timedelta64(settings.hours, "h")
    stays = stays.assign(stay=range(len(stays)), ends=stays[ends].min(axis=1), cut_off=cut_off)
    of_members = members.merge(stays.rename(columns={"hadm_id": STAY}), on=STAY)
    if label in stays:
        as_label(stays[label], cohort)
    return Stays(stays, of_members.set_index("hadm_id"), registered, label if label in stays else None)


def choose_notes(rows: pd.DataFrame, stays: Stays, settings: NotesSettings) -> tuple[pd.DataFrame, Counter[str]]:
    """Selects the notes of a block in the form of all sources that the settings name; counts the others by reason.

    Returns columns as the fields of `Note`. A note counts from the time at which it was written, the later of its chart
    and store time; one that has only a date, from the end of that day. With a discharge on day 10, 48 hours after it
    and the next admission on day 12 at 08:00:

        chart time      store time      written         result
        day 11          none            day 11, 23:59   kept
        day 11, 12:00   day 12, 07:59   day 12, 07:59   kept
        day 11, 12:00   day 12, 08:00   day 12, 08:00   written after the next admission began
        day 12          none            day 12, 23:59   written after the next admission began
        day 14          none            day 14, 23:59   written too long after the discharge, without a next admission
    """
    is_by_time = pd.Series(False, rows.index)
    if settings.notes_without_stay == "by-time":
        stay_ids = _stay_by_time(rows, stays.table)
        is_by_time = (rows["hadm_id"] == "") & stay_ids.notna()
        rows = rows.assign(hadm_id=rows["hadm_id"].mask(is_by_time, stay_ids))
    stay = stays.admissions.reindex(rows["hadm_id"]).set_index(rows.index)
    kinds, charted, written, by_day = rows["kind"], rows["charted"], rows["written"], rows["by_day"]
    is_early, is_late = settings.input == "early", written >= stay["cut_off"]
    hours, returned_at = settings.after_discharge_hours, stay["next_stay_at"]
    if settings.cut == "discharge":  # a later return moves no cut, not even on the day of the discharge
        hours, returned_at = 0, returned_at.where(returned_at <= stay["ends"])
    until = stay["ends"] + np.timedelta64(round(hours * 3600), "s")
    until = until.mask(by_day, until.dt.floor("D") + LAST_SECOND)
    reasons = {
        "marked as an error": rows["is_error"],
        UNMAPPED: rows["is_unmapped"],
        NO_ID: rows["hadm_id"] == "",
        "no discharge summary": (not is_early) & (kinds == OTHER) & ~(rows["is_radiology"] & settings.radiology),
        "a discharge summary": is_early & (kinds != OTHER),
        UNKNOWN: ~rows["hadm_id"].isin(rows["hadm_id"] if stays.registered is None else stays.registered),
        OUTSIDE: stay["stay"].isna(),
        "of another subject than the admission": stay["subject_id"] != rows["subject_id"],
        "of a stay that ended before the cut-off": is_early & ~(stay["ends"] > stay["cut_off"]),
        "without time and date": written.isna(),
        "written after the next admission began": written >= returned_at,
        "written too long after the discharge": (not is_early) & (written > until),
        "charted after the cut-off": is_early & is_late & (charted >= stay["cut_off"]),
        "charted before the cut-off and stored after it": is_early & is_late,
        NO_TEXT: rows["text"].str.strip().isin({"", *MISSING_WORDS}),
    }
    why = np.select(list(reasons.values()), list(reasons), "")  # the first that applies
    is_kept = why == ""
    counts = Counter({reason: int((why == reason).sum()) for reason in reasons})
    far = np.timedelta64(FAR_DAYS, "D")
    is_far = (charted < stay["admitted_at"] - far) | (charted > stay["ends"] + far)
    facts = {BY_DAY: by_day, NOT_STORED: ~rows["is_stored"], ON_RETURN: written >= stay["next_stay_at"]}
    facts[KEPT_FAR] = is_far
    if settings.notes_without_stay == "by-time":
        facts[BY_TIME] = is_by_time
    counts |= {fact: int((is_kept & is_so).sum()) for fact, is_so in facts.items()} | {FAR: int(is_far.sum())}
    if stays.outcome is not None:
        has_outcome = stay[stays.outcome].eq(True)
        counts |= {WITH_OUTCOME + reason: int((has_outcome & (why == reason)).sum()) for reason in reasons}
    at = charted.dt.strftime(SORTABLE).astype(object).where(charted.notna(), None)  # pandas' own varies by block
    notes = rows[["hadm_id"]].assign(kind=kinds, charted=at, row=rows[ROW], text=rows["text"])
    notes.insert(0, "stay", stay["stay"].fillna(-1).astype(int))
    return notes[is_kept], counts


def _stay_by_time(rows: pd.DataFrame, stays: pd.DataFrame) -> "pd.Series[Any]":
    """Finds the hadm_id of the subject's stay in which each note was charted, its first and last moment included.

    A note that is dated by its day is of the stay that was open on that day. Null where there is none.
    """
    notes = rows[["subject_id", "charted", "by_day"]].dropna(subset="charted").sort_values("charted", kind="stable")
    begins = stays[["subject_id", "admitted_at", "ends", "hadm_id"]].sort_values("admitted_at", kind="stable")
    notes["charted"] = notes["charted"].astype(begins["admitted_at"].dtype)
    of_notes = pd.merge_asof(notes, begins, left_on="charted", right_on="admitted_at", by="subject_id")
    at = of_notes["charted"].mask(of_notes["by_day"], of_notes["charted"].dt.floor("D"))
    stay_ids = of_notes["hadm_id"].where(at <= of_notes["ends"])
    return stay_ids.set_axis(notes.index).reindex(rows.index)


MARKS = ("category", "note_type", "iserror")
"""Columns, in any case, with the kind of a row (MIMIC-III's category, MIMIC-IV's note_type) or the mark of an error."""
KINDS = {"category": {"discharge summary"}, "note_type": {"ds", "ad"}}
"""By column the values of discharge summaries and their addenda."""
ERRORS = {"1", "1.0", "true"}


class NoteKinds:
    """Selects the rows that a model with `description` reads, and counts the others by reason.

    name: of the table, for errors.
    """

    def __init__(self, description: ModelDescription, name: str) -> None:
        self._description, self._name = description, name
        self.left_out = Counter[str]()
        self._of_left_out, self._is_raw = set[str](), False

    def reads(self, marks: Mapping[str, Any], identifier: object) -> bool:
        """Returns true for a row that is read; marks: its values in `MARKS`, `ABSENT` without such a column.

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
        """Logs the rows that were left out, and the limits of such a table. Raises RequestError where none was read.

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
            lost = f"; {without:,} admissions have no other rows, and so no score" if without else ""
            log(f"left out {self.left_out.total():,} of {every:,} rows, which the model does not read: {listed}{lost}")
        if self._is_raw:
            log(
                f"warning: the model was trained on {self._description.cut or 'text that ends at a cut'}; {self._name} "
                "has not the times for that, so that notes written later, which may name the outcome, are read too, in "
                "the order of the rows; the stage domain.notes writes texts as in training (score them with --cleaned)"
            )


def note_of_row(identifier: object, text: object) -> tuple[str, str]:
    """Returns the id of the admission, in its one form, and the text, empty where it is missing.

    Raises ValueError with the reason, and nothing of the row, for one that cannot be used.
    """
    name = canonical_id(identifier)
    if not name:
        raise ValueError("no id of an admission")
    if not isinstance(text, str) and not is_missing(text):
        raise ValueError("a note that is something other than text")
    note = text if isinstance(text, str) and text.strip() not in MISSING_WORDS else ""
    if not is_unicode((name, note)):
        raise ValueError("text that is not valid Unicode (half of a surrogate pair)")
    return name, note


def warn_of_mixed_ids(column: str, kinds: Iterable[type]) -> None:
    """Logs that the ids of a column are of several types, of which 7, 7.0 and "7" are the same id."""
    names = {"text": str, "whole numbers": Integral, "numbers with a point": object}
    mixed = sorted({next(name for name, base in names.items() if issubclass(kind, base)) for kind in kinds})
    if len(mixed) > 1:
        log(f'{column}: some ids are {", others ".join(mixed)}; 7, 7.0 and "7" are taken for one admission')
