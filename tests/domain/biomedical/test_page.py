from html.parser import HTMLParser

import pytest

from domain.biomedical.annotations import Document, Entity, Unfit
from domain.biomedical.entities.page import Judged, compared, comparison_page, hues_of, marked, page
from domain.biomedical.formats import write_documents

NASTY = '<script>alert("x")</script> & 𝒜 café\x00\x07\u202e'


class Reader(HTMLParser):
    """What a browser would show: the text of marked paragraphs, and each mark with its attributes."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.marks, self.text, self._inside = [], [], "", False
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self._inside |= tag == "p" and ("class", "marked") in attributes
        if tag == "mark" and self._inside:
            self.marks.append((dict(attributes), len(self.text)))

    def handle_endtag(self, tag):
        self._inside &= tag != "p"

    def handle_data(self, data):
        self.text += data if self._inside else ""


def test_every_text_is_escaped_and_shown_whole():
    entities = (Entity(0, 8, "<b>"), Entity(len(NASTY) - 1, len(NASTY), 'a"b'))
    read = Reader(page([Document("<i>id</i>", NASTY, entities)], "<u>title</u>"))
    assert read.text == NASTY.replace("\x00", "␀").replace("\x07", "␇")
    assert not {"script", "i", "u", "b"} & set(read.tags) - {"b"}
    assert [attributes["data-label"] for attributes, _ in read.marks] == ["<b>", 'a"b']
    assert [place for _, place in read.marks] == [0, len(NASTY) - 1]


def test_confidence_and_identifier_are_told_on_pointing():
    entity = Entity(0, 7, "Chemical", 0.9312, "MESH:D1")
    (mark, _), *_ = Reader(page([Document("1", "aspirin", (entity,))], "t")).marks
    assert mark["title"] == "Chemical, 93.1%, MESH:D1"


def test_a_page_loads_nothing():
    html = page([Document("1", "aspirin", (Entity(0, 7, "C"),))], "t")
    assert "http" not in html
    assert not {"script", "link", "img"} & set(Reader(html).tags)


def test_types_have_hues_of_their_own_whatever_their_order():
    assert hues_of(["b", "a", "b"]) == hues_of(["a", "b"]) == {"a": 0, "b": 1}
    many = hues_of([f"t{number:02}" for number in range(9)])
    html = marked("x", [Judged(Entity(0, 1, "t08"))], many)
    assert 'class="hue-0 again"' in html


def test_overlapping_entities_are_refused():
    with pytest.raises(Unfit, match="overlapping"):
        page([Document("1", "abc", (Entity(1, 3, "X"), Entity(0, 2, "X")))], "t")


def test_gold_and_predicted_are_judged_as_by_hand():
    gold = Document(
        "1", "a b c d e f", tuple(Entity(s, e, t) for s, e, t in [(0, 1, "X"), (2, 5, "X"), (6, 7, "X"), (8, 9, "X")])
    )
    predicted = Document(
        "1", gold.text, tuple(Entity(s, e, t) for s, e, t in [(0, 1, "X"), (2, 3, "X"), (6, 7, "Y"), (10, 11, "X")])
    )
    left, right = compared(gold, predicted)
    assert [each.verdict for each in left] == ["found", "border", "type", "missed"]
    assert [each.verdict for each in right] == ["found", "border", "type", "spurious"]
    html = comparison_page([(gold, predicted)], "t")
    assert Reader(html).text == gold.text * 2
    for sign, count in {"✓ found": 1, "− missed": 1, "+ spurious": 1, "↔ wrong border": 1, "≠ wrong type": 1}.items():
        assert f"{sign}<b>{count}</b>" in html


def test_a_page_is_a_format_to_write(tmp_path):
    write_documents(tmp_path / "drugs.html", [Document("1", "aspirin", (Entity(0, 7, "Chemical"),))])
    html = (tmp_path / "drugs.html").read_text()
    assert "<h1>drugs</h1>" in html
    assert "1 document, 1 entity" in html
