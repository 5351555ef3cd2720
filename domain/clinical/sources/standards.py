"""Settings of sources in a standard form: OMOP's tables. Imports no pandas."""

import re
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from domain.clinical.sources.mimic_tables import Tables, TableSet, located, table_problems
from domain.clinical.sources.settings import HospitalSource, NoteMap, NoteTable, OwnTable, StayMap, StayTable

OMOP_FILES = re.compile(r"(.+)\.(?:csv|tsv|parquet)(\.gz)?")
OMOP_STAYS = TableSet(
    needed=(("visit_occurrence",), ("person",), ("death",), ("observation_period",)),
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
    """Time of day that the tables have for a date without a time: `start`, 00:00:00, as OMOP's conventions say, or
    `end`, 23:59:59."""


class OmopStays(OmopSource):
    """Stays of OMOP: the tables visit_occurrence, person, death and observation_period."""

    path: Annotated[Tables, BeforeValidator(partial(located, OMOP_STAYS))]
    """Folder with the tables as CSV, TSV or Parquet; their files by name; or a file of DuckDB."""
    admission_types: list[AdmissionColumn] = Field(default=["visit_concept_id"], min_length=1)
    """Columns whose values say by `map` which visits are admissions and which were planned. The first value that is in
    the map itself decides, then the first that a regular expression matches; the last column is shown."""
    discharge_locations: list[DischargeColumn] = Field(
        default=["discharged_to_source_value", "discharged_to_concept_id"], min_length=1
    )
    """Columns whose values say by `map` where a stay led, in the same way."""
    map: StayMap
    """Concept ids and source values by their meaning. OMOP does not say which visits were planned."""

    def has(self, name: str) -> bool:
        """True for what OMOP has."""
        return name not in {"age", "insurance"}

    def input_problems(self) -> Iterator[tuple[str, str]]:
        return table_problems("path", self.path, OMOP_STAYS)


class OmopNotes(OmopSource):
    """Notes of OMOP: the table note."""

    path: Annotated[Tables, BeforeValidator(partial(located, OMOP_NOTES))]
    """Folder with the table as CSV, TSV or Parquet; its file by name; or a file of DuckDB."""
    note_types: list[NoteTypeColumn] = Field(default=["note_source_value", "note_class_concept_id"], min_length=1)
    """Columns whose values say by `map` which notes are discharge summaries, in the way of `admission_types`."""
    map: NoteMap
    """Concept ids and source values by their meaning."""

    def has(self, name: str) -> bool:
        """True for what OMOP has."""
        return name != "stored_at"

    def input_problems(self) -> Iterator[tuple[str, str]]:
        return table_problems("path", self.path, OMOP_NOTES)


def form_of(value: Any) -> str | None:
    """The tag of a source's type: its form, `table` without one."""
    if isinstance(value, dict):
        return str(value.get("form", "table"))
    return value.form if isinstance(value, OwnTable | OmopSource) else None


BY_FORM = Discriminator(
    form_of,
    custom_error_type="form",
    custom_error_message="expected a table whose form is table or omop",
)
AnyStays = Annotated[Annotated[StayTable, Tag("table")] | Annotated[OmopStays, Tag("omop")], BY_FORM]
"""A source of stays in any form."""
AnyNotes = Annotated[Annotated[NoteTable, Tag("table")] | Annotated[OmopNotes, Tag("omop")], BY_FORM]
"""A source of notes in any form."""
