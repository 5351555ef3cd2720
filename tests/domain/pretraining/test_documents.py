"""Documents of tables and plain text, and of files and folders of them."""

import gzip
import json

import pandas as pd
import pytest
from document_files import article, citation, faults, medline, packed, read, texts, written

from bertrelay.data.tables import Rejected
from bertrelay.errors import RequestError
from domain.pretraining.documents import NOT_TRAIN, read_all
from domain.pretraining.settings import DocumentSource
from domain.reading import NO_TEXT, TextDocument


def test_rows_are_documents_and_those_that_cannot_be_read_or_have_no_text_are_left_out(tmp_path):
    rows = [{"n": 7, "patient": "p1", "body": "One.\nTwo."}, {"n": 8.0, "patient": float("nan"), "body": "Three."}]
    rows += [{"n": 9, "body": " "}, {"n": 10, "body": 5}, {"n": 11, "body": None}]
    lines = "".join(json.dumps(row) + "\n" for row in rows) + '{"body"\n{"n": 1.5, "body": "Four."}\n'
    items = read(written(tmp_path / "a.jsonl.gz", lines), text="body", id="n", group="patient")
    assert items[:2] == [TextDocument("One.\nTwo.", "7", "p1"), TextDocument("Three.", "8")]
    assert items[2] == items[4] == Rejected(NO_TEXT, is_fault=False)
    unusable = [(item.line, item.reason) for item in items if isinstance(item, Rejected) and item.is_fault]
    assert unusable == [(4, "not text"), (6, "not JSON"), (7, "an id that is neither text nor a whole number")]


@pytest.mark.parametrize("table", [[7, "7.0", 7.0, " 7 "], [7, None, float("nan"), 8]])
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_group_has_one_name_whatever_its_type_and_what_is_missing_is_none(tmp_path, suffix, table):
    if suffix == "jsonl":
        written(
            file := tmp_path / "a.jsonl",
            "".join(json.dumps({"text": text, "g": group}) + "\n" for text, group in zip("wxyz", table, strict=True)),
        )
    else:
        pd.DataFrame({"text": [*"wxyz"], "g": pd.Series(table, dtype=str if " 7 " in table else float)}).to_parquet(
            file := tmp_path / "a.parquet"
        )
    expected = ["7"] * 4 if " 7 " in table else ["7", "", "", "8"]
    assert [item.group for item in read(file, group="g")] == expected


@pytest.mark.parametrize("named", [{}, {"split": "split"}])
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "parquet.gz", "other"])
def test_notes_of_validation_and_test_patients_are_left_out(tmp_path, suffix, named):
    splits = ["train", "validation", "test", "train"]
    subjects = pd.Series([10, 11, 12, None], dtype=object)
    table = pd.DataFrame({"hadm_id": [1, 2, 3, 4], "subject_id": subjects, "text": splits, "split": splits})
    file = tmp_path / f"notes.{suffix}"
    if suffix == "csv":
        table.to_csv(file, index=False)
    elif suffix == "jsonl":
        table.to_json(file, orient="records", lines=True)
    else:
        whole = table.to_parquet()
        file.write_bytes(gzip.compress(whole) if suffix.endswith(".gz") else whole)
        with pytest.raises(RequestError, match=r"is Parquet and is to be read as blocks; give format = 'parquet'"):
            read(file, format="blocks")  # where splits would not be seen
    options = {"format": "parquet"} if suffix == "other" else {}
    assert read(file, id="hadm_id", group="subject_id", **options, **named) == [
        TextDocument("train", "1", "10"),
        Rejected(NOT_TRAIN, is_fault=False),
        Rejected(NOT_TRAIN, is_fault=False),
        TextDocument("train", "4"),
    ]


def test_patients_with_notes_in_train_and_in_another_split_are_refused(tmp_path):
    table = "hadm_id,subject_id,text,split\n1,10,a,train\n2,10.0,b,test\n3,11,c,train\n4,,d,train\n5,,e,test\n"
    with pytest.raises(RequestError, match="the rows of each subject_id in one split, found 1 in train and in another"):
        read(written(tmp_path / "notes.csv", table), group="subject_id")
    assert texts(written(tmp_path / "notes.csv", table)) == ["a", "c", "d"]  # nobody says whose they are


