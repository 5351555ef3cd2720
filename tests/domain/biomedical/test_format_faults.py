"""Files that are not what they should be: each is told with its file and line or id, and what to do; never its text."""

import gzip
import json
from pathlib import Path

import pytest

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError, WorkError
from domain.biomedical.documents import Columns, format_of, read_documents, read_sentences, write_documents
from domain.biomedical.documents.document import Document

SECRET = "Xylophonitis"


def told(path, read=read_documents, **settings):
    """The error of reading a file; it never holds its text."""
    with pytest.raises(RequestError) as caught:
        list(read(path, **settings))
    assert SECRET not in str(caught.value)
    return str(caught.value)


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


# CoNLL


@pytest.mark.parametrize("read", [read_sentences, read_documents])
def test_spaces_for_tabs(tmp_path, read):
    message = told(write(tmp_path / "a.tsv", f"\n{SECRET} B-Disease\nhelps O\n"), read)
    assert "a.tsv, line 2: expected a token and its tag with a tab between them, found no tab" in message
    assert "tr ' ' '\\t'" in message


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (f"a\tO\n{SECRET}\tQ-Disease\n", "line 2: an unknown tag (IOB2 has O, and B, I with a hyphen and a type)"),
        (f"a\tO\n{SECRET}\t{SECRET}\n", "line 2: an unknown tag"),
        (f"a\tO\nb\tB-X\n\n{SECRET}\tI-Disease\n", "line 4: an illegal tag sequence (in IOB2, 1 of 1 tags"),
        (
            f"a\tO\nb\tO\n{SECRET}",
            "line 3: another number of columns (expected 2",
        ),
        (f"a\tx\tO\nb\tO\n{SECRET}\tx\tO", "line 2: another number of columns (expected 3"),
        ("a\tO\n\tB-Disease\n", "line 2: an empty token"),
        ("a\tO\n\x00\tO\n", "line 2: a NUL character"),
    ],
)
def test_lines_that_are_no_token_and_tag(tmp_path, lines, expected):
    path = write(tmp_path / "a.tsv", lines)
    assert expected in told(path, read_sentences)
    assert expected in told(path)


def test_a_column_that_is_not_there(tmp_path):
    message = told(write(tmp_path / "a.tsv", "a\tO\n"), read_sentences, columns=Columns(0, 3))
    assert "line 1: expected columns 0 and 3, found 2 columns, 0 to 1" in message


def test_an_illegal_sentence_is_counted_and_the_others_are_read(tmp_path):
    path = write(tmp_path / "a.tsv", "a\tI-X\n\nb\tO\n\nc\tB-X\nd\tI-X\n")
    with Rejects(tmp_path / "rejects.jsonl", limit=1) as rejects:
        found = list(read_sentences(path, rejects=rejects))
    assert [sentence.line for sentence in found] == [3, 5]
    assert json.loads((tmp_path / "rejects.jsonl").read_text()) == {
        "file": str(path), "line": 1, "reason": "an illegal tag sequence",
        "detail": "in IOB2, 1 of 1 tags of the sentence are not allowed where they are",
    }  # fmt: skip


def test_a_document_with_an_illegal_sentence_is_none(tmp_path):
    path = write(tmp_path / "a.tsv", "-DOCSTART-\tO\n\na\tI-X\n\nb\tB-X\n\n-DOCSTART-\tO\n\nc\tO\n")
    with Rejects(None, limit=1) as rejects:
        assert [each.id for each in read_documents(path, rejects=rejects)] == ["a-2"]
    assert rejects.counts == {"an illegal tag sequence": 1}


def test_too_many_rejects_stop_the_work(tmp_path):
    path = write(tmp_path / "a.tsv", "a\tI-X\n\nb\tB-X\n")
    with pytest.raises(WorkError, match="1 of 2 records cannot be used"), Rejects(None) as rejects:
        for _ in read_sentences(path, rejects=rejects):
            pass


