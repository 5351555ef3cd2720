"""Pairs of all sources, filters and their counts."""

import json
import unicodedata
from pathlib import Path

import pytest
from corpora import aligned, build, items, numbered

from bertrelay.errors import RequestError, WorkError
from students.parallel.pairs import drop_reason
from students.parallel.settings import AlignedFiles, Filters, TranslationColumns


def test_row_aligned_tables_pair_by_row_whatever_lines_their_fields_take(tmp_path):
    (tmp_path / "en.csv").write_text('"one\ntwo",x,1\nthree,y,2\n')
    (tmp_path / "de.csv").write_text('eins zwei,x,1\n"dr\nei",y,2\n')
    source = AlignedFiles(english=str(tmp_path / "en.csv"), other=str(tmp_path / "de.csv"), language="de", header=False)
    assert build(tmp_path, [source]).texts(0, 9) == ["one two", "three", "eins zwei", "dr ei"]


def test_one_table_serves_several_languages(tmp_path):
    (tmp_path / "a.tsv").write_text("id\ten\tgerman\tfr\n1\tyes\tja\toui\n2\tno\tnein\t\n")
    source = TranslationColumns(path=str(tmp_path / "a.tsv"), others={"de": "german", "fr": "fr"})
    corpus = build(tmp_path, [source])
    assert [item[:2] for item in items(corpus)[2:]] == [("ja", "yes"), ("oui", "yes"), ("nein", "no")]
    assert corpus.facts["sources"][1] == {
        "source": str(tmp_path / "a.tsv"), "language": "fr", "pairs": 2, "empty text": 1, "train": 1
    }  # fmt: skip


def test_a_line_that_is_not_utf8_rejects_its_row_and_shifts_no_other(tmp_path):
    source = aligned(tmp_path, "de", numbered("de", range(200)))
    lines = Path(source.english).read_bytes().splitlines()
    lines[2] = b"bro\xffken"
    Path(source.english).write_bytes(b"\n".join(lines))
    corpus = build(tmp_path, [source])
    assert {(item[1], item[0]) for item in items(corpus)[199:]} == set(numbered("de", range(200))) - {
        ("sentence number 2", "de number 2")
    }
    assert corpus.facts["rejects"] == {"not valid UTF-8": 1}
    rejected = json.loads((tmp_path / "cache" / "key" / "rejects.jsonl").read_text())
    assert rejected == {
        "file": source.english,
        "line": 3,
        "reason": "not valid UTF-8",
        "detail": "byte 39 of the file, counted from 0",
    }


def test_too_many_unusable_records_stop_and_filtered_pairs_never_do(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"en": "yes", "de": "ja"}\n' * 50 + '{"en": "yes", "de": 7}\n')
    source = TranslationColumns(path=str(tmp_path / "a.jsonl"), others={"de": "de"})
    with pytest.raises(WorkError, match=r"1 of 51 records.*1 × not text"):
        build(tmp_path, [source])
    assert not (tmp_path / "cache" / "key").exists()
    assert build(tmp_path, [source], max_rejects=0.02).facts["sources"][0]["duplicate"] == 49


@pytest.mark.parametrize(
    ("english", "other", "reason"),
    [
        ("", "Nein", "empty text"),
        ("Yes", "", "empty text"),
        ("a" * 1001, "b" * 1001, "too long"),
        ("a" * 1000, "b" * 1000, None),
        ("a" * 91, "b" * 30, "length ratio"),
        ("a" * 30, "b" * 91, "length ratio"),
        ("a" * 90, "b" * 30, None),
        ("Yes.", "Oui, bien sûr, volontiers!", None),
        ("STRASSE 5", "straße 5", "copy of the source"),
        ("Berlin is big", "Berlin ist groß", None),
        ("The weather is nice today, so let us go to the park", "今日は天気がいいので公園に", None),
        ("a" * 90, "今" * 14, "length ratio"),
        ("a" * 90, "今" * 15, None),
        ("Ok", "Speichern", "too short"),
        ("Sav", "天気", None),
        ("Sav", "天", "too short"),
    ],
)
def test_each_filter_has_its_reason(english, other, reason):
    assert drop_reason(english, other, Filters(min_characters=3)) == reason


def test_wide_characters_are_those_of_unicode():
    for text in [
        "Ein Satz über Füße",
        "天気がいい。ﾊﾝｶｸ",
        "오늘은 날씨가 좋다",
        "Сегодня",
        "ＦＵＬＬ　width",
        "𠀋字",
        "नमस्ते",
    ]:
        width = sum(1 + (unicodedata.east_asian_width(character) in "WF") for character in text)
        exactly, less = Filters(max_length_ratio=100 / width), Filters(max_length_ratio=100 / width - 0.01)
        assert drop_reason("a" * 100, text, exactly) is None
        assert drop_reason("a" * 100, text, less) == "length ratio"


def test_every_pair_is_accounted_for_and_copies_and_duplicates_may_stay(tmp_path):
    pairs = [("Same", "same"), ("", "x"), ("a", ""), ("b " * 600, "c"), ("d", "e"), ("d", " e "), ("f" * 99, "g")]
    corpus = build(tmp_path, [aligned(tmp_path, "de", pairs)])
    (account,) = corpus.facts["sources"]
    reasons = {"copy of the source": 1, "empty text": 2, "too long": 1, "duplicate": 1, "length ratio": 1, "train": 1}
    assert {key: account[key] for key in account if key not in ("source", "language")} == {"pairs": 7, **reasons}
    both = Filters(drop_copies=False, drop_duplicates=False)
    corpus = build(tmp_path, [aligned(tmp_path, "de", [("Same", "Same")] * 2)], filters=both)
    assert items(corpus) == [("Same", "Same", 2), ("Same", "Same", 1), ("Same", "Same", 1)]
    taxi = [("A taxi comes", "Un taxi")]
    sources = [aligned(tmp_path, "es", taxi), aligned(tmp_path, "es", taxi, "more"), aligned(tmp_path, "fr", taxi)]
    corpus = build(tmp_path, sources)
    assert corpus.facts["train"] == {"es": 1, "fr": 1}, "the same in another language is no duplicate"
    assert corpus.facts["sources"][1]["duplicate"] == 1


def test_a_corpus_that_the_filters_empty_is_refused_with_the_counts(tmp_path):
    german, french = numbered("de", range(3)), [("Copy", "copy"), ("Copy", "COPY"), ("", "vide")]
    with pytest.raises(RequestError, match=r"no pair of en and fr .* 2 × copy of the source, 1 × empty text"):
        build(tmp_path, [aligned(tmp_path, "de", german), aligned(tmp_path, "fr", french)])
    with pytest.raises(RequestError, match=r"no pair of en and de .* 3 × dev"):
        build(tmp_path, [aligned(tmp_path, "de", german)], dev_sentences=3)
