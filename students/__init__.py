"""Multilingual students: parallel corpora, distillation, scores across languages, and what one does with a student."""

from typing import TYPE_CHECKING

from bertrelay.lazy import loader

if TYPE_CHECKING:
    from students.comparing import similarity
    from students.mining.mine import Mined, Mining, mine, mine_files
    from students.searching.index import build_index
    from students.searching.opened import Hit, SearchIndex, open_index
    from students.searching.search import search
    from students.searching.settings import Hnsw
    from students.shrinking.shrink import Shrunk, shrink
    from students.shrinking.trim import trim_vocabulary

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
        "Hit": "searching.opened",
        "Hnsw": "searching.settings",
        "Mined": "mining.mine",
        "Mining": "mining.mine",
        "SearchIndex": "searching.opened",
        "Shrunk": "shrinking.shrink",
        "build_index": "searching.index",
        "mine": "mining.mine",
        "mine_files": "mining.mine",
        "open_index": "searching.opened",
        "search": "searching.search",
        "shrink": "shrinking.shrink",
        "similarity": "comparing",
        "trim_vocabulary": "shrinking.trim",
    },
)