@pytest.mark.parametrize("read", [read_sentences, read_documents])
def test_rejects_without_a_block_list_and_limit_too(tmp_path, read, capsys):
    rows = ["a\tI-X\n", *("b\tB-X\n" for _ in range(199))]
    path, listed = write(tmp_path / "a.tsv", "\n".join(rows)), tmp_path / "rejects.jsonl"
    listed.write_text("of before")
    assert len(list(read(path, rejects=Rejects(str(listed))))) == 199
    assert [json.loads(line)["line"] for line in listed.open()] == [1]
    assert "left out 1 of 200 records, which cannot be used" in capsys.readouterr().err
    path.write_text("\n".join(rows[:99]))
    with pytest.raises(WorkError, match=r"1 of 99 records cannot be used, more than the 1\.00% allowed"):
        list(read(path, rejects=Rejects(listed)))
    assert len(listed.read_text().splitlines()) == 1
    list(read(write(path, "b\tB-X\n"), rejects=Rejects(listed)))
    assert listed.read_text() == ""


def test_rejects_without_a_block_count_what_is_written(tmp_path):
    documents = [Document(str(number), "a\0" if number == 3 else "a") for number in range(100)]
    write_documents(tmp_path / "a.pubtator", documents, rejects=Rejects(tmp_path / "rejects.jsonl"))
    assert json.loads((tmp_path / "rejects.jsonl").read_text())["reason"] == "NUL in the text"
    with pytest.raises(WorkError, match="1 of 50 records"):
        write_documents(tmp_path / "b.pubtator", documents[:50], rejects=Rejects(tmp_path / "rejects.jsonl"))
    assert not (tmp_path / "b.pubtator").exists()


# PubTator


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"1|t|{SECRET}\n", "line 1: no abstract line (expected id|a|abstract after the title"),
        (f"1|a|{SECRET}\n", "line 1: no title line"),
        (f"1|t|{SECRET}\n2|a|b\n", "line 1: no abstract line"),
        (f"1|t|{SECRET}\n1|a|b\n1\t0\t12\t{SECRET}", "annotation with too few fields (line 3: expected id, start, end"),
        (f"1|t|{SECRET}\n1|a|b\n2\t0\t12\t{SECRET}\tX", "an annotation of another document (line 3"),
        (
            f"1|t|{SECRET}\n1|a|b\n1\t1\t13\t{SECRET}\tX",
            "whose text is not at its offsets (1 of 1",
        ),
        (f"1|t|{SECRET}\n1|a|b\n1\t9\t99\t{SECRET}\tX", "with offsets that cannot be (1 of 1 entities, the first at 9"),
        (f"1|t|{SECRET}\n1|a|b\n1\t-3\t9\t{SECRET}\tX", "with offsets that cannot be (line 3: expected id, start, end"),
        (f"1|t|{SECRET}\n1|a|b\n1\t0.\t12\t{SECRET}\tX", "with offsets that cannot be (line 3: expected"),
        (f"1|t|{SECRET}\n1|a|b\n1\t0\t12.\t{SECRET}\tX", "with offsets that cannot be (line 3: expected"),
        (f"1|t|{SECRET}\n1|a|b\n1\t\t12\t{SECRET}\tX", "with offsets that cannot be (line 3: expected"),
        (f"1|t|{SECRET}\n1|a|b\n1\t0\t12\t{SECRET}\t\tD1", "an entity without a type (line 3: expected"),
    ],
)
def test_pubtator_that_is_none(tmp_path, text, expected):
    message = told(write(tmp_path / "a.pubtator", text))
    assert expected in message
    assert "a.pubtator, line 1" in message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.pubtator", "1|t|a\n1|a|b\n\n7|t|c\n7|a|d\n\n7|t|e\n7|a|f\n"),
        ("a.jsonl", '{"id": 1, "text": "a"}\n\n\n{"id": "7", "text": "b"}\n\n\n{"id": 7, "text": "c"}\n'),
    ],
)
def test_two_documents_with_one_id(tmp_path, name, text):
    path = write(tmp_path / name, text)
    assert f"{name}, line 7, record 7: an id that another document has (the first with it is in" in told(path)
    assert len(list(read_documents(path, unique=False))) == 3


