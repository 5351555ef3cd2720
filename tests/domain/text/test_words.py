import pytest

from domain.text.words import word_spans


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
    assert [text[start:end] for start, end in word_spans(text)] == expected
