"""Sources by the settings that name them."""

from bertrelay.errors import RequestError
from domain.clinical.sources.fhir import FhirNoteReader, FhirStayReader
from domain.clinical.sources.form import Hospital, NoteReader, NoteSource, StayReader
from domain.clinical.sources.meds import MedsNoteReader, MedsStayReader
from domain.clinical.sources.mimic import MimicHospital, MimicNotes
from domain.clinical.sources.mimic_tables import HOSPITAL, NOTES, Tables, tables_of
from domain.clinical.sources.note_stream import SourceNotes
from domain.clinical.sources.omop import OmopNoteReader, OmopStayReader
from domain.clinical.sources.standards import (
    AnyNotes,
    AnyStays,
    FhirNotes,
    FhirStays,
    MedsNotes,
    MedsStays,
    OmopNotes,
    OmopStays,
)
from domain.clinical.sources.stays import SourceHospital
from domain.clinical.sources.table import TableNotes, TableStays


def open_hospital(mimic: Tables | None, source: AnyStays | None, planned_types: list[str] | None = None) -> Hospital:
    """Returns the source of admissions that is named. Raises RequestError where a table is missing."""
    if source is None:
        return MimicHospital(tables_of(_mimic(mimic), HOSPITAL), planned_types)
    return SourceHospital(source, source.map, _stay_reader(source))


def _stay_reader(source: AnyStays) -> StayReader:
    if isinstance(source, OmopStays):
        return OmopStayReader(source)
    if isinstance(source, MedsStays):
        return MedsStayReader(source)
    return FhirStayReader(source) if isinstance(source, FhirStays) else TableStays(source)


def open_notes(mimic: Tables | None, source: AnyNotes | None, *, radiology: bool) -> NoteSource:
    """Returns the source of notes that is named. Raises RequestError where a table is missing."""
    if source is None:
        return MimicNotes(tables_of(_mimic(mimic), NOTES), radiology=radiology)
    return SourceNotes(source, source.map, _note_reader(source))


def _note_reader(source: AnyNotes) -> NoteReader:
    if isinstance(source, OmopNotes):
        return OmopNoteReader(source)
    if isinstance(source, MedsNotes):
        return MedsNoteReader(source)
    return FhirNoteReader(source) if isinstance(source, FhirNotes) else TableNotes(source)


def _mimic(mimic: Tables | None) -> Tables:
    if mimic is None:
        raise RequestError("expected `mimic`, a folder, or `source`, found neither")
    return mimic
