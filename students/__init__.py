"""Multilingual students: parallel corpora, distillation, evaluation, search, mining, compression, export."""

from typing import TYPE_CHECKING

from bertrelay import loader

if TYPE_CHECKING:
    from students.compress.export import export
    from students.compress.shrink import Shrunk, shrink
    from students.compress.vocabulary import trim_vocabulary
    from students.evaluate.nearness import nearness
    from students.evaluate.ranking import evaluate_retrieval
    from students.evaluate.similarity import similarity
    from students.mining.bitext import Mined, Mining, mine, mine_files
    from students.mining.negatives import NegativeMining, mine_negatives
    from students.searching.grow import add_to_index, compact_index, delete_from_index
    from students.searching.index import Hit, SearchIndex, build_index, open_index, search
    from students.searching.settings import Hnsw

__all__ = ["Hit", "Hnsw", "Mined", "Mining", "NegativeMining", "SearchIndex", "Shrunk", "build_index", "export", "mine"]
__all__ += [
    "add_to_index",
    "compact_index",
    "delete_from_index",
    "evaluate_retrieval",
    "mine_files",
    "mine_negatives",
    "nearness",
    "open_index",
    "search",
    "shrink",
    "similarity",
    "trim_vocabulary",
]

MODULES = {
    "compress.export": ("export",),
    "compress.shrink": ("Shrunk", "shrink"),
    "compress.vocabulary": ("trim_vocabulary",),
    "evaluate.nearness": ("nearness",),
    "evaluate.ranking": ("evaluate_retrieval",),
    "evaluate.similarity": ("similarity",),
    "mining.bitext": ("Mined", "Mining", "mine", "mine_files"),
    "mining.negatives": ("NegativeMining", "mine_negatives"),
    "searching.grow": ("add_to_index", "compact_index", "delete_from_index"),
    "searching.index": ("Hit", "SearchIndex", "build_index", "open_index", "search"),
    "searching.settings": ("Hnsw",),
}
__getattr__ = loader(__name__, {name: module for module, names in MODULES.items() for name in names})
