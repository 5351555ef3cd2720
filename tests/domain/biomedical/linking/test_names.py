"""Forms of names, abbreviations and composite mentions."""

import pytest

from domain.biomedical.linking.abbreviations import abbreviations
from domain.biomedical.linking.data import expanded
from domain.biomedical.linking.names import grams, likeness, normalized, readings_of, words_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The ataxia-telangiectasia (A-T) gene.", {"A-T": "ataxia-telangiectasia"}),
        ("A-T (ataxia-telangiectasia) is rare.", {"A-T": "ataxia-telangiectasia"}),
        ("It causes myotonic dystrophy (DM).", {"DM": "myotonic dystrophy"}),  # another order of the first letters
        ("Heat shock transcription factor (HSF; a protein)", {"HSF": "Heat shock transcription factor"}),
        ("We saw this (see Table 1) in rats (n = 5).", {}),
        ("One sentence. Familial fever (XQ).", {}),
        ("Gout (HPT) is old. Hypoxanthine transferase (HPT)", {"HPT": "Hypoxanthine transferase"}),
        ("ends with a bracket (", {}),
        ("(AB)", {}),
    ],
)  # fmt: skip
def test_abbreviations_are_those_that_a_text_defines(text, expected):
    assert abbreviations(text) == expected


def test_a_long_form_has_at_most_twice_as_many_words_and_is_in_the_same_sentence():
    assert abbreviations("a one two three four b (AB)") == {}  # a is the sixth word before it, and 2 · 2 are allowed
    assert abbreviations("a one two b (AB)") == {"AB": "a one two b"}
    assert abbreviations("Ataxia ends. Bad (AB)") == {}


def test_an_abbreviation_is_written_out_as_a_word_of_a_mention():
    assert expanded("A-T patients", {"A-T": "ataxia-telangiectasia"}) == "ataxia-telangiectasia patients"
    assert expanded("A-T's", {"A-T": "ataxia-telangiectasia"}) == "A-T's"


def test_names_are_compared_without_case_punctuation_order_and_plural():
    assert normalized("Tooth  Agenesis, Selective") == "tooth agenesis selective"
    assert normalized("Ｇｏｕｔ–(α)") == "gout α"
    assert words_of(normalized("Breast cancers")) == words_of(normalized("Cancer, Breast"))
    assert words_of("virus disease") != words_of("viru disease")
    assert grams("ab") == {" ab", "ab "}
    assert likeness(grams("ab"), grams("abc")) == pytest.approx(2 * 1 / 5)  # " ab" of two and three


def test_a_composite_mention_has_a_reading_with_and_one_without_the_shared_word():
    assert readings_of("renal or hepatic failure") == [
        ["renal", "hepatic failure"],
        ["renal failure", "hepatic failure"],
    ]
    assert readings_of("fever and cough") == [["fever", "cough"]]
    assert readings_of("breast, ovarian, and lung cancer")[1] == ["breast cancer", "ovarian cancer", "lung cancer"]
    assert readings_of("ataxia") == []
