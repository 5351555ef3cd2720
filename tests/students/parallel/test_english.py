"""English sentences without translations: which are trained on, by hand, and from files of every format."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import aligned, build, items, numbered
from pydantic import ValidationError

from bertrelay.data.arrow import mask_of
from bertrelay.errors import RequestError, WorkError
from students.parallel.corpus import restrict_corpus
from students.parallel.english import near_digest
from students.parallel.settings import EnglishSource

PAIRS = [("A dog.", "Ein Hund."), ("A cat.", "Eine Katze."), ("A dog.", "Der Hund."), ("A bird.", "Ein Vogel.")]


def lines(folder, *sentences, name="english.txt", **more):
    (folder / name).write_text("".join(f"{sentence}\n" for sentence in sentences), encoding="utf-8")
    return {"path": str(folder / name), **more}


def test_each_sentence_is_one_item_and_what_is_left_out_is_counted(tmp_path):
    sentences = ["A  fish.", "A cat.", "A fish.", "A FISH!", "", "A worm 1.", "a BIRD.", "A worm 22.", "A cow."]
    second = ["A cow.", "A horse.", "x" * 90]
    english = [lines(tmp_path, *sentences), lines(tmp_path, *second, name="more.txt")]
    dev = [aligned(tmp_path, "de", [("A bird.", "Ein Vogel."), ("A mouse.", "A horse.")], name="dev")]
    corpus = build(tmp_path, [aligned(tmp_path, "de", PAIRS)], english=english, dev=dev, filters={"max_characters": 50})
    assert items(corpus) == [
        *[("A dog.", "A dog.", 2), ("A cat.", "A cat.", 1)],
        *[(sentence, sentence, 1) for sentence in ("A fish.", "A worm 1.", "A cow.")],
        *[("Ein Hund.", "A dog.", 1), ("Eine Katze.", "A cat.", 1), ("Der Hund.", "A dog.", 1)],
    ]
    assert corpus.english_sources.tolist() == [0, 0, 0] and corpus.translated == 2
    left_out = {"duplicate": 1, "in the dev split": 1, "in the parallel text": 1, "near duplicate": 2, "empty text": 1}
    assert corpus.facts["english_sources"] == [
        {"source": english[0]["path"], "sentences": 9, "train": 3, **left_out},
        {"source": english[1]["path"], "sentences": 3, "duplicate": 1, "in the dev split": 1, "too long": 1},
    ]
    assert (corpus.facts["english"], corpus.facts["english_without_translations"]) == (2, 3)
    assert corpus.facts["items"] == len(corpus) == 8


def test_sentences_that_are_drawn_for_dev_are_not_trained_on_either(tmp_path):
    english = [lines(tmp_path, *(f"SENTENCE number {n}" for n in range(50)), "And another one")]
    corpus = build(tmp_path, [aligned(tmp_path, "de", numbered("de", range(40)))], english=english, dev_sentences=10)
    assert len(corpus.dev["de"].english) == 10
    trained = {text.casefold() for text in corpus.english.read(0, len(corpus.english))}
    assert not trained.intersection(text.casefold() for text in corpus.dev["de"].english)


def test_near_duplicates_have_the_same_letters():
    assert near_digest("Room 12, please!") == near_digest("room  7 please")
    assert near_digest("Room 12") != near_digest("Rooms 12")
    assert near_digest("1 + 1 = 2") != near_digest("1 + 2 = 3")  # without letters all counts


@pytest.mark.parametrize("form", ["lines", "lines.gz", "tsv", "csv", "jsonl", "parquet"])
def test_sentences_come_from_lines_and_from_a_column_of_any_table(tmp_path, form):
    sentences = ["A fish swims.", "A horse, perhaps."]
    path = tmp_path / f"english.{form.replace('lines', 'txt')}"
    if form.startswith("lines"):
        data = "".join(f"{sentence}\n" for sentence in sentences).encode()
        path.write_bytes(gzip.compress(data) if form.endswith("gz") else data)
        source = {"path": str(path)}
    elif form == "parquet":
        pq.write_table(pa.table({"kind": ["a", "b"], "english": sentences}), path)
        source = {"path": str(path), "column": "english"}
    elif form == "jsonl":
        path.write_text("".join(json.dumps({"id": 1, "text": sentence}) + "\n" for sentence in sentences))
        source = {"path": str(path)}
    else:
        rows = [f"a\t{sentence}" if form == "tsv" else f'a,"{sentence}"' for sentence in sentences]
        path.write_text("".join(f"{row}\n" for row in rows))
        source = {"path": str(path), "column": 1, "header": False}
    corpus = build(tmp_path, [aligned(tmp_path, "de", PAIRS)], english=[source])
    assert corpus.english.read(corpus.translated, len(corpus.english)) == sentences


def test_a_limited_source_keeps_the_same_sentences_whatever_their_order(tmp_path):
    sentences = [f"Word {'abcdefghij'[n % 10] * (1 + n // 10)} is here" for n in range(100)]
    chosen = []
    for order in (sentences, sentences[::-1]):
        english = [lines(tmp_path, *order, max_sentences=30)]
        corpus = build(tmp_path, [aligned(tmp_path, "de", PAIRS)], english=english)
        chosen.append(set(corpus.english.read(corpus.translated, len(corpus.english))))
        assert corpus.facts["english_sources"][0]["beyond max_sentences"] == 70
    assert chosen[0] == chosen[1] and len(chosen[0]) == 30


def test_sources_that_are_no_english_and_records_that_are_no_text_are_refused(tmp_path):
    parallel = [aligned(tmp_path, "de", PAIRS)]
    with pytest.raises(RequestError, match=r"100\.0% of 30 texts in en have hardly a letter of its script, Latn"):
        build(tmp_path, parallel, english=[lines(tmp_path, *(f"Это предложение {n}" for n in range(30)))])
    with pytest.raises(RequestError, match="english: expected sentences to train on, found none that is left of 1"):
        build(tmp_path, parallel, english=[lines(tmp_path, "A dog.")])
    (tmp_path / "broken.txt").write_bytes(b"A fish.\nA \xff horse.\n")
    broken = [{"path": str(tmp_path / "broken.txt")}]
    with pytest.raises(WorkError, match=r"1 of 6 records cannot be used.*broken\.txt, line 2"):
        build(tmp_path, parallel, english=broken, max_rejects=0.1)
    assert len(build(tmp_path, parallel, english=broken, max_rejects=0.2).english_sources) == 1


def test_wrong_settings_of_a_source_are_named():
    for wrong, message in (({"weight": 0.0}, "weight"), ({"max_sentences": 0}, "max_sentences"), ({}, "`path`")):
        with pytest.raises(ValidationError, match=message):
            EnglishSource.model_validate({**({"path": "a.txt"} if wrong else {}), **wrong})


def test_a_restricted_corpus_has_the_chosen_english_and_its_translations(tmp_path):
    (tmp_path / "kept.txt").write_text("ein Satz\n")
    corpus = build(
        tmp_path,
        [aligned(tmp_path, "de", PAIRS), aligned(tmp_path, "fr", [("A cat.", "Un chat.")])],
        english=[lines(tmp_path, "A fish.", "A cow."), lines(tmp_path, "A horse.", name="more.txt")],
        retained=[{"path": str(tmp_path / "kept.txt")}],
    )
    assert corpus.english.read(0, 9) == ["A dog.", "A cat.", "A bird.", "A fish.", "A cow.", "A horse."]
    part = restrict_corpus(corpus, mask_of(np.array([1, 2, 4, 5]), 6), tmp_path / "part")
    assert items(part)[:-1] == [
        *[("A cat.", "A cat.", 2), ("A bird.", "A bird.", 1), ("A cow.", "A cow.", 1), ("A horse.", "A horse.", 1)],
        *[("Eine Katze.", "A cat.", 1), ("Ein Vogel.", "A bird.", 1), ("Un chat.", "A cat.", 1)],
    ]
    assert part.texts(0, len(part))[-1] == "ein Satz" and part.english_sources.tolist() == [0, 1]
    assert (part.translated, part.taught, len(part)) == (2, 7, 8)
