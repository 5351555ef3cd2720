"""The source OMOP: stays and notes from tables of the CDM 5.3 and 5.4.

What decides a cohort, in OMOP's own conventions:

1. A date without a time has midnight in `*_datetime`, so that only `date_only` distinguishes a day from a midnight.
2. Who is still in hospital has visit_type_concept_id 32220, and as end of the visit the day of the data pull.
3. A concept id 0 is no matching concept, such as that of a discharge to home: it is read as an empty value.
4. The data of a person are complete until the last observation_period_end_date.
5. A note has no time at which it was saved or signed.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd

from bertrelay.data.records import READERS, canonical_id, is_missing
from bertrelay.data.tables import ABSENT, Record, Row, Table
from bertrelay.errors import RequestError
from bertrelay.settings import InputFile
from domain.clinical.sources.form import BLOCK_ROWS, FAULT, FILE, ROW, Reject
from domain.clinical.sources.mimic_tables import TableSet, tables_of
from domain.clinical.sources.reading import frames
from domain.clinical.sources.rows import places, without_copies
from domain.clinical.sources.standards import OMOP_NOTES, OMOP_STAYS, OmopNotes, OmopStays
from domain.clinical.sources.values import times_of

STILL_PATIENT = "32220"
OLDER_NAMES = {
    "admitted_from_concept_id": "admitting_source_concept_id",
    "admitted_from_source_value": "admitting_source_value",
    "discharged_to_concept_id": "discharge_to_concept_id",
    "discharged_to_source_value": "discharge_to_source_value",
}
"""Names of the CDM 5.4, and those of 5.3 where they differ."""
REQUIRED = {
    "visit_occurrence": ("visit_occurrence_id", "person_id", "visit_concept_id", "visit_start_date", "visit_end_date"),
    "person": ("person_id", "gender_concept_id", "year_of_birth"),
    "death": ("person_id", "death_date"),
    "observation_period": ("person_id", "observation_period_end_date"),
    "note": ("note_id", "person_id", "note_date", "note_text"),
}
OPTIONAL = {
    "visit_occurrence": (
        *("visit_start_datetime", "visit_end_datetime", "visit_type_concept_id", "visit_source_value"),
        *("visit_source_concept_id", *OLDER_NAMES, *OLDER_NAMES.values()),
    ),
    "person": (
        *("month_of_birth", "day_of_birth", "birth_datetime", "gender_source_value", "race_concept_id"),
        "race_source_value",
    ),
    "death": ("death_datetime",),
    "observation_period": (),
    "note": (
        *("note_datetime", "visit_occurrence_id", "note_type_concept_id", "note_class_concept_id", "note_title"),
        "note_source_value",
    ),
}
IDS = {"person_id": "subject_id", "visit_occurrence_id": "hadm_id"}
SEXES = {"8507": "M", "8532": "F"}
"""Concept ids of the sexes."""
RACES = ("race_concept_id", "race_source_value")


class OmopStayReader:
    """Visits, with what person, death and observation_period say of their persons."""

    def __init__(self, source: OmopStays) -> None:
        self._source, self._tables = source, OmopTables(source, OMOP_STAYS)
        self.file = self._tables.files["visit_occurrence"]

    def blocks(self, reject: Reject) -> Iterator[pd.DataFrame]:
        """Streams the visits, admissions or not."""
        persons = self._persons(reject)
        of_persons = [*persons.columns.drop("subject_id")]
        for block in self._tables.blocks("visit_occurrence", ("subject_id", "visit_start_date"), reject):
            visits = block.merge(persons, on="subject_id", how="left")
            yield visits[[ROW, FAULT, FILE, "subject_id", "hadm_id", *of_persons]].assign(
                admitted_at=_first_of(visits, "visit_start_datetime", "visit_start_date"),
                discharged_at=_first_of(visits, "visit_end_datetime", "visit_end_date"),
                admission_type=_tuples(visits, self._source.admission_types),
                discharge_location=_tuples(visits, self._source.discharge_locations),
                is_still_in=visits["visit_type_concept_id"].map(_concept) == STILL_PATIENT,
                is_listed=visits["is_listed"].notna(),
                is_born_by_year=visits["is_born_by_year"].eq(True),
            )

    def _persons(self, reject: Reject) -> pd.DataFrame:
        """Reads a row for each person: birth, sex, race, death and the end of the data."""
        persons, deaths = self._once("person", reject), self._once("death", reject)
        births = pd.DataFrame(
            [_birth(row) for row in persons.to_dict("records")],
            persons.index,
            ["born", "is_born_by_year"],
            dtype=object,
        )
        sex = persons["gender_concept_id"].map(_concept).map(SEXES)
        persons = persons[["subject_id"]].assign(
            **births, sex=sex.fillna(persons["gender_source_value"]), race=_tuples(persons, RACES), is_listed=True
        )
        deaths = deaths[["subject_id"]].assign(died_at=_first_of(deaths, "death_datetime", "death_date"))
        periods = self._tables.read("observation_period", reject)
        ends = times_of(periods["observation_period_end_date"], self._source).times
        latest = ends.groupby(periods["subject_id"]).max().dt.date.rename("followed_until").reset_index()
        return persons.merge(deaths, on="subject_id", how="outer").merge(latest, on="subject_id", how="outer")

    def _once(self, table: str, reject: Reject) -> pd.DataFrame:
        """Reads a table with a row for each person; rejects other rows of a person, and counts copies once."""
        file = self._tables.files[table]
        rows = without_copies(self._tables.read(table, reject), file)
        is_again = rows.duplicated("subject_id")
        for path, row in places(rows[is_again], file):
            reject(path, row, "a person_id that an earlier row has")
        return rows[~is_again]


class OmopNoteReader:
    """The notes of the table note."""

    def __init__(self, source: OmopNotes) -> None:
        self._source, self._tables = source, OmopTables(source, OMOP_NOTES)
        self.files = self._tables.files

    def blocks(self, table: str, reject: Reject) -> Iterator[pd.DataFrame]:
        """Streams the notes."""
        for block in self._tables.blocks(table, None, reject):
            yield block[[ROW, FAULT, FILE, "subject_id", "hadm_id"]].assign(
                charted_at=_first_of(block, "note_datetime", "note_date"),
                note_type=_tuples(block, self._source.note_types),
                text=block["note_text"],
            )


class OmopTables:
    """The tables of a folder or of a file of DuckDB, by name."""

    def __init__(self, source: OmopStays | OmopNotes, tables: TableSet) -> None:
        self._source = source
        path = None if isinstance(source.path, dict) else Path(source.path)
        is_database = path is not None and is_duckdb(path)
        self.files: Mapping[str, Path] = (
            dict.fromkeys(tables.names, path) if path and is_database else tables_of(source.path, tables)
        )

    def blocks(self, table: str, essential: tuple[str, ...] | None, reject: Reject) -> Iterator[pd.DataFrame]:
        """Streams a table in blocks, under the names of the CDM 5.4 in lower case; ids as `subject_id` and `hadm_id`.

        Raises RequestError for a table without a column that the CDM requires.
        """
        names = [*REQUIRED[table], *OPTIONAL[table]]
        path = self.files[table]
        parts = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not parts:
            raise RequestError(f"{path}: expected files of Parquet in the folder of the table {table}, found none")
        for part in parts:
            stream = self._rows(part, table, names)
            for block in frames(stream, str(part), [IDS.get(name, name) for name in names], essential, reject):
                older = {name: block[name].where(block[name].notna(), block[old]) for name, old in _both(table)}
                yield block.assign(**{FILE: str(part)}, **older).drop(columns=[old for _, old in _both(table)])

    def read(self, table: str, reject: Reject) -> pd.DataFrame:
        """Reads a whole table, which may be empty."""
        names = [IDS.get(name, name) for name in (*REQUIRED[table], *OPTIONAL[table])]
        empty = pd.DataFrame({name: [] for name in (ROW, FAULT, FILE, *names)}, dtype=object).astype({ROW: int})
        return pd.concat([empty, *self.blocks(table, None, reject)], ignore_index=True)

    def _rows(self, file: Path, table: str, names: list[str]) -> Iterator[Row]:
        if is_duckdb(file):
            stream = _database_rows(file, table, names, self._source.database_schema)
        else:
            source = Table(path=InputFile(file))
            stream = READERS[source.file_format](source, [], names)
        for row in stream:
            absent = [name for name, value in zip(names, row.values, strict=False) if value is ABSENT]
            if required := [name for name in absent if name in REQUIRED[table]]:
                raise RequestError(
                    f"{file}: expected the columns of OMOP's table {table} (CDM 5.3 or 5.4), found none named "
                    f"{', '.join(required)}. Give the table as the CDM names it"
                )
            yield row
            if row.values:
                break
        yield from stream


def _both(table: str) -> list[tuple[str, str]]:
    return [*OLDER_NAMES.items()] if table == "visit_occurrence" else []


def is_duckdb(file: Path) -> bool:
    """True for a file that DuckDB wrote."""
    try:
        with file.open("rb") as stream:
            return stream.read(12)[8:] == b"DUCK"
    except OSError:
        return False


def _database_rows(file: Path, table: str, names: list[str], schema: str | None) -> Iterator[Row]:
    """Streams a table of a file of DuckDB; names in any case, `ABSENT` for a missing column."""
    import duckdb

    try:
        connection = duckdb.connect(str(file), read_only=True)
    except duckdb.Error as error:
        raise RequestError(
            f"{file} cannot be opened by DuckDB ({type(error).__name__}); is another program writing?"
        ) from None
    with closing(connection):
        listed = connection.execute(
            "select table_schema, column_name from information_schema.columns where lower(table_name) = ?", [table]
        ).fetchall()
        schemas = sorted({owner for owner, _ in listed if schema is None or owner == schema})
        if len(schemas) != 1:
            among = f"in the schemas {', '.join(schemas)}; name one in database_schema" if schemas else "nowhere"
            raise RequestError(f"{file}: expected the table {table} once, found it {among}")
        columns = {name.lower(): name for owner, name in listed if owner == schemas[0]}
        chosen = [name for name in names if name in columns]
        quoted = ", ".join('"' + columns[name].replace('"', '""') + '"' for name in chosen)
        connection.execute(f'select {quoted or "1"} from "{schemas[0]}"."{table}"')
        row = 0
        while rows := connection.fetchmany(BLOCK_ROWS):
            for values in rows:
                row += 1
                by_name: dict[str, Any] = dict(zip(chosen, values, strict=False))
                yield Record(tuple(by_name.get(name, ABSENT) for name in names), str(file), row)


def _first_of(table: pd.DataFrame, name: str, otherwise: str) -> "pd.Series[Any]":
    """The values of a column, and of another where they are missing."""
    is_there = table[name].map(lambda value: not is_missing(value) and bool(str(value).strip())).astype(bool)
    return table[name].where(is_there, table[otherwise])


def _concept(value: object) -> object:
    """A concept id as text, as `9201` of 9201.0, and 0 as an empty one; another value as it is."""
    try:
        concept = canonical_id(value)
    except ValueError:
        return value
    return "" if concept == "0" else concept


def _tuples(table: pd.DataFrame, names: Sequence[str]) -> "pd.Series[Any]":
    columns = (table[name].map(_concept) if name.endswith("_concept_id") else table[name] for name in names)
    return pd.Series(list(zip(*columns, strict=True)), table.index, dtype=object)


def _birth(person: Mapping[Any, Any]) -> tuple[object, bool]:
    """The date of birth, and whether only its year is known; null where that is none."""
    at = person["birth_datetime"]
    if not is_missing(at) and str(at).strip():
        return at, False
    try:
        year, *rest = (canonical_id(person[name]) for name in ("year_of_birth", "month_of_birth", "day_of_birth"))
        return date(int(year), *(int(part or 1) for part in rest)), not rest[0]
    except ValueError:
        return None, False