def test_splits_are_found_in_any_record_and_case_and_a_second_column_of_them_is_an_error(tmp_path):
    rows = [{"text": "none"}, {"text": "a", "SPLIT": "train"}, {"text": "b", "Split": "test"}, {"text": "c"}]
    file = written(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert texts(file) == ["a"] and texts(written(tmp_path / "b.jsonl", '{"text": "none"}\n')) == ["none"]
    assert texts(written(tmp_path / "c.CSV.GZ", "text,Split\nx,train\ny,test\n")) == ["x"]
    for options in ({}, {"split": "Split"}):
        with pytest.raises(RequestError, match=r"c\.csv: expected one column 'split' \(in any case\), found several"):
            read(written(tmp_path / "c.csv", "text,split,Split\nx,test,train\n"), **options)


def test_a_blank_line_ends_a_document(tmp_path):
    file = written(tmp_path / "a.txt.gz", "\n\nOne.\nTwo.\n \t\nThree.\n\n\n\nFour.")
    assert texts(file) == ["One.\nTwo.", "Three.", "Four."]
    (tmp_path / "b.txt").write_bytes(b"One.\n\nTwo.\nbro\xffken\n\nThree.\n")
    assert texts(tmp_path / "b.txt") == ["One.", "Three."]
    assert faults(tmp_path / "b.txt") == [(4, "not valid UTF-8")]


def test_a_folder_gives_its_files_by_name_and_passes_by_the_others(tmp_path):
    for name in ("b.txt", "a/x.txt.gz", "c.jsonl"):
        written(tmp_path / name, '{"text": "json"}' if name.endswith("jsonl") else name)
    for name in ("x.md5", ".hidden.txt", "README", ".ipynb_checkpoints/b.txt"):
        written(tmp_path / name, "not to be read")
    assert texts(tmp_path) == ["a/x.txt.gz", "b.txt", "json"]
    written(tmp_path.with_name("elsewhere") / "x.tab", "text\nlinked\n")
    (tmp_path / "z").symlink_to(tmp_path.with_name("elsewhere"))
    assert texts(tmp_path, format="tsv") == ["linked"]
    (tmp_path / "z").unlink()
    assert texts(tmp_path, format="blocks") == ["a/x.txt.gz", "b.txt"]


def test_what_cannot_be_read_as_a_whole_is_refused(tmp_path):
    with pytest.raises(RequestError, match="has no file to read"):
        read(tmp_path)
    with pytest.raises(RequestError, match="there is no file or folder"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(RequestError, match=r"notes\.dat to be read.*give its `format`"):
        read(written(tmp_path / "notes.dat", "x"))
    assert texts(tmp_path / "notes.dat", format="blocks") == ["x"]
    with pytest.raises(RequestError, match=r"a\.xml: expected XML of MEDLINE.*found 'html'"):
        read(written(tmp_path / "a.xml", "<html><body>x</body></html>"))
    with pytest.raises(RequestError, match=r"a\.tar has no file to read; expected names that end in \.xml or \.nxml"):
        read(packed(tmp_path / "a.tar", {"._a.xml": "\0", "a.txt": "x"}))


@pytest.mark.parametrize("name", ["a.xml.gz", "a.tar"])
def test_a_truncated_file_is_reported(tmp_path, name):
    if name == "a.tar":
        file = packed(tmp_path / name, {"1.nxml": article("<p>x</p>").ljust(20_000)})
    else:
        file = written(tmp_path / name, medline(*(citation(n, f"Title {n * n}.") for n in range(5000))))
    file.write_bytes(file.read_bytes()[:9_000])
    with pytest.raises(RequestError, match=rf"{file} is cut off or damaged"):
        read(file)


def test_a_text_given_twice_is_read_once_for_each_group(tmp_path):
    rows = [{"text": "Slept well.", "group": 1}, {"text": "Ate.", "group": 1}, {"text": "Slept well.", "group": 2}]
    content = "".join(json.dumps(row) + "\n" for row in rows)
    source = DocumentSource(path=str(written(tmp_path / "a.jsonl", content * 2)), group="group")
    items = list(read_all([(source, tmp_path / "a.jsonl")], {}))
    assert [(item.text, item.group) for item in items[:3]] == [
        ("Slept well.", "1"),
        ("Ate.", "1"),
        ("Slept well.", "2"),
    ]
    assert items[3:] == [Rejected("a copy of an earlier one", is_fault=False)] * 3