# JSON


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f'{{"text": "{SECRET}', "line 2: not JSON (is the file cut off here?)"),
        (f'["{SECRET}"]', "line 2: JSON of another shape (it: "),
        ('{"id": 3}', "text: Field required"),
        (f'{{"text": ["{SECRET}"]}}', "text: Input should be a valid string"),
        (
            '{"text": "a", "entities": [{"start": "0", "end": 1, "type": "X"}]}',
            "entities.0.start: Input should",
        ),
        ('{"text": "a", "entities": [{"start": 0, "end": true, "type": "X"}]}', "entities.0.end: Input should be"),
        ('{"text": "a", "entities": {"start": 0}}', "entities: Input should be a valid"),
        (
            f'{{"text": "a", "entities": [{{"start": 0, "end": 1, "type": "X", "text": "{SECRET}"}}]}}',
            "is not at its offsets",
        ),
        ('{"text": "\\ud800"}', "line 2: not JSON"),
        ('{"text": "abc", "sentences": [[[5, 9]]]}', "line 2: tokens with offsets that cannot be (the first at 5 to 9"),
        ('{"text": "abc", "sentences": [[[-1, 50]]]}', "tokens with offsets that cannot be (the first at -1 to 50"),
        ('{"text": "abc", "sentences": [[[9, 1]]]}', "tokens with offsets that cannot be (the first at 9 to 1"),
        ('{"text": "abc", "sentences": [[[0, 0]]]}', "tokens with offsets that cannot be (the first at 0 to 0"),
        (
            '{"text": "abc", "sentences": [[[0, 2]], [[1, 3]]]}',
            "tokens with offsets that cannot be (the first at 1 to 3",
        ),
        (
            '{"text": "abc", "passages": [{"start": 0, "end": 4}]}',
            "passages with offsets that cannot be (expected start",
        ),
        ('{"text": "abc", "passages": [{"start": 2, "end": 1}]}', "passages with offsets that cannot be"),
    ],
)
def test_jsonl_of_another_shape(tmp_path, line, expected):
    message = told(write(tmp_path / "a.jsonl", f'{{"id": "1", "text": ""}}\n{line}\n'))
    assert "a.jsonl, line 2" in message
    assert expected in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f'{{"source": "{SECRET}"}}', "line 1: expected BioC JSON"),
        ("<?xml version='1.0'?><collection/>", "This is XML"),
        (
            '{"documents": [\n{"id": "1", "passages": []},\n{"id": "2", "passages": [',
            "line 3: the JSON value",
        ),
        ('{"documents": [\n{"id": "1", "passages": []}', "line 2: the JSON value"),
        ('{"documents": [\n{"id": "1", "passages": []} {"id": 1}', "line 2: the JSON value"),
        ('{"documents": [\n{"id": "1"}]}', "line 2, record 1: JSON of another shape (passages: Field required)"),
        (
            '{"documents": [\n{"id": "1", "passages": [{"offset": "0"}]}]}',
            "passages.0.offset: Input",
        ),
        (
            '{"documents": [{"id": "1", "passages": [{"offset": 0, "text": "abc"}, {"offset": 2, "text": "d"}]}]}',
            "passages that do not follow one another (the one at 2 begins 1 before the end",
        ),
        (
            '{"documents": [{"id": "1", "passages": [{"offset": 0, "text": "abc", "annotations": '
            '[{"infons": {}, "locations": [{"offset": 0, "length": 1}]}]}]}]}',
            "an entity without a type",
        ),
    ],
)
def test_bioc_of_another_shape(tmp_path, text, expected):
    message = told(write(tmp_path / "a.json", text))
    assert "a.json, line" in message
    assert expected in message


