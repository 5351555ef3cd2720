import random
from collections import Counter
from html.parser import HTMLParser
from itertools import accumulate, pairwise

from domain.biomedical.documents.document import Document, Entity
from domain.biomedical.documents.page import compared, entity_page
from domain.biomedical.documents.tokens import TokenSpan
from domain.biomedical.ner.pairing import pairings

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
    entities = (Entity(0, 8, "<b>"), Entity(len(NASTY) - 1, len(NASTY), 'a"b', 0.9312, "MESH:D1"))
    html = entity_page([Document("<i>id</i>", NASTY, entities)], "<u>title</u>")
    read = Reader(html)
    assert "http" not in html  # a page loads nothing
    assert read.text == NASTY.replace("\x00", "␀").replace("\x07", "␇")
    assert not {"script", "i", "u", "link", "img"} & set(read.tags)
    assert [attributes["data-label"] for attributes, _ in read.marks] == ["<b>", 'a"b']
    assert [place for _, place in read.marks] == [0, len(NASTY) - 1]
    assert read.marks[1][0]["title"] == 'a"b, 93 %, MESH:D1'


def test_pairs_are_judged_in_colour_as_they_are_counted():
    """Random entities of words of many lengths; those of the page are characters, and those that are counted words."""
    draw = random.Random(3)
    seen = Counter()
    for _ in range(300):
        words = ["x" * draw.randint(1, 12) for _ in range(12)]
        starts = list(accumulate((len(word) + 1 for word in words), initial=0))
        sides = [random_spans(draw, len(words)) for _ in range(2)]
        left, right = compared(
            *(
                Document("1", " ".join(words), tuple(Entity(starts[s], starts[e] - 1, t) for s, e, t in each))
                for each in sides
            )
        )
        counted = Counter(pair.kind for pair in pairings(*sides))
        assert [each.verdict for each in left] == [pair.kind for pair in pairings(*sides) if pair.gold]
        assert Counter(each.verdict for each in right)["spurious"] == counted["spurious"]
        seen.update(counted)
    assert len(seen) == 6 and min(seen.values()) > 20


def random_spans(draw, words):
    borders = sorted({draw.randint(0, words) for _ in range(7)})
    return [TokenSpan(*span, draw.choice("XY")) for span in pairwise(borders) if draw.random() < 0.7]
