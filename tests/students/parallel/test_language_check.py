"""Swapped columns and codes of other languages are found by the letters and words of the texts."""

import pytest

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from students.parallel.language_check import LanguageCheck
from students.parallel.pairs import PairCounts, read_pairs
from students.parallel.settings import AlignedFiles, TranslationColumns

KOREAN = [f"두 남자가 공원에서 {number}번 축구를 한다" for number in range(700)]
ENGLISH = [f"Two men play football with the dog in the park, number {number}." for number in range(700)]
GERMAN = [f"Zwei Männer spielen mit dem Hund im Park Fußball, Nummer {number}." for number in range(700)]


def source(tmp_path, english, other, language, **settings):
    for name, lines in (("left", english), ("right", other)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return AlignedFiles(english=str(tmp_path / "left"), other=str(tmp_path / "right"), language=language, **settings)


def read(one):
    counts = PairCounts([one])
    return len(list(read_pairs([one], None, Rejects(None), counts))), counts


@pytest.mark.parametrize(
    ("english", "other", "language", "error_text"),
    [
        (
            KOREAN,
            ENGLISH,
            "ko",
            r"100\.0% of 700 texts in en have hardly .* Latn; theirs is Hangul.*swapped",
        ),
        (GERMAN, ENGLISH, "de", r"English words are in 0\.0% of those in en and 100\.0% of those in de.*swapped"),
        (ENGLISH, KOREAN, "kr", r"100\.0% of 700 texts in kr .* Latn; theirs is Hangul\. Check the code"),
        (ENGLISH, GERMAN, "sr", r"100\.0% of 700 texts in sr .* Cyrl; theirs is Latin\. .*name the script .*sr-Latn"),
        (ENGLISH, [*ENGLISH[1:601], *KOREAN[600:]], "ko", r"85\.7% of 700 texts in ko .* Hang; theirs is Latin"),
    ],
)
def test_texts_in_another_language_than_theirs_are_refused_with_their_fraction(
    tmp_path, english, other, language, error_text
):
    with pytest.raises(RequestError, match=f"left .*{error_text}"):
        read(source(tmp_path, english, other, language))
    assert read(source(tmp_path, english, other, language, max_misplaced=1.0))[0] == 700


@pytest.mark.parametrize(
    ("other", "language"),
    [(KOREAN, "ko"), (GERMAN, "de"), (GERMAN, "sr-Latn"), (ENGLISH, "en-x-plain"), (["犬と猫が公園にいる"] * 30, "ja")],
)
def test_texts_in_their_language_pass(tmp_path, other, language, capsys):
    english = ENGLISH[: len(other)]
    assert read(source(tmp_path, english, other, language))[0] == len(other)
    assert "hardly" not in capsys.readouterr().err


def test_few_texts_in_another_language_are_reported_and_in_the_facts_of_the_corpus(tmp_path, capsys):
    """One text in ten of 700 is Korean; names within a sentence, and lines without a letter, are none."""
    english = [
        korean if number % 10 == 0 else f"{line} 한국"
        for number, (line, korean) in enumerate(zip(ENGLISH, KOREAN[1:] + KOREAN[:1], strict=True))
    ]
    english[5] = "1 + 1 = 2"
    _, counts = read(source(tmp_path, english, KOREAN, "ko"))
    assert "10.0% of 699 texts in en have hardly a letter" in capsys.readouterr().err
    assert counts.by_source()[0]["misplaced"] == {"en": pytest.approx(70 / 699)}


def test_columns_of_a_table_are_checked_by_language(tmp_path):
    path = tmp_path / "a.tsv"
    rows = zip(ENGLISH, KOREAN, GERMAN, strict=True)
    path.write_text("en\tde\tko\n" + "".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(RequestError, match=r"100\.0% of 700 texts in de .* theirs is Hangul"):
        read(TranslationColumns(path=str(path), others={"de": "de", "ko": "ko"}))
    assert read(TranslationColumns(path=str(path), others={"de": "ko", "ko": "de"}))[0] == 1400


def test_few_texts_lead_to_no_conclusion():
    check = LanguageCheck(["en", "ko"])
    for _ in range(19):
        check.add(["두 남자", "Two men"])
    check.check("source", 0.2)
    check.add(["두 남자", "Two men"])
    with pytest.raises(RequestError, match="swapped"):
        check.check("source", 0.2)


def test_texts_in_a_language_of_private_use_pass_in_any_script():
    check = LanguageCheck(["en", "qaa"])
    for texts in zip(ENGLISH, KOREAN, strict=True):
        check.add(texts)
    check.check("pairs.tsv", 0.2)
    assert check.misplaced_fractions() == {}
