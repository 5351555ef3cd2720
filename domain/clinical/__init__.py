"""Clinical notes: MIMIC tables to a cohort with labels, notes to chunks, and outcome models such as readmission."""

from typing import TYPE_CHECKING

from bertrelay import loader

if TYPE_CHECKING:
    from domain.checks import Finding
    from domain.clinical.audit import find_split_leakage
    from domain.clinical.chunks import Chunk, Chunker, Chunks
    from domain.clinical.cleaning import Section, clean, find_sections
    from domain.clinical.cohort import write_cohort
    from domain.clinical.notes import write_notes
    from domain.clinical.outcomes import ChunkSettings
    from domain.clinical.scorer import OutcomeScorer, ReadmissionScorer
    from domain.clinical.scoring import score_dataset, score_file
    from domain.clinical.settings import CohortSettings, NotesSettings

__all__ = ["Chunk", "ChunkSettings", "Chunker", "Chunks", "CohortSettings", "Finding", "NotesSettings", "OutcomeScorer"]
__all__ += ["ReadmissionScorer", "Section", "clean", "find_sections", "find_split_leakage", "score_dataset"]
__all__ += ["score_file", "write_cohort", "write_notes"]

MODULES = {
    "audit": ("Finding", "find_split_leakage"),
    "chunks": ("Chunk", "Chunker", "Chunks"),
    "cleaning": ("Section", "clean", "find_sections"),
    "cohort": ("write_cohort",),
    "notes": ("write_notes",),
    "outcomes": ("ChunkSettings",),
    "scorer": ("OutcomeScorer", "ReadmissionScorer"),
    "scoring": ("score_dataset", "score_file"),
    "settings": ("CohortSettings", "NotesSettings"),
}
__getattr__ = loader(__name__, {name: module for module, names in MODULES.items() for name in names})
