"""Medical terms: their vectors in a BERT, their neighbours, and a picture of them."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from domain.terms.neighbours import nearest_terms
    from domain.terms.terms import describe_terms
    from domain.terms.terms_settings import TermsSettings
    from domain.terms.vectors import term_vectors

__all__ = ["TermsSettings", "describe_terms", "nearest_terms", "term_vectors"]

ROOMS = {
    "TermsSettings": "terms_settings",
    "describe_terms": "terms",
    "nearest_terms": "neighbours",
    "term_vectors": "vectors",
}


def __getattr__(name: str) -> object:
    """Loads a room, and torch with it where it needs torch, only when somebody asks for what is in it."""
    if name in ROOMS:
        return getattr(import_module(f"domain.terms.{ROOMS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
