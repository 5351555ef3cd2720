"""Sources by the settings that name them."""

from bertrelay.errors import RequestError
from domain.clinical.sources.form import Hospital, NoteSource
from domain.clinical.sources.mimic import MimicHospital, MimicNotes
from domain.clinical.sources.mimic_tables import HOSPITAL, NOTES, Tables, tables_of
from domain.clinical.sources.note_stream import SourceNotes
from domain.clinical.sources.settings import NoteTable, StayTable
from domain.clinical.sources.stays import SourceHospital
from domain.clinical.sources.table import TableNotes, TableStays


def open_hospital(mimic: Tables | None, source: StayTable | None, planned_types: list[str] | None = None) -> Hospital:
    """Returns the source of admissions that is named. Raises RequestError where a table of MIMIC is missing."""
    if source is not None:
        return SourceHospital(source, source.map, TableStays(source))
    return MimicHospital(tables_of(_mimic(mimic), HOSPITAL), planned_types)


def open_notes(mimic: Tables | None, source: NoteTable | None, *, radiology: bool) -> NoteSource:
    """Returns the source of notes that is named. Raises RequestError where a table of MIMIC is missing."""
    if source is not None:
        return SourceNotes(source, source.map, TableNotes(source))
    return MimicNotes(tables_of(_mimic(mimic), NOTES), radiology=radiology)


def _mimic(mimic: Tables | None) -> Tables:
    if mimic is None:
        raise RequestError("expected `mimic`, a folder, or `source`, found neither")
    return mimic
