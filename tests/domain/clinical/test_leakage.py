"""Planted leaks are reported; `test_privacy.py` checks that neither texts nor identifiers are shown."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertrelay.errors import RequestError, WorkError
from domain.clinical.leakage import find_split_leakage, jaccard, run, shingles_of
from domain.clinical.settings import AuditSettings

WORDS = [f"word{number}" for number in range(3_000)]
SPLITS = ("train", "validation", "test")


def texts(count, seed=0, words=120):
    drawing = np.random.default_rng(seed)
    return [" ".join(drawing.choice(WORDS, words)) for _ in range(count)]


def changed(text, words, seed=0):
    """`text` with so many of its words replaced, each far from the others."""
    replaced = text.split()
    for position in np.linspace(10, len(replaced) - 10, words).astype(int):
        replaced[position] = f"other{seed}"
    return " ".join(replaced)


@pytest.fixture
def notes():
    """Thirty notes of thirty subjects, ten in each split."""
    return {
        "hadm_id": [str(900_000 + number) for number in range(30)],
        "subject_id": [str(700_000 + number) for number in range(30)],
        "text": texts(30),
        "split": [SPLITS[number // 10] for number in range(30)],
    }


@pytest.fixture
def look(tmp_path):
    def write_and_look(*tables, **options):
        files = [str(tmp_path / f"notes{number}.parquet") for number in range(len(tables))]
        for file, table in zip(files, tables, strict=True):
            pq.write_table(pa.table(table), file)
        return {finding.check: finding for finding in find_split_leakage(files, **options)}

    return write_and_look


def levels(findings):
    return {name: (finding.severity, finding.total) for name, finding in findings.items()}


def test_where_nothing_is_shared_all_is_good(look, notes):
    assert levels(look(notes)) == {
        "shared_subjects": ("good", 0),
        "shared_admissions": ("good", 0),
        "shared_texts": ("good", 0),
        "near_duplicates": ("good", 0),
    }


def test_subjects_of_two_splits_are_found_with_their_rows(look, notes):
    notes["subject_id"][12] = notes["subject_id"][3]
    notes["subject_id"][25] = notes["subject_id"][3]
    notes["subject_id"][5] = notes["subject_id"][4]  # within train
    finding = look(notes)["shared_subjects"]
    assert (finding.severity, finding.total) == ("fail", 1)
    assert sorted((row.kind, row.line, row.group) for row in finding.places) == [
        ("subject", 4, 1), ("subject", 13, 1), ("subject", 26, 1),
    ]  # fmt: skip


def test_an_id_is_the_same_as_text_and_as_number_in_another_file(look, notes):
    cohort = {"subject_id": pa.array([700_003.0, None]), "hadm_id": pa.array([900_003, 1]), "split": ["test", "test"]}
    for rename in (str.lower, str.upper):
        findings = look(notes, {rename(name): column for name, column in cohort.items()})
        assert levels(findings)["shared_subjects"] == levels(findings)["shared_admissions"] == ("fail", 1)


def test_equal_texts_are_found_whatever_their_white_space(look, notes):
    notes["text"][11] = notes["text"][1].replace(" ", "\n  ").upper()
    notes["text"][2] = notes["text"][1]
    findings = levels(look(notes))
    assert findings["shared_texts"] == ("fail", 1)
    assert findings["near_duplicates"] == ("good", 0)


def test_near_duplicates_of_two_splits_are_found_and_others_are_not(look, notes):
    train = texts(300, seed=1)
    planted = {"text": train + [changed(text, 2, seed) for seed, text in enumerate(train)]}
    assert levels(look(planted | {"split": ["train"] * 300 + ["test"] * 300}))["near_duplicates"] == ("warn", 600)
    notes["text"][11] = changed(notes["text"][1], 2)  # ten of some 120 shingles
    notes["text"][22] = changed(notes["text"][2], 3)  # fifteen
    notes["text"][23] = changed(notes["text"][5], 12)  # half of them
    notes["text"][4] = changed(notes["text"][3], 1)  # within train
    assert levels(look(notes))["near_duplicates"] == ("warn", 2)
    assert levels(look(notes, near=0.7))["near_duplicates"] == ("warn", 4)
    assert levels(look(notes, near=0.9))["near_duplicates"] == ("good", 0)


def test_near_duplicates_are_those_of_brute_force(look):
    """One of 900 pairs of 0.77, the least similar ones above the limit, is expected to be missed."""
    train = texts(150, seed=3, words=80)
    test = [changed(text, number % 6 + 1, number) for number, text in enumerate(train)]
    shingles = [[shingles_of(text) for text in half] for half in (train, test)]
    similar = {
        (row, split) for row, one in enumerate(shingles[0]) for other in shingles[1] if jaccard(one, other) >= 0.7
        for split in ("train", "test")
    }  # fmt: skip
    findings = look({"text": train + test, "split": ["train"] * 150 + ["test"] * 150}, near=0.7)
    assert len(similar) >= 100
    assert len(similar) - 2 <= findings["near_duplicates"].total <= len(similar)


def test_near_duplicates_are_found_beside_many_texts_of_one_template(look):
    template, ends = texts(1)[0], texts(400, seed=1, words=40)
    train, test = ([f"{template} {end}" for end in half] for half in (ends[:200], ends[200:]))
    shingled = [shingles_of(text) for text in (train[0], test[0])]
    assert 0.5 < jaccard(*shingled) < 0.7
    test[150:] = [changed(text, 2, number) for number, text in enumerate(train[150:])]
    finding = look({"text": train + test, "split": ["train"] * 200 + ["test"] * 200})["near_duplicates"]
    assert finding.total == 100


def test_short_texts_are_not_compared_and_counted(look, notes):
    notes["text"][1] = notes["text"][11] = "No acute process."
    finding = look(notes)["near_duplicates"]
    assert finding.total == 0 and "2 texts of fewer than 20 words were not compared" in finding.summary


def test_overlap_is_the_jaccard_index_of_runs_of_five_words():
    first, second = list("abcdefgh"), list("abcdefgx")
    runs = [{tuple(words[start : start + 5]) for start in range(4)} for words in (first, second)]
    expected = len(runs[0] & runs[1]) / len(runs[0] | runs[1])
    assert jaccard(shingles_of(" ".join(first)), shingles_of(" ".join(second))) == expected == 3 / 5


def test_a_run_stops_at_a_leak_unless_it_is_only_to_report(tmp_path, context, notes):
    notes["subject_id"][12] = notes["subject_id"][3]
    file = tmp_path / "notes.parquet"
    pq.write_table(pa.table(notes), file)
    with pytest.raises(
        WorkError, match=r"subjects in two splits or more: 1, such as .*, row 4 and .*, row 13.*leaks = \"report\""
    ):
        run(AuditSettings(files=[str(file)]), context)
    metrics = run(AuditSettings(files=[str(file)], leaks="report"), context)
    assert metrics == {"shared_subjects": 1, "shared_admissions": 0, "shared_texts": 0, "near_duplicates": 0}
    written = json.loads((context.output / "audit.json").read_text())
    assert written["severity"] == written["findings"][0]["severity"] == "fail"
    assert written["findings"][0] == {
        "check": "shared_subjects",
        "severity": "fail",
        "summary": "subjects in two splits or more: 1",
        "counts": {"count": 1},
        "places": [{"kind": "subject", "file": str(file), "line": row, "group": 1} for row in (4, 13)],
    }


def test_files_that_cannot_be_checked_are_reported(tmp_path, look):
    (tmp_path / "no.parquet").write_text("no parquet")
    for file, message in ((tmp_path / "none.parquet", "none.parquet"), (tmp_path / "no.parquet", "cannot be read")):
        with pytest.raises(RequestError, match=message):
            find_split_leakage([file])
    with pytest.raises(RequestError, match="expected a column split"):
        look({"text": ["x"]})
    text = pa.array([], pa.string())
    with pytest.raises(RequestError, match="has no records"):
        look({"text": text, "split": text})
    for column, value, fault in (
        ("hadm_id", 1.5, "an id that is neither text nor a whole number"),
        ("subject_id", b"x", "an id that is neither text nor a whole number"),
        ("text", 7, "something other than text"),
        ("split", None, "none"),
    ):
        with pytest.raises(RequestError, match=rf"row 1: expected {column} as text, found {fault}\. Give cohort"):
            look({"split": ["train"], "text": ["x"], column: [value]})
    assert look({"split": ["train"], "text": [float("nan")]})["near_duplicates"].total == 0
