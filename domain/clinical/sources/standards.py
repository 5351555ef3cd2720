"""Settings of sources in a standard form: OMOP's tables. Imports no pandas."""

import re
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from domain.clinical.sources.mimic_tables import Tables, TableSet, located, table_problems
from domain.clinical.sources.settings import HospitalSource, NoteMap, StayMap

OMOP_FILES = re.compile(r"(.+)\.(?:csv|tsv|parquet)(\.gz)?")
OMOP_STAYS = TableSet(
    needed=(("visit_occurrence",), ("person",)),
    optional=("death", "observation_period"),
    standard="OMOP",
    file_name=OMOP_FILES,
    suffix=".csv, .tsv or .parquet",
)
OMOP_NOTES = TableSet(needed=(("note",),), standard="OMOP", file_name=OMOP_FILES, suffix=".csv, .tsv or .parquet")

AdmissionColumn = Literal[
    *("visit_concept_id", "visit_source_value", "visit_source_concept_id"),
    *("admitted_from_concept_id", "admitted_from_source_value"),
]
DischargeColumn = Literal["discharged_to_concept_id", "discharged_to_source_value"]
NoteTypeColumn = Literal["note_type_concept_id", "note_class_concept_id", "note_source_value", "note_title"]


class OmopSource(HospitalSource):
    """Tables of the OMOP CDM 5.3 or 5.4."""

    form: Literal["omop"]
    """Form of the source: tables of the OMOP CDM."""
    database_schema: Annotated[str, Field(min_length=1)] | None = None
    """Schema of the tables in a file of DuckDB, where several have them."""
    date_only: Literal["start", "end"] | None = "start"
    """Time of day that the tables have for a date without a time: `start`, 00:00:00, as OMOP's conventions say, or `end`,
    23:59:59. When absent, only dates without any time are such dates."""

    def file_problems(self, key: str, tables: TableSet) -> Iterator[tuple[str, str]]:
        """Yields the problem of a folder that exists, as `Settings.input_problems` does."""
        yield from table_problems(f"{key}.path", getattr(self, "path"), tables)  # noqa: B009


class OmopStays(OmopSource):
    """Stays of OMOP: the tables visit_occurrence and person, and death and observation_period where they exist."""

    path: Annotated[Tables, BeforeValidator(partial(located, OMOP_STAYS))]
    """Folder with the tables as CSV, TSV or Parquet; their files by name; or a file of DuckDB."""
    admission_types: Annotated[list[AdmissionColumn], Field(min_length=1)] = ["visit_concept_id"]
    """Columns whose values say by `map` which visits are admissions and which were planned. The first value that is in
    the map itself decides, then the first that a regular expression matches; the last column is shown."""
    discharge_locations: Annotated[list[DischargeColumn], Field(min_length=1)] = [
        "discharged_to_source_value",
        "discharged_to_concept_id",
    ]
    """Columns whose values say by `map` where a stay led, in the same way."""
    map: StayMap
    """Concept ids and source values by their meaning. OMOP does not say which visits were planned."""

    def has(self, name: str) -> bool:
        """True for what OMOP has."""
        return name not in {"age", "insurance"}


class OmopNotes(OmopSource):
    """Notes of OMOP: the table note."""

    path: Annotated[Tables, BeforeValidator(partial(located, OMOP_NOTES))]
    """Folder with the table as CSV, TSV or Parquet; its file by name; or a file of DuckDB."""
    note_types: Annotated[list[NoteTypeColumn], Field(min_length=1)] = ["note_source_value", "note_class_concept_id"]
    """Columns whose values say by `map` which notes are discharge summaries, in the way of `admission_types`."""
    map: NoteMap
    """Concept ids and source values by their meaning."""

    def has(self, name: str) -> bool:
        """True for what OMOP has."""
        return name != "stored_at"
