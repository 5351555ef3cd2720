"""Clinical notes: MIMIC tables to a cohort with labels, notes to chunks, and outcome models such as readmission."""

from typing import TYPE_CHECKING

from bertrelay import loader

if TYPE_CHECKING:
    from domain.clinical.audit import look_for_leaks
    from domain.clinical.chunks import Chunk, Chunker, Chunks
    from domain.clinical.cleaning import Section, clean, find_sections
    from domain.clinical.cohort import write_cohort
    from domain.clinical.notes import write_notes
    from domain.clinical.outcomes import ChunkSettings
    from domain.clinical.scorer import OutcomeScorer, ReadmissionScorer
    from domain.clinical.scoring import score_dataset, score_file
    from domain.clinical.settings import CohortSettings, NotesSettings
    from domain.findings import Finding

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
    "score_dataset",
    "score_file",
    "write_cohort",
    "write_notes",
]

__getattr__ = loader(
    __name__,
    {
        "Chunk": "chunks",
        "ChunkSettings": "outcomes",
        "Chunker": "chunks",
        "Chunks": "chunks",
        "CohortSettings": "settings",
        "Finding": "audit",
        "NotesSettings": "settings",
        "OutcomeScorer": "scorer",
        "ReadmissionScorer": "scorer",
        "Section": "cleaning",
        "clean": "cleaning",
        "find_sections": "cleaning",
        "look_for_leaks": "audit",
        "score_dataset": "scoring",
        "score_file": "scoring",
        "write_cohort": "cohort",
        "write_notes": "notes",
    },
)
