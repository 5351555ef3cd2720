"""Multilingual students: parallel corpora, distillation, scores across languages, and what one does with a student."""

from typing import TYPE_CHECKING

from bertrelay import loader

if TYPE_CHECKING:
    from students.bitext import Mined, Mining, mine, mine_files
    from students.evaluate import similarity
    from students.index import Hit, SearchIndex, open_index
    from students.index_build import build_index, search
    from students.settings import Hnsw
    from students.shrinking import Shrunk, shrink
    from students.vocabulary import trim_vocabulary

__all__ = [
    "Hit",
    "Hnsw",
    "Mined",
    "Mining",
    "SearchIndex",
    "Shrunk",
    "build_index",
    "mine",
    "mine_files",
    "open_index",
    "search",
    "shrink",
    "similarity",
    "trim_vocabulary",
]

__getattr__ = loader(
    __name__,
    {
        "Hit": "index",
        "Hnsw": "settings",
        "Mined": "bitext",
        "Mining": "bitext",
        "SearchIndex": "index",
        "Shrunk": "shrinking",
        "build_index": "index_build",
        "mine": "bitext",
        "mine_files": "bitext",
        "open_index": "index",
        "search": "index_build",
        "shrink": "shrinking",
        "similarity": "evaluate",
        "trim_vocabulary": "vocabulary",
    },
)
