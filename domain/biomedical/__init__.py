"""BERTs in laboratories: biomedical entities, and answers with their place in the text."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from domain.biomedical.checking import check
    from domain.biomedical.entities.tagger import EntityTagger
    from domain.biomedical.entities.tagging import tag_file
    from domain.biomedical.formats import read_documents, write_documents

__all__ = ["EntityTagger", "check", "read_documents", "tag_file", "write_documents"]

ROOMS = {
    "EntityTagger": "entities.tagger",
    "check": "checking",
    "read_documents": "formats",
    "tag_file": "entities.tagging",
    "write_documents": "formats",
}


def __getattr__(name: str) -> object:
    """Loads a room, and torch with it, only when somebody asks for what is in it."""
    if name in ROOMS:
        return getattr(import_module(f"domain.biomedical.{ROOMS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
