"""Clinics: the tables and notes of MIMIC made into a cohort, and what is learnt from it."""

from typing import TYPE_CHECKING

from bertrelay.lazy import loader

if TYPE_CHECKING:
    from domain.clinical.cohorts.cohort import write_cohort
    from domain.clinical.cohorts.cohort_settings import CohortSettings
    from domain.clinical.leaks.audit import Finding, look_for_leaks
    from domain.clinical.notes.chunk_settings import ChunkSettings
    from domain.clinical.notes.chunks import Chunk, Chunker, Chunks
    from domain.clinical.notes.cleaning import clean
    from domain.clinical.notes.notes import write_notes
    from domain.clinical.notes.notes_settings import NotesSettings
    from domain.clinical.notes.sections import Section, find_sections
    from domain.clinical.outcomes.scorer import OutcomeScorer, ReadmissionScorer
    from domain.clinical.outcomes.scoring import score_file

__all__ = [
    "Chunk",
    "ChunkSettings",
    "Chunker",
    "Chunks",
    "CohortSettings",
    "Finding",
    "NotesSettings",
    "OutcomeScorer",
    "ReadmissionScorer",
    "Section",
    "clean",
    "find_sections",
    "look_for_leaks",
    "score_file",
    "write_cohort",
    "write_notes",
]

__getattr__ = loader(
    __name__,
    {
        "Chunk": "notes.chunks",
        "ChunkSettings": "notes.chunk_settings",
        "Chunker": "notes.chunks",
        "Chunks": "notes.chunks",
        "CohortSettings": "cohorts.cohort_settings",
        "Finding": "leaks.audit",
        "NotesSettings": "notes.notes_settings",
        "OutcomeScorer": "outcomes.scorer",
        "ReadmissionScorer": "outcomes.scorer",
        "Section": "notes.sections",
        "clean": "notes.cleaning",
        "find_sections": "notes.sections",
        "look_for_leaks": "leaks.audit",
        "score_file": "outcomes.scoring",
        "write_cohort": "cohorts.cohort",
        "write_notes": "notes.notes",
    },
)
