import pytest
import regex

from domain.text.words import UNSPACED, word_spans


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
        ("患者服用aspirin。", ["患", "者", "服", "用", "aspirin", "。"]),
        ("が か\u3099 ｶﾞ 葛\U000e0100城", ["が", "か\u3099", "ｶﾞ", "葛\U000e0100", "城"]),
        ("น้ำตาล๒", ["น้ำ", "ต", "า", "ล", "๒"]),
        ("ស្ករ ទឹក", ["ស្ក", "រ", "ទឹ", "ក"]),
        ("အင်္ဂါ", ["အ", "င်္ဂါ"]),
        ("아스피린을 COX-2의", ["아스피린을", "COX", "-", "2의"]),
    ],
)
def test_words_are_those_found_by_hand(text, expected):
    assert [text[start:end] for start, end in word_spans(text)] == expected


def test_words_of_scripts_without_spaces_are_grapheme_clusters():
    """Chinese, Japanese, Thai, Lao and Khmer against the clusters of the package `regex`."""
    text = "患者有𠮷氏症。 パーキンソン病のｶﾞﾝ、か\u3099ん ผู้ป่วยเป็นเบาหวานน้ำหนัก ຜູ້ປ່ວຍ ជំងឺទឹកនោមផ្អែម"
    assert [text[start:end] for start, end in word_spans(text)] == [
        cluster for cluster in regex.findall(r"\X", text) if cluster.strip()
    ]


def test_every_letter_of_a_script_without_spaces_is_in_the_table():
    scripts = regex.compile(r"[\p{Thai}\p{Lao}\p{Myanmar}\p{Khmer}\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}]")
    letters = [chr(code) for code in range(0x32000) if chr(code).isalpha() and scripts.match(chr(code))]
    table = regex.compile(f"[{UNSPACED}]")
    assert len(letters) > 90_000 and [letter for letter in letters if not table.match(letter)] == []
