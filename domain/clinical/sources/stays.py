"""Stays of any source but MIMIC, by the meaning that the recipe gives their values."""

import pandas as pd

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from bertrelay.progress import log
from domain.clinical.sources.form import FAULT, ORDER, Count, StayReader
from domain.clinical.sources.reading import first_fault
from domain.clinical.sources.rows import LAST_SECOND, age_at, identified, top_coded
from domain.clinical.sources.settings import NO_ADMISSION, HospitalSource, StayMap
from domain.clinical.sources.values import Meanings, candidates, count_unmapped, shown_one, times_of

TEXTS = ("admission_type", "discharge_location", "sex", "race", "insurance")
CHARACTERISTICS = ("sex", "race", "insurance")
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
MARKED = {
    "is_still_in": "of these, still in hospital by the source, and so open, whatever the end",
    "is_born_by_year": "of these, with a birth known by its year alone, so that the age may be a year too high",
    "is_dead_undated": "of these, of subjects who are dead by the source without a date, and count as alive",
}
"""Lines of the flow table on what the source marks."""


class SourceHospital:
    """The stays of a reader, with the meaning that the settings give their values."""

    def __init__(self, source: HospitalSource, stay_map: StayMap, reader: StayReader) -> None:
        self._source, self._map, self._reader = source, stay_map, reader

    def admissions(self, rejects: Rejects, count: Count) -> pd.DataFrame:
        """Reads the admissions; counts values that the map lacks, and what the source does not have."""
        file, blocks = self._reader.file, []
        for block in self._reader.blocks(rejects.add):
            rejects.used(len(block))
            blocks.append(block)
        if not blocks:
            raise RequestError(f"{file} has no stays. Check that it is the right one and complete.")
        table = pd.concat(blocks, ignore_index=True)
        count("rows of the table of stays that can be read", table)
        if "is_void" in table:
            took_place = table[~table["is_void"].astype(bool)]
            table = count("that took place (neither planned for later, cancelled nor entered in error)", took_place)
        table = self._with_times(table)
        table = identified(table, "admitted_at", file, rejects, count)
        for name in (*TEXTS, "died_at", "followed_until"):
            if name not in table:
                table[name] = None
        for name in TEXTS:
            table[name] = table[name].map(candidates)
        table = self._with_meanings(table, count)
        self._count_gaps(table, count)
        table = self._with_deaths(table, count)
        return table.sort_values(ORDER, ignore_index=True)

    def _with_times(self, table: pd.DataFrame) -> pd.DataFrame:
        """Parses times and ages; a fault of any but the beginning costs only that value."""
        table = table.assign(is_by_day=False)
        for name in ("admitted_at", "discharged_at", "died_at", "born", "followed_until"):
            if name not in table:
                continue
            parsed = times_of(table[name], self._source)
            faults = (name + " is " + parsed.faults).where(parsed.faults != "", "")
            table = table.assign(**{name: parsed.times})
            table[FAULT] = first_fault(table[FAULT], faults != "", faults)
            if name == "discharged_at":
                table[name] = table[name].mask(parsed.by_day, table[name] + LAST_SECOND)
            if name in ("admitted_at", "discharged_at"):
                table["is_by_day"] |= parsed.by_day
            if name == "died_at":
                table["death_by_day"] = parsed.by_day
            if name == "followed_until":
                table[name] = table[name].mask(parsed.by_day, table[name] + LAST_SECOND)
        if "is_still_in" in table:
            table["discharged_at"] = table["discharged_at"].mask(table["is_still_in"].astype(bool))
        return table.assign(age=self._age(table))

    def _age(self, table: pd.DataFrame) -> "pd.Series[float]":
        if "born" in table:
            return top_coded(age_at(table["admitted_at"], table["born"]))
        if "age" in table:
            return top_coded(pd.to_numeric(table["age"], errors="coerce").floordiv(1))
        return pd.Series(float("nan"), table.index)

    def _with_meanings(self, table: pd.DataFrame, count: Count) -> pd.DataFrame:
        """Adds what the map says of admission types and discharge locations; leaves out what is no admission."""
        source, (of_types, of_locations) = self._source, self._map.groups()
        kinds, ends = pd.Series("unplanned", table.index), pd.Series(None, table.index, dtype=object)
        if source.has("admission_type"):
            kinds = Meanings(of_types, "admission_type").look_up(table["admission_type"])
            is_admission = kinds != NO_ADMISSION
            if not is_admission.all():
                table = count("admissions by the map", table[is_admission])
                kinds, ends = kinds[is_admission], ends[is_admission]
        if source.has("discharge_location"):
            ends = Meanings(of_locations, "discharge_location").look_up(table["discharge_location"])
        table = table.assign(**{name: table[name].map(shown_one) for name in TEXTS})
        limit, closed = source.max_unmapped, table["discharged_at"].notna()
        count_unmapped(table, "admission_type", kinds, limit, "counted as unplanned", count)
        if source.has("discharge_location"):
            treatment = "counted as alive at home"
            count_unmapped(table[closed], "discharge_location", ends[closed], limit, treatment, count)
        return table.assign(
            is_planned=kinds == "planned",
            is_observation=kinds == "observation",
            is_newborn=kinds == "newborn",
            left_as=ends.map(LEFT_AS).astype(object),
            end=ends,
        )

    def _count_gaps(self, table: pd.DataFrame, count: Count) -> None:
        """Counts what the source does not have, and what it says in another way than by times."""
        for column, line in NOT_CARRIED.items():
            if not self._source.has(column):
                count(line, table)
        if absent := [name for name in CHARACTERISTICS if not self._source.has(name)]:
            count(f"of these, all: this source has no {', '.join(absent)}, and so no groups by it", table)
        if self._source.has("admission_type") and not self._map.planned:
            count("of these, all: the map has no planned admissions, and each counts as unplanned", table)
        for column, line in MARKED.items():
            if column in table and (is_so := table[column].astype(bool)).any():
                count(line, table[is_so])
        if "is_listed" in table:
            is_listed = table["is_listed"].astype(bool)
            count("of these, of subjects whom the table of patients does not have", table[~is_listed])

    def _with_deaths(self, table: pd.DataFrame, count: Count) -> pd.DataFrame:
        """Adds deaths in hospital: by the discharge location, or by a time or day of death within the stay.

        A death known by its day, on the day of the discharge, is one in hospital unless there is a location of who left
        alive.
        """
        died_at = pd.to_datetime(table["died_at"]).astype("datetime64[s]")
        by_day = table["death_by_day"] if "death_by_day" in table else pd.Series(False, table.index)
        begins, ends = table["admitted_at"], table["discharged_at"]
        day = died_at.dt.floor("D")
        is_within = ~by_day & (died_at >= begins) & (died_at <= ends)
        is_within |= by_day & (day >= begins.dt.floor("D")) & (day < ends.dt.floor("D"))
        is_last_day = by_day & (day == ends.dt.floor("D")) & (day >= begins.dt.floor("D"))
        left_alive = table["end"].notna() & (table["end"] != "died") & table["discharge_location"].notna()
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
        """Returns None: no diagnoses are read."""
        log("the source has no diagnoses: characteristics come without them")
