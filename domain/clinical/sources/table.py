"""The source of a hospital's own tables: stays and notes in any columns, named in the recipe."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd

from bertrelay.blocks import blocks_of
from bertrelay.data.records import MISSING_WORDS, Rejects, canonical_id, is_missing, rows
from bertrelay.data.tables import Record
from bertrelay.progress import log
from domain.clinical.sources.form import (
    ADDENDUM,
    BLOCK_ROWS,
    FAULT,
    ORDER,
    OTHER,
    REPORT,
    ROW,
    Count,
    Reject,
)
from domain.clinical.sources.rows import LAST_SECOND, age_at, identified, top_coded
from domain.clinical.sources.settings import NoteTable, OwnTable, StayTable, plain
from domain.clinical.sources.values import (
    EMPTY,
    SHOWN_FROM,
    VALUES_SHOWN,
    Meanings,
    count_unmapped,
    refuse_unmapped,
    times_of,
)

ESSENTIAL = ("subject_id", "admitted_at")
"""Columns that make an admission a return and a limit to text, even if others of its row are wrong."""
TEXTS = ("admission_type", "discharge_location", "sex", "race", "insurance")
LEFT_AS = {
    "acute_care_transfer": "acute-care-transfer",
    "against_medical_advice": "against-medical-advice",
    "hospice": "hospice",
}
NOT_CARRIED = {
    "admission_type": "of these, all: this source has no admission types, and each counts as unplanned",
    "discharge_location": "of these, all: this source has no discharge locations; transfers and hospices are unknown",
    "died_at": "of these, all: this source has no times of death; deaths after a discharge are unknown",
}
"""Lines of the flow table on what the source does not have."""


def _blocks(source: OwnTable, reject: Reject, essential: tuple[str, ...] | None) -> Iterator[pd.DataFrame]:
    """Streams a table in blocks under the names of the form, with `row` and `fault`; ids in one form.

    essential: columns without which a row is rejected; a fault of others costs only their values. None: all columns.
    """
    names = list(source.read_columns())
    needed = [position for position, name in enumerate(names) if essential is None or name in essential]
    for block in blocks_of(rows(source.table, []), BLOCK_ROWS):
        records = []
        for row in block:
            values, fault = row.values, "" if isinstance(row, Record) else row.reason
            if fault and (essential is None or not values or not all(values[position] for position in needed)):
                reject(row.file, row.line, fault)
            else:
                records.append((row.line, fault, *values))
        frame = pd.DataFrame(records, columns=[ROW, FAULT, *names], dtype=object).astype({ROW: int})
        for name in ("subject_id", "hadm_id"):
            ids = frame[name].map(_exact_id)
            is_wrong = ids.isna()
            if essential is None or name in essential:
                for number in frame.loc[is_wrong, ROW]:
                    reject(source.path, number, f"{name} is no id but a rounded number, as 1.23E+11 is")
                frame, ids = frame[~is_wrong], ids[~is_wrong]
            else:
                frame = frame.assign(fault=_first(frame[FAULT], is_wrong, f"{name} is no id"))
            frame = frame.assign(**{name: ids.fillna("")})
        yield frame


def _exact_id(value: object) -> str | None:
    try:
        return canonical_id(value)
    except ValueError:
        return None


def _first(faults: "pd.Series[str]", is_wrong: "pd.Series[bool]", fault: "str | pd.Series[str]") -> "pd.Series[str]":
    """Adds a fault to the rows that are wrong and have none."""
    return faults.mask(is_wrong & (faults == ""), fault)


class TableHospital:
    """A table with a row for each stay."""

    def __init__(self, source: StayTable) -> None:
        self._source = source

    def admissions(self, rejects: Rejects, count: Count) -> pd.DataFrame:
        """Reads the admissions; counts values that the map lacks, and what the table does not have."""
        source, file = self._source, Path(self._source.path)
        blocks = []
        for block in _blocks(source, rejects.add, ESSENTIAL):
            rejects.used(len(block))
            blocks.append(block)
        table = pd.concat(blocks, ignore_index=True)
        count("rows of the table of stays that can be read", table)
        table = self._with_times(table)
        table = identified(table, "admitted_at", file, rejects, count)
        for name in (*TEXTS, "died_at", "followed_until"):
            if name not in table:
                table[name] = None
        for name in TEXTS:
            table[name] = table[name].map(_text)
        table = self._with_meanings(table, count)
        for column, line in NOT_CARRIED.items():
            if column not in source.read_columns():
                count(line, table)
        table = self._with_deaths(table, count)
        return table.sort_values(ORDER, ignore_index=True)

    def _with_times(self, table: pd.DataFrame) -> pd.DataFrame:
        """Parses times and ages; a fault of any but the beginning costs only that value."""
        table = table.assign(is_by_day=False)
        for name in ("admitted_at", "discharged_at", "died_at", "born", "followed_until"):
            if name not in self._source.read_columns():
                continue
            parsed = times_of(table[name], self._source)
            faults = (name + " is " + parsed.faults).where(parsed.faults != "", "")
            table = table.assign(**{name: parsed.times})
            table[FAULT] = _first(table[FAULT], faults != "", faults)
            if name == "discharged_at":
                table[name] = table[name].mask(parsed.by_day, table[name] + LAST_SECOND)
            if name in ("admitted_at", "discharged_at"):
                table["is_by_day"] |= parsed.by_day
            if name == "died_at":
                table["death_by_day"] = parsed.by_day
            if name == "followed_until":
                table[name] = table[name].mask(parsed.by_day, table[name] + LAST_SECOND)
        return table.assign(age=self._age(table))

    def _age(self, table: pd.DataFrame) -> "pd.Series[float]":
        if "born" in table:
            return top_coded(age_at(table["admitted_at"], table["born"]))
        if "age" in table:
            return top_coded(pd.to_numeric(table["age"], errors="coerce").floordiv(1))
        return pd.Series(float("nan"), table.index)

    def _with_meanings(self, table: pd.DataFrame, count: Count) -> pd.DataFrame:
        """Adds what the map says of admission types and discharge locations; leaves out what is no admission."""
        source, columns = self._source, self._source.read_columns()
        of_types, of_locations = source.map.groups()
        kinds, ends = pd.Series("unplanned", table.index), pd.Series(None, table.index, dtype=object)
        if "admission_type" in columns:
            kinds = Meanings(of_types, "admission_type").look_up(table["admission_type"])
            is_admission = kinds != "no_admission"
            if not is_admission.all():
                table = count("admissions by the map", table[is_admission])
                kinds, ends = kinds[is_admission], ends[is_admission]
            limit = source.max_unmapped
            count_unmapped(table, "admission_type", kinds, limit, "counted as unplanned", count)
        if "discharge_location" in columns:
            ends = Meanings(of_locations, "discharge_location").look_up(table["discharge_location"])
            closed = table["discharged_at"].notna()
            count_unmapped(
                *(
                    table[closed],
                    "discharge_location",
                    ends[closed],
                    source.max_unmapped,
                    "counted as alive at home",
                    count,
                )
            )
        return table.assign(
            is_planned=kinds == "planned",
            is_observation=kinds == "observation",
            is_newborn=kinds == "newborn",
            left_as=ends.map(LEFT_AS).astype(object),
            end=ends,
        )

    def _with_deaths(self, table: pd.DataFrame, count: Count) -> pd.DataFrame:
        """Adds deaths in hospital: by the discharge location, or by a time or day of death within the stay.

        A death known by its day, on the day of the discharge, is one in hospital unless the location is of who left
        alive.
        """
        died_at = pd.to_datetime(table["died_at"]).astype("datetime64[s]")
        by_day = table["death_by_day"] if "death_by_day" in table else pd.Series(False, table.index)
        begins, ends = table["admitted_at"], table["discharged_at"]
        day = died_at.dt.floor("D")
        is_within = ~by_day & (died_at >= begins) & (died_at <= ends)
        is_within |= by_day & (day >= begins.dt.floor("D")) & (day < ends.dt.floor("D"))
        is_last_day = by_day & (day == ends.dt.floor("D")) & (day >= begins.dt.floor("D"))
        left_alive = table["end"].notna() & (table["end"] != "died")
        dead = (table["end"] == "died") | is_within | (is_last_day & ~left_alive)
        count("of these, died in hospital by the day of death and the discharge alone", table[is_last_day & dead])
        for what, is_so in {
            "died within the stay, and left alive by the discharge location": is_within & left_alive,
            "admitted after the day of death": day < begins.dt.floor("D"),
        }.items():
            contradicting = count(f"of these, {what}", table[is_so])
            if len(contradicting):
                log(f"admissions {what}: {len(contradicting):,} of {len(table):,}")
        latest = died_at.mask(by_day, day + LAST_SECOND)
        at = latest.where((is_within | is_last_day) & ~(latest > ends), ends)
        return table.assign(died_in_hospital=dead, died_at=at.where(dead), day_of_death=day)

    def codes(self, admissions: "pd.Series[int]", rejects: Rejects) -> None:  # noqa: ARG002
        """Returns None: the table has no diagnoses."""
        log("the source has no diagnoses: characteristics come without them")


def _text(value: object) -> str | None:
    """A value in upper case; None for a missing one."""
    text = "" if is_missing(value) else str(value).strip().upper()
    return None if text in {"", *MISSING_WORDS} else text


class TableNotes:
    """A table with a row for each note."""

    def __init__(self, source: NoteTable) -> None:
        self._source = source
        self._rows = 0
        self._unmapped = Counter[str]()
        self._subjects: dict[str, set[str]] = {}  # of each such value, as many as make it one that may be shown
        self.files: Mapping[str, Path] = {"source": Path(source.path)}
        self.has_early = source.columns.note_type is not None

    def tables(self) -> list[str]:
        """Names the one table of notes."""
        return ["source"]

    def registered(self) -> None:
        """Returns None: the table does not list all stays."""

    def unmapped_types(self) -> list[tuple[str, int]]:
        """Counts the notes by a type that the map lacks; rare types together."""
        shown = [value for value, _ in self._unmapped.most_common() if len(self._subjects[value]) >= SHOWN_FROM]
        listed = [(repr(value), self._unmapped[value]) for value in shown[:VALUES_SHOWN]]
        rare = self._unmapped.total() - sum(count for _, count in listed)
        return [*listed, *([(f"values of fewer than {SHOWN_FROM} patients", rare)] if rare else [])]

    def blocks(self, table: str, reject: Reject) -> Iterator[pd.DataFrame]:  # noqa: ARG002
        """Streams the notes in the form of all sources.

        Raises RequestError at the end where more notes are of types that the map lacks than may be.
        """
        meanings = Meanings(next(self._source.map.groups()), "note_type")
        for block in _blocks(self._source, reject, None):
            rows = self._formed(block, meanings, reject)
            self._count_unmapped(rows)
            yield rows
        if self._unmapped.total() > self._source.max_unmapped * self._rows:
            refuse_unmapped("note_type", self.unmapped_types(), self._rows, self._source.max_unmapped)

    def _formed(self, block: pd.DataFrame, meanings: Meanings, reject: Reject) -> pd.DataFrame:
        """Brings a block into the form of all sources; rejects rows with a wrong time or a text that is none."""
        charted = times_of(block["charted_at"], self._source)
        stored = times_of(block.get("stored_at", pd.Series(None, block.index, dtype=object)), self._source)
        has_text = block["text"].map(lambda text: isinstance(text, str) or is_missing(text)).astype(bool)
        faults = ("charted_at is " + charted.faults).where(charted.faults != "", "")
        faults = _first(faults, stored.faults != "", "stored_at is " + stored.faults)
        faults = _first(faults, ~has_text, "text is something other than text")
        is_used = faults == ""
        for row, fault in zip(block.loc[~is_used, ROW], faults[~is_used], strict=True):
            reject(self._source.path, row, fault)
        stored_at = stored.times.mask(stored.by_day, stored.times + LAST_SECOND)
        is_charted_day = charted.by_day & ~(stored_at >= charted.times)
        is_stored_day = stored.by_day & ~(charted.times > stored_at)
        written = pd.concat([charted.times, stored_at], axis=1).max(axis=1)
        kinds = pd.Series("discharge", block.index, dtype=object)
        if "note_type" in block:
            kinds = meanings.look_up(block["note_type"])
        block = block.assign(
            text=block["text"].where(~block["text"].map(is_missing).astype(bool), ""),
            kind=kinds.map({"discharge": REPORT, "addendum": ADDENDUM}).fillna(OTHER).astype(int),
            is_radiology=kinds == "radiology",
            is_error=kinds == "error",
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
            name = plain(value) or EMPTY
            self._unmapped[name] += 1
            subjects = self._subjects.setdefault(name, set())
            if len(subjects) < SHOWN_FROM:
                subjects.add(subject)
