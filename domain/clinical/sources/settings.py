"""Settings of a hospital's own tables: columns, times, and the meaning of their values. Imports no pandas."""

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, model_validator

from bertrelay.data.tables import Table, table_format
from bertrelay.settings import DataSource, InputFile, Settings

PATTERN = re.compile(r"/(.+)/", re.DOTALL)
"""A value of a map that is a regular expression."""


def pattern_of(value: str | int) -> re.Pattern[str] | None:
    """Returns the regular expression of a value written `/…/`, which ignores case; None for a plain value.

    Raises ValueError for a wrong one.
    """
    between = PATTERN.fullmatch(value) if isinstance(value, str) else None
    if between is None:
        return None
    try:
        return re.compile(between[1], re.IGNORECASE)
    except re.error as error:
        raise ValueError(f"expected a regular expression between slashes, found {value!r}: {error}") from None


def plain(value: object) -> str:
    """`elective` for `" Elective "`: values of a map and of a table are compared in this form."""
    return "" if value is None else str(value).strip().casefold()


def _usable(value: str | int) -> str | int:
    pattern_of(value)
    return value


Values = list[Annotated[str | int, AfterValidator(_usable)]]
"""Values of a column, in any case, or regular expressions between slashes that match a part of it. A value that is
named itself has that meaning, whatever matches it."""


class ValueMap(Settings):
    """The meaning of a table's values: by meaning, those that have it."""

    @model_validator(mode="after")
    def _meanings_differ(self) -> Self:
        for group in self.groups():
            for (first, ours), (second, theirs) in combinations(group.items(), 2):
                shared = sorted({plain(value) for value in ours} & {plain(value) for value in theirs})
                if shared:
                    raise ValueError(f"expected one meaning of a value, found {shared[0]!r} in {first} and in {second}")
        return self

    def groups(self) -> Iterator[dict[str, Values]]:
        """Yields the meanings of each column, by name."""
        yield {name: getattr(self, name) for name in type(self).model_fields}


NO_ADMISSION = "no_admission"
ADMISSION_KINDS = ("unplanned", "planned", "observation", "newborn", NO_ADMISSION)
DISCHARGE_KINDS = ("home", "acute_care_transfer", "against_medical_advice", "hospice", "died")


class StayMap(ValueMap):
    """The meaning of admission types and of discharge locations."""

    unplanned: Values = []
    """Admission types of unplanned admissions, emergencies among them."""
    planned: Values = []
    """Admission types that are no readmission."""
    observation: Values = []
    """Admission types of stays under observation alone, unplanned ones."""
    newborn: Values = []
    """Admission types of births, which are neither index stays nor readmissions."""
    no_admission: Values = []
    """Admission types of visits that are no admissions, such as those of outpatients; they are left out. Where several
    values may have a meaning, one that is named here decides."""
    home: Values = []
    """Discharge locations of all who were discharged alive in another way than the following."""
    acute_care_transfer: Values = []
    """Discharge locations of transfers to another acute care facility."""
    against_medical_advice: Values = []
    """Discharge locations of who left against medical advice."""
    hospice: Values = []
    """Discharge locations of who went to a hospice."""
    died: Values = []
    """Discharge locations of deaths in hospital."""

    def groups(self) -> Iterator[dict[str, Values]]:
        """Yields the meanings of admission types and of discharge locations."""
        for names in (ADMISSION_KINDS, DISCHARGE_KINDS):
            yield {name: getattr(self, name) for name in names}


class NoteMap(ValueMap):
    """The meaning of note types."""

    discharge: Values = []
    """Note types of discharge summaries."""
    addendum: Values = []
    """Note types of addenda to discharge summaries."""
    radiology: Values = []
    """Note types of radiology reports."""
    other: Values = []
    """Note types of other notes, which early notes may be."""
    error: Values = []
    """Note types of withdrawn notes and of what is no note; they are left out."""


ColumnName = Annotated[str, Field(min_length=1)]


class StayColumns(Settings):
    """Names of the columns of a table of stays."""

    subject_id: ColumnName = "subject_id"
    """Column of the patient."""
    hadm_id: ColumnName = "hadm_id"
    """Column of the stay."""
    admitted_at: ColumnName = "admitted_at"
    """Column of the beginning, a time or a date."""
    discharged_at: ColumnName = "discharged_at"
    """Column of the end, a time or a date; empty for a stay that is still open."""
    admission_type: ColumnName | None = None
    """Column that says which admissions were planned, by `map`; without it all are unplanned."""
    discharge_location: ColumnName | None = None
    """Column that says where a stay led, by `map`; without it transfers and deaths are unknown."""
    died_at: ColumnName | None = None
    """Column of the patient's death, wherever, a time or a date; empty for who is alive."""
    age: ColumnName | None = None
    """Column of the age at admission, in years."""
    born: ColumnName | None = None
    """Column of the date of birth, in place of `age`."""
    sex: ColumnName | None = None
    """Column of the sex."""
    race: ColumnName | None = None
    """Column of race or ethnicity."""
    insurance: ColumnName | None = None
    """Column of the insurance."""
    followed_until: ColumnName | None = None
    """Column of the last day on which the patient's data are complete, for `data_end = "per-subject"`."""

    @model_validator(mode="after")
    def _one_age(self) -> Self:
        if self.age and self.born:
            raise ValueError("age and born: expected one of them, found both")
        return self


