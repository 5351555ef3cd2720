"""What sentence encoders are compared with: word vectors, TF-IDF, networks that read two sentences at once."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from teachers.baselines.cross_encoder import CrossEncoder
    from teachers.baselines.poly_encoder import PolyEncoder
    from teachers.baselines.rerank import RerankedFile, load_scorer, rerank_file

__all__ = ["CrossEncoder", "PolyEncoder", "RerankedFile", "load_scorer", "rerank_file"]

ROOMS = {
    "CrossEncoder": "cross_encoder",
    "PolyEncoder": "poly_encoder",
    "RerankedFile": "rerank",
    "load_scorer": "rerank",
    "rerank_file": "rerank",
}


def __getattr__(name: str) -> object:
    """Loads a room, and torch with it, only when somebody asks for what is in it."""
    if name in ROOMS:
        return getattr(import_module(f"teachers.baselines.{ROOMS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
