"""Settings of sources in a standard form: OMOP's tables, MEDS's events, FHIR's resources. Imports no pandas."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from bertrelay.settings import InputFile, refuse_idle
from domain.clinical.sources.mimic_tables import Tables, TableSet, located, table_problems
from domain.clinical.sources.settings import (
    ColumnName,
    HospitalSource,
    NoteMap,
    NoteTable,
    OwnTable,
    StayMap,
    StayTable,
    Values,
    Zone,
)

OMOP_FILES = re.compile(r"(.+)\.(?:csv|tsv|parquet)(\.gz)?")
OMOP_STAYS = TableSet(
    needed=(("visit_occurrence",), ("person",), ("death",), ("observation_period",)),
    standard="OMOP",
    file_name=OMOP_FILES,
    suffix=".csv, .tsv or .parquet",
)
OMOP_NOTES = TableSet(needed=(("note",),), standard="OMOP", file_name=OMOP_FILES, suffix=".csv, .tsv or .parquet")

AdmissionColumn = Literal[
    "visit_concept_id",
    "visit_source_value",
    "visit_source_concept_id",
    "admitted_from_concept_id",
    "admitted_from_source_value",
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


class MedsSource(HospitalSource):
    """A data set in the Medical Event Data Standard 0.4: events with codes."""

    form: Literal["meds"]
    """Form of the source: events of MEDS."""
    path: InputFile
    """Folder of the data set; its shards are `data/**/*.parquet`."""
    visit: ColumnName | None = None
    """Column with the id of the stay, which MEDS leaves to each data set. Without it an admission ends with the
    patient's next discharge before another admission."""

    @model_validator(mode="after")
    def _times_are_times(self) -> Self:
        refuse_idle(self, "time_formats", "zone", because="the times of MEDS have one type and no zone")
        return self


class MedsStays(MedsSource):
    """Stays of MEDS: an admission and the discharge after it."""

    admission: Annotated[Values, Field(min_length=1)]
    """Codes of admissions, or regular expressions between slashes."""
    discharge: Annotated[Values, Field(min_length=1)]
    """Codes of discharges."""
    death: Values = Field(default=["/^MEDS_DEATH($|//)/"], min_length=1)
    """Codes of deaths, wherever."""
    birth: Values = Field(default=["MEDS_BIRTH"], min_length=1)
    """Codes of births."""
    sex: Values = Field(default=[])
    """Codes of the sex; what follows the last `//` is the value."""
    race: Values = Field(default=[])
    """Codes of race or ethnicity, in the same way."""
    insurance: Values = Field(default=[])
    """Codes of the insurance, in the same way."""
    map: StayMap
    """Codes of admissions and discharges by their meaning, mostly as regular expressions."""

    def has(self, name: str) -> bool:
        """True for what MEDS has, and for what codes are given."""
        return name != "age" and (name not in {"sex", "race", "insurance"} or bool(getattr(self, name)))

    def events(self) -> dict[str, Values]:
        """Returns the codes that are read, by what they mean."""
        return {name: getattr(self, name) for name in EVENTS}


EVENTS = ("admission", "discharge", "death", "birth", "sex", "race", "insurance")


class MedsNotes(MedsSource):
    """Notes of MEDS: all events with a `text_value`."""

    map: NoteMap
    """Codes of events with text by their meaning, mostly as regular expressions."""

    def has(self, name: str) -> bool:
        """True for what MEDS has."""
        return name != "stored_at" and (name != "hadm_id" or self.visit is not None)


def _resources(kinds: tuple[str, ...], value: Any) -> Any:
    """Resolves a folder to the files of these resources, so that a fingerprint covers no others."""
    if isinstance(value, str) and not isinstance(value, InputFile):
        folder = InputFile.parse(value)
        if Path(folder).is_dir() and (files := resource_files(Path(folder), kinds)):
            return {name: InputFile(path) for name, path in files.items()}
    return value


def resource_files(folder: Path, kinds: tuple[str, ...]) -> dict[str, Path]:
    """Finds the files of some resources in a folder by name, as `Encounter.000.ndjson.gz`."""
    words = {path: set(re.split(r"[._-]", path.name.lower())) for path in sorted(folder.iterdir())}
    resources = {kind.lower() for kind in kinds}
    return {path.name: path for path, parts in words.items() if parts & resources and parts & {"ndjson", "jsonl"}}


FHIR_STAYS, FHIR_NOTES = ("Encounter", "Patient"), ("DocumentReference",)
TypeElement = Literal["priority", "type", "class", "admit_source"]


class FhirSource(HospitalSource):
    """A bulk export of FHIR, R4 or R5: files of NDJSON with a resource a line."""

    form: Literal["fhir"]
    """Form of the source: a bulk export of FHIR."""
    zone: Zone
    """Time zone of the hospital, to whose clock times FHIR's, which have an offset, are converted."""


class FhirStays(FhirSource):
    """Stays of FHIR: the resources Encounter and Patient."""

    path: Annotated[Tables, BeforeValidator(partial(_resources, FHIR_STAYS))]
    """Folder of the export, with files such as `Encounter.ndjson` and `Patient.000.ndjson.gz`."""
    admission_types: list[TypeElement] = Field(default=["priority", "type", "class"], min_length=1)
    """Elements whose codes say by `map` which encounters are admissions and which were planned. The first code that is
    in the map itself decides, then the first that a regular expression matches; the last element is shown."""
    map: StayMap
    """Codes by their meaning: of encounters, and of `dischargeDisposition`."""

    def has(self, name: str) -> bool:
        """True for what FHIR has."""
        return name not in {"age", "insurance", "followed_until"}


class FhirNotes(FhirSource):
    """Notes of FHIR: the resource DocumentReference with plain text."""

    path: Annotated[Tables, BeforeValidator(partial(_resources, FHIR_NOTES))]
    """Folder of the export, with files such as `DocumentReference.ndjson`."""
    map: NoteMap
    """Codes and texts of `type` by their meaning."""

    def has(self, name: str) -> bool:  # noqa: ARG002
        """True: FHIR has every column of notes."""
        return True


FORMS = (OwnTable, OmopSource, MedsSource, FhirSource)


def form_of(value: Any) -> str | None:
    """The tag of a source's type: its form, `table` without one."""
    if isinstance(value, dict):
        return str(value.get("form", "table"))
    return value.form if isinstance(value, FORMS) else None


BY_FORM = Discriminator(
    form_of,
    custom_error_type="form",
    custom_error_message="expected a table whose form is table, omop, meds or fhir",
)
AnyStays = Annotated[
    Annotated[StayTable, Tag("table")]
    | Annotated[OmopStays, Tag("omop")]
    | Annotated[MedsStays, Tag("meds")]
    | Annotated[FhirStays, Tag("fhir")],
    BY_FORM,
]
"""A source of stays in any form."""
AnyNotes = Annotated[
    Annotated[NoteTable, Tag("table")]
    | Annotated[OmopNotes, Tag("omop")]
    | Annotated[MedsNotes, Tag("meds")]
    | Annotated[FhirNotes, Tag("fhir")],
    BY_FORM,
]
"""A source of notes in any form."""
