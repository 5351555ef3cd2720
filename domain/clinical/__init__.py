"""Clinics: the tables and notes of MIMIC made into a cohort, and what is learnt from it."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from domain.clinical.audit import Finding, look_for_leaks
    from domain.clinical.chunk_settings import ChunkSettings
    from domain.clinical.chunks import Chunk, Chunker, Chunks
    from domain.clinical.cleaning import clean
    from domain.clinical.cohort import write_cohort
    from domain.clinical.cohort_settings import CohortSettings
    from domain.clinical.notes import write_notes
    from domain.clinical.notes_settings import NotesSettings
    from domain.clinical.scorer import ReadmissionScorer
    from domain.clinical.scoring import score_file
    from domain.clinical.sections import Section, find_sections

__all__ = [
    "Chunk",
    "ChunkSettings",
    "Chunker",
    "Chunks",
    "CohortSettings",
    "Finding",
    "NotesSettings",
    "ReadmissionScorer",
    "Section",
    "clean",
    "find_sections",
    "look_for_leaks",
    "score_file",
    "write_cohort",
    "write_notes",
]

ROOMS = {
    "Chunk": "chunks",
    "ChunkSettings": "chunk_settings",
    "Chunker": "chunks",
    "Chunks": "chunks",
    "CohortSettings": "cohort_settings",
    "Finding": "audit",
    "NotesSettings": "notes_settings",
    "ReadmissionScorer": "scorer",
    "Section": "sections",
    "clean": "cleaning",
    "find_sections": "sections",
    "look_for_leaks": "audit",
    "score_file": "scoring",
    "write_cohort": "cohort",
    "write_notes": "notes",
}


def __getattr__(name: str) -> object:
    """Loads a room, and torch with it where it needs torch, only when somebody asks for what is in it."""
    if name in ROOMS:
        return getattr(import_module(f"domain.clinical.{ROOMS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
