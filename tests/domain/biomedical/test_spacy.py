"""Documents as spaCy's: with a stand-in for the few calls, and with spaCy itself where it is installed."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from bertrelay.errors import RequestError
from domain.biomedical.documents.document import Document, Entity

TEXT = "COX-2 inhibitors against acute gouty arthritis."
DOCUMENT = Document(
    "1", TEXT, (Entity(0, 5, "Gene", identifier="5743"), Entity(25, 46, "Disease"), Entity(31, 46, "Disease"))
)


class FakeDoc:
    def __init__(self, text):
        self.text, self.spans, self.ents = text, {}, ()

    def char_span(self, start, end, label, kb_id, alignment_mode):
        assert alignment_mode == "expand"
        return SimpleNamespace(start=start, end=end, label_=label, kb_id_=kb_id, text=self.text[start:end])


@pytest.fixture
def fake_spacy(monkeypatch):
    util = ModuleType("spacy.util")
    util.filter_spans = lambda spans: [span for span in spans if span.start != 31]
    package = ModuleType("spacy")
    package.blank = lambda _language: SimpleNamespace(make_doc=FakeDoc)
    monkeypatch.setitem(sys.modules, "spacy", package)
    monkeypatch.setitem(sys.modules, "spacy.util", util)


@pytest.mark.usefixtures("fake_spacy")
def test_entities_become_spans_with_labels_and_identifiers():
    doc = DOCUMENT.to_spacy()
    assert [(ent.text, ent.label_, ent.kb_id_) for ent in doc.ents] == [
        ("COX-2", "Gene", "5743"),
        ("acute gouty arthritis", "Disease", ""),
    ]
    assert len(doc.spans["entities"]) == 3
    assert DOCUMENT.to_spacy(SimpleNamespace(make_doc=FakeDoc)).text == TEXT


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
