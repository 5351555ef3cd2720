"""Multilingual students: parallel corpora, distillation, scores across languages, and what one does with a student."""

from typing import TYPE_CHECKING

from bertrelay import loader

if TYPE_CHECKING:
    from students.bitext import Mined, Mining, mine, mine_files
    from students.evaluate import similarity
    from students.exporting import export
    from students.index import Hit, SearchIndex, build_index, open_index, search
    from students.negatives import NegativeMining, mine_negatives
    from students.search_settings import Hnsw
    from students.shrinking import Shrunk, shrink
    from students.vocabulary import trim_vocabulary

__all__ = ["Hit", "Hnsw", "Mined", "Mining", "NegativeMining", "SearchIndex", "Shrunk", "build_index", "export", "mine"]
__all__ += ["mine_files", "mine_negatives", "open_index", "search", "shrink", "similarity", "trim_vocabulary"]

MODULES = {
    "bitext": ("Mined", "Mining", "mine", "mine_files"),
    "evaluate": ("similarity",),
    "exporting": ("export",),
    "index": ("Hit", "SearchIndex", "build_index", "open_index", "search"),
    "negatives": ("NegativeMining", "mine_negatives"),
    "search_settings": ("Hnsw",),
    "shrinking": ("Shrunk", "shrink"),
    "vocabulary": ("trim_vocabulary",),
}
__getattr__ = loader(__name__, {name: module for module, names in MODULES.items() for name in names})
