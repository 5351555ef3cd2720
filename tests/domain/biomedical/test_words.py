import pytest

from domain.biomedical.documents.document import Document, Entity
from domain.biomedical.documents.tokens import sentences_of, word_spans


def words(text):
    return [text[start:end] for start, end in word_spans(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("COX-2 and p53.", ["COX", "-", "2", "and", "p53", "."]),
        ("3.5 mg/kg", ["3", ".", "5", "mg", "/", "kg"]),
        ("cafe\u0301s", ["cafe\u0301s"]),
        ("\u0301a", ["\u0301", "a"]),
        ("𝒜b 😀x", ["𝒜b", "😀", "x"]),
        ("a_b", ["a", "_", "b"]),
        ("a\u00a0b\u2028c\r\nd", ["a", "b", "c", "d"]),
        ("\x00\x07", ["\x00", "\x07"]),
        ("", []),
    ],
)
def test_words_are_those_a_person_sees(text, expected):
    assert words(text) == expected


def test_an_entity_over_a_sentences_end_makes_two_sentences_one():
    text = "It was E. Coli was found. It grew. Then not."
    apart = [len(each) for each in sentences_of(Document("", "It grew. Then not."))]
    assert apart == [3, 3]
    joined = sentences_of(Document("", "It grew. Then not.", (Entity(3, 13, "X"),)))
    assert [len(each) for each in joined] == [6]
    everything = [word for each in sentences_of(Document("", text)) for word in each]
    assert everything == word_spans(text)
