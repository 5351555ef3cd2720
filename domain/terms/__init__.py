"""Medical terms: their vectors in a BERT, their neighbours, and a picture of them."""

from typing import TYPE_CHECKING

from bertrelay import loader

if TYPE_CHECKING:
    from domain.terms.settings import TermsSettings
    from domain.terms.terms import describe_terms
    from domain.terms.vectors import nearest_terms, term_vectors

__all__ = ["TermsSettings", "describe_terms", "nearest_terms", "term_vectors"]

MODULES = {
    "settings": ("TermsSettings",),
    "terms": ("describe_terms",),
    "vectors": ("nearest_terms", "term_vectors"),
}
__getattr__ = loader(__name__, {name: module for module, names in MODULES.items() for name in names})