def test_a_document_on_a_line_with_all_others_is_told_by_its_id(tmp_path):
    documents = [{"id": number, "passages": [{"offset": 0, "text": "abc"}]} for number in range(5)]
    documents[2]["passages"][0]["offset"] = "0"
    documents[3]["id"] = "\ud800"
    documents[4]["passages"].append({"offset": 1, "text": "d"})
    path = write(tmp_path / "a.json", json.dumps({"documents": documents}))
    assert "a.json, line 1, record 2: JSON of another shape" in told(path)
    with Rejects(tmp_path / "rejects.jsonl", limit=1) as rejects:
        assert [document.id for document in read_documents(path, rejects=rejects)] == ["0", "1"]
    assert [json.loads(line)["record"] for line in (tmp_path / "rejects.jsonl").open()] == ["2", "?", "4"]


# brat and files


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (f"T1\tX 0 3\tabc\nT2\tX 0 3\t{SECRET}", "whose text is not at"),
        ("T1\tX 0 3\tabc\nT2\tX 0", "1.ann, line 2: a line that is no annotation (expected T1, type, start and end"),
        ("T1\tX 0 3\tabc\nT1\tX 0 3\tabc", "1.ann, line 2: an entity's number given twice"),
        (f"{SECRET}", "1.ann, line 1: a line that is no annotation"),
    ],
)
def test_brat_that_is_none(tmp_path, lines, expected):
    write(tmp_path / "1.txt", "abc")
    write(tmp_path / "1.ann", lines)
    assert expected in told(tmp_path)


def test_annotations_without_a_text(tmp_path):
    write(tmp_path / "1.ann", "")
    assert "1.txt" in told(tmp_path)


@pytest.mark.parametrize("name", ["a.tsv", "a.pubtator", "a.jsonl", "a.json"])
def test_a_packed_file_that_is_cut_off(tmp_path, name):
    content = {"a.tsv": "a\tO\n\n", "a.pubtator": "1|t|a\n1|a|b\n\n", "a.jsonl": '{"text": "a"}\n', "a.json": " "}[name]
    packed = gzip.compress((content * 3000).encode())
    (tmp_path / f"{name}.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(RequestError, match="cut off"):
        list(read_documents(tmp_path / f"{name}.gz", unique=False))


@pytest.mark.parametrize("name", ["a.tsv", "a.pubtator", "a.jsonl", "a.json", "a.txt"])
def test_bytes_that_are_no_text(tmp_path, name):
    (tmp_path / name).write_bytes(b"\xff\xfe\xfa\xfb" * 10)
    with pytest.raises(RequestError, match=r"UTF-8|UTF-16"):
        list(read_documents(tmp_path / name))


def test_a_file_that_is_not_there(tmp_path):
    assert "there is no file or folder" in told(tmp_path / "none.jsonl")


def test_a_suffix_of_no_format(tmp_path):
    with pytest.raises(RequestError, match="expected a suffix that implies the format"):
        format_of(write(tmp_path / "a.xyz", ""))


def test_a_format_that_is_only_written(tmp_path):
    assert "html is only written" in told(write(tmp_path / "a.html", ""))


def test_rejects_keep_what_was_found_and_what_to_do(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"txt": "a"}\n')
    with Rejects(tmp_path / "rejects.jsonl", limit=1) as rejects:
        assert not list(read_documents(path, rejects=rejects))
    (row,) = [json.loads(line) for line in (tmp_path / "rejects.jsonl").open()]
    assert (row["line"], row["detail"]) == (1, "text: Field required")


@pytest.mark.parametrize(("end", "is_told"), [("B-Dis", True), ("B-Disease\n", False), ("B-Disease\r\n", False)])
def test_a_file_that_ends_in_the_middle_of_a_line_is_told(tmp_path, capsys, end, is_told):
    for name, pack in (("a.tsv", bytes), ("a.tsv.gz", gzip.compress)):
        (tmp_path / name).write_bytes(pack(f"no\tO\n\ngout\t{end}".encode()))
        assert len(list(read_documents(tmp_path / name))) == 2
        assert (f"{name}, line 3: the last line has no end" in capsys.readouterr().err) == is_told


def test_spaces_in_the_place_of_tabs_are_told_on_any_line(tmp_path):
    assert "line 2: another number of columns" in told(write(tmp_path / "a.tsv", "no\tO\ngout B-X\n"))
    assert "put tabs for its spaces" in told(tmp_path / "a.tsv")
