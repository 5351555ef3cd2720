"""Documents as spaCy's, where it is installed."""

import sys

import pytest

from bertrelay.errors import RequestError
from domain.biomedical.documents.document import Document, Entity

TEXT = "COX-2 inhibitors against acute gouty arthritis."
DOCUMENT = Document(
    "1", TEXT, (Entity(0, 5, "Gene", identifier="5743"), Entity(25, 46, "Disease"), Entity(31, 46, "Disease"))
)


def test_without_spacy_it_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(RequestError, match="pip install spacy"):
        DOCUMENT.to_spacy()


def test_spacy_has_the_same_entities():
    spacy = pytest.importorskip("spacy")
    doc = DOCUMENT.to_spacy(spacy.blank("en"))
    assert [(ent.text, ent.label_, ent.kb_id_) for ent in doc.ents] == [
        ("COX-2", "Gene", "5743"),
        ("acute gouty arthritis", "Disease", ""),
    ]
    assert len(doc.spans["entities"]) == 3
