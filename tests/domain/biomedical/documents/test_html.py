import re
from html.parser import HTMLParser

from domain.biomedical.documents.document import Argument, Document, Entity, Relation
from domain.biomedical.documents.html import entity_page

NASTY = '<script>alert("x")</script> & 𝒜 café\x00\x07\u202e'


class Reader(HTMLParser):
    """The content that a browser shows: the text of marked paragraphs, and each mark with its attributes."""

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
    entities = (Entity(0, 8, "<b>"), Entity(len(NASTY) - 1, len(NASTY), 'a"b', 0.9312, "MESH:D1"))
    html = entity_page([Document("<i>id</i>", NASTY, entities)], "<u>title</u>")
    read = Reader(html)
    assert "http" not in html  # a page loads nothing
    assert read.text == NASTY.replace("\x00", "␀").replace("\x07", "␇")
    assert not {"script", "i", "u", "link", "img"} & set(read.tags)
    assert [attributes["data-label"] for attributes, _ in read.marks] == ["<b>", 'a"b']
    assert [start for _, start in read.marks] == [0, len(NASTY) - 1]
    assert read.marks[1][0]["title"] == 'a"b, 93 %, MESH:D1'


def test_relations_stand_below_their_text_with_mentions_and_identifiers():
    entities = (Entity(0, 4, "Chemical", identifier="D7"), Entity(12, 16, "Disease", identifier="D8"))
    relation = Relation("<i>", (Argument("D7"), Argument("D8")), True, 0.93)
    html = entity_page([Document("1", "Lead causes gout", entities, relations=(relation,)), Document("2", "x")], "a")
    (row,) = re.findall("<tr>.*</tr>", html)
    assert row == ('<tr><th scope="row">&lt;i&gt;</th><td>Lead (D7) – gout (D8)</td><td>new finding, 93 %</td></tr>')
    assert html.count("<table") == 1
