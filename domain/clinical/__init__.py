"""Clinical notes: MIMIC tables to a cohort with labels, notes to chunks, and outcome models such as readmission."""

from typing import TYPE_CHECKING

from bertrelay import loader

if TYPE_CHECKING:
    from domain.checks import Finding
    from domain.clinical.chunks import Chunk, Chunker, Chunks
    from domain.clinical.cleaning import Section, clean, find_sections
    from domain.clinical.cohort import write_cohort
    from domain.clinical.evaluate import evaluate_outcome
    from domain.clinical.leakage import find_split_leakage
    from domain.clinical.notes import write_notes
    from domain.clinical.predict import OutcomeScorer, ReadmissionScorer
    from domain.clinical.predict_files import score_dataset, score_file
    from domain.clinical.settings import ChunkSettings, CohortSettings, NotesSettings, OutcomeEvaluateSettings

__all__ = ["Chunk", "ChunkSettings", "Chunker", "Chunks", "CohortSettings", "Finding", "NotesSettings"]
__all__ += ["OutcomeEvaluateSettings", "OutcomeScorer", "ReadmissionScorer", "Section", "clean", "evaluate_outcome"]
__all__ += ["find_sections", "find_split_leakage", "score_dataset", "score_file", "write_cohort", "write_notes"]

MODULES = {
    "chunks": ("Chunk", "Chunker", "Chunks"),
    "cleaning": ("Section", "clean", "find_sections"),
    "cohort": ("write_cohort",),
    "evaluate": ("evaluate_outcome",),
    "leakage": ("Finding", "find_split_leakage"),
    "notes": ("write_notes",),
    "predict": ("OutcomeScorer", "ReadmissionScorer"),
    "predict_files": ("score_dataset", "score_file"),
    "settings": ("ChunkSettings", "CohortSettings", "NotesSettings", "OutcomeEvaluateSettings"),
}
__getattr__ = loader(__name__, {name: module for module, names in MODULES.items() for name in names})
