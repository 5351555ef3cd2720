"""Continued pretraining: masked words and next sentences, on notes and on papers."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from domain.pretraining.corpus import Corpus, build_corpus
    from domain.pretraining.readers import read_documents
    from domain.pretraining.settings import Masking, PretrainSettings
    from domain.pretraining.sources import DocumentSource
    from domain.pretraining.train import pretrain

__all__ = ["Corpus", "DocumentSource", "Masking", "PretrainSettings", "build_corpus", "pretrain", "read_documents"]

ROOMS = {
    "Corpus": "corpus",
    "DocumentSource": "sources",
    "Masking": "settings",
    "PretrainSettings": "settings",
    "build_corpus": "corpus",
    "pretrain": "train",
    "read_documents": "readers",
}


def __getattr__(name: str) -> object:
    """Loads a room, and torch with it where it needs torch, only when somebody asks for what is in it."""
    if name in ROOMS:
        return getattr(import_module(f"domain.pretraining.{ROOMS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