class NoteColumns(Settings):
    """Names of the columns of a table of notes."""

    subject_id: ColumnName = "subject_id"
    """Column of the patient."""
    hadm_id: ColumnName = "hadm_id"
    """Column of the stay."""
    charted_at: ColumnName = "charted_at"
    """Column of the time or date that the note describes."""
    text: ColumnName = "text"
    """Column of the text."""
    stored_at: ColumnName | None = None
    """Column of the time or date at which the note was saved or signed; without it `charted_at` counts, which may be
    too early."""
    note_type: ColumnName | None = None
    """Column that says which notes are discharge summaries, by `map`; without it all are."""


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f'expected the name of a time zone, as in "Europe/Berlin", found {name!r}') from None
    return name


Zone = Annotated[str, AfterValidator(_zone)]


class HospitalSource(DataSource):
    """A source of stays or notes whose values have the meaning that the recipe gives them."""

    time_formats: list[str] = []
    """Forms of times and dates, tried in turn, as in `["%d.%m.%Y %H:%M", "%d.%m.%Y"]`; ISO 8601 when empty."""
    zone: Zone | None = None
    """Time zone of the hospital, to whose clock times with an offset are converted; without it they are refused."""
    date_only: Literal["start", "end"] | None = None
    """Time of day that the table has for a date without a time: `start`, 00:00:00, or `end`, 23:59:59. When absent,
    only dates without any time are such dates."""
    max_unmapped: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Fraction of the rows whose value may be missing in `map`."""

    def has(self, name: str) -> bool:
        """True for a column of `StayColumns` or `NoteColumns` that the source has."""
        raise NotImplementedError


class OwnTable(HospitalSource):
    """A table of a hospital: CSV, TSV, JSONL or Parquet, packed with gzip or not."""

    form: Literal["table"] = "table"
    """Form of the source: a table with any columns."""
    path: InputFile
    """File, or `@stage/path`."""
    columns: Settings
    """Names of its columns."""
    map: ValueMap
    """Meaning of its values."""

    def has(self, name: str) -> bool:
        """True for a column that is named."""
        return name in self.read_columns()

    @model_validator(mode="after")
    def _is_table(self) -> Self:
        if table_format(self.path) == "lines" and not self.path.startswith("@"):
            raise ValueError(
                f"path: expected a .csv, .tsv, .jsonl or .parquet file, or one of these with .gz, found {self.path}"
            )
        return self

    @property
    def table(self) -> Table:
        """The file with the columns that are read."""
        return Table(path=self.path, columns=list(self.read_columns().values()))

    def read_columns(self) -> dict[str, str]:
        """Returns the columns of the file that are read, by their names here."""
        columns: Settings = self.columns
        return {name: column for name, column in dict(columns).items() if column is not None}

    def tables_read(self) -> Sequence[Table]:
        return [self.table]


class StayTable(OwnTable):
    """A table with a row for each stay."""

    columns: StayColumns = StayColumns()
    """Names of its columns."""
    map: StayMap = StayMap()
    """Values of `admission_type` and `discharge_location` by their meaning."""

    @model_validator(mode="after")
    def _values_are_read(self) -> Self:
        kinds = (self.columns.admission_type, self.columns.discharge_location)
        for column, name, values in zip(
            kinds, ("admission_type", "discharge_location"), self.map.groups(), strict=True
        ):
            check_map(column, name, values)
        return self


class NoteTable(OwnTable):
    """A table with a row for each note."""

    columns: NoteColumns = NoteColumns()
    """Names of its columns."""
    map: NoteMap = NoteMap()
    """Values of `note_type` by their meaning."""

    @model_validator(mode="after")
    def _values_are_read(self) -> Self:
        check_map(self.columns.note_type, "note_type", *self.map.groups())
        return self


def check_map(column: str | None, name: str, values: dict[str, Values]) -> None:
    """Raises ValueError for a column without a map, and for a map without its column."""
    mapped = [meaning for meaning in values if values[meaning]]
    if column and not mapped:
        raise ValueError(f"map: expected values of {name} by their meaning ({', '.join(values)}), found none")
    if mapped and not column:
        raise ValueError(f"map.{mapped[0]}: without effect, because columns.{name} is absent. Name that column")
