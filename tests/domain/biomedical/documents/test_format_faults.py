"""Faults of files are reported with file, line or id and what to do, never with the text of a file."""

import gzip
import json

import pytest

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError, WorkError
from bertrelay.privacy import sensitive_data
from domain.biomedical.documents import json_stream, soundness
from domain.biomedical.documents.conll import Columns, sentence_rows
from domain.biomedical.documents.document import Document
from domain.biomedical.documents.formats import format_of, read_documents, write_documents

SECRET = "Xylophonitis"
TITLE = f"1|t|{SECRET}\n1|a|b\n"
IMPOSSIBLE, TOKENS, PASSAGES = (f"{what} with offsets that cannot be" for what in ("an entity", "tokens", "passages"))


def entity(**values):
    return '{"text": "a", "entities": [' + json.dumps({"start": 0, "end": 1, "type": "X", **values}) + "]}"


def passages(*listed):
    return json.dumps({"documents": [{"id": "1", "passages": listed}]})


def bioc_entity(offset, **infons):
    return {"infons": {"type": "X", **infons}, "locations": [{"offset": offset, "length": 1}]}


FAULTS = {
    "a.tsv": [
        (f"\n{SECRET} B-Disease\nhelps O\n", "line 2: expected a token and its tag with a tab between them, found no"),
        ("no\tO\ngout B-X\n", "line 2: another number of columns (expected 2 columns with tabs between them, found 1;"),
        (f"a\tO\n{SECRET}\t{SECRET}\n", "line 2: an unknown tag"),
        (f"a\tO\n{SECRET}\tB-nan\n", "line 2: an entity without a type"),
        (f"a\tO\n{SECRET}\tQ-Disease\n", "line 2: an unknown tag (IOB2 has O, and B, I with a hyphen and a type)"),
        ("a\tB-X\nb\tI-X\n\n" * 3 + "q\tE-X", "line 10: an unknown tag (IOB2 has"),
        (f"a\tO\nb\tB-X\n\n{SECRET}\tI-Disease\n", "line 4: an illegal tag sequence (in IOB2, 1 of 1 tags"),
        (f"a\tO\nb\tO\n{SECRET}", "line 3: another number of columns (expected 2"),
        (f"a\tx\tO\nb\tO\n{SECRET}\tx\tO", "line 2: another number of columns (expected 3"),
        ("a\tO\n\tB-Disease\n", "line 2: an empty token"),
        ("a\tO\n\x00\tO\n", "line 2: a NUL character"),
    ],
    "a.pubtator": [
        (f"1|t|{SECRET}\n", "line 1: no abstract line (expected id|a|abstract after the title"),
        (f"1|a|{SECRET}\n", "line 1: no title line"),
        (f"{TITLE}1\t0\t12\t{SECRET}", "line 1: an annotation with too few fields (line 3: expected id, start, end"),
        (f"{TITLE}2\t0\t12\t{SECRET}\tX", "line 1: an annotation of another document (line 3"),
        (f"{TITLE}1|k|{SECRET}", "line 1: a line that is neither title, abstract nor annotation (line 3"),
        (f"{TITLE}{SECRET}", "line 1: a line that is neither title, abstract nor annotation (line 3"),
        (f"{TITLE}\n2\t0\t12\t{SECRET}\tX", "line 1: an annotation of another document (line 4"),
        (f"{TITLE}1\t2\t12\t{SECRET}\tX \tD1", "line 1: a tag or type with a stray space (that of the entity at 2"),
        (f"{TITLE}1\t1\t13\t{SECRET}\tX", "line 3, record 1: an entity whose text is not at its offsets (1 of 1"),
        (f"{TITLE}1\t9\t99\t{SECRET}\tX", f"{IMPOSSIBLE} (1 of 1 entities, the first at 9"),
        (f"{TITLE}1\t0\t{'9' * 5000}\t{SECRET}\tX", f"{IMPOSSIBLE} (line 3: expected"),
        (f"{TITLE}1\t-3\t9\t{SECRET}\tX", f"line 3, record 1: {IMPOSSIBLE} (1 of 1 entities, the first at -3"),
        (f"{TITLE}1\t0\t12\t{SECRET}\t\tD1", "line 1: an entity without a type (line 3: expected"),
        ("1|t|a\n1|a|b\n\n7|t|c\n7|a|d\n\n7|t|e\n7|a|f\n", "line 7, record 7: an id that another document has"),
    ],
    "a.jsonl": [
        (f'{{"text": "{SECRET}', "line 1: not JSON (is the file cut off here?)"),
        (f'\n["{SECRET}"]', "line 2: JSON of another shape (it: "),
        ('{"txt": "a"}', "line 1: JSON of another shape (text: Field required)"),
        (f'{{"text": ["{SECRET}"]}}', "text: Input should be a valid string"),
        (entity(start="0"), "entities.0.start: Input should"),
        (entity(type="NaN"), "line 1: an entity without a type"),
        (entity(text=SECRET), "is not at its offsets"),
        (entity(confidence=95), "entities.0.confidence: Input should be less than or equal to 1"),
        ('{"text": "\\udc00"}', "line 1: not valid Unicode (half of a surrogate pair"),
        ('{"text": "a",}', "line 1: not JSON (trailing comma at line 1"),
        (entity(type="X "), "line 1: a tag or type with a stray space"),
        ('{"text": "abc", "denotations": [{"span": {"begin": 0, "end": 1}}]}', "another shape (found `denotations`;"),
        ('{"text": "abc", "ner": [[0, 1, "X"]]}', "entities of another shape (found `ner`; expected"),
        ('{"text": "abc", "sentences": [[[-1, 50]]]}', f"{TOKENS} (the first at -1 to 50"),
        ('{"text": "abc", "sentences": [[[0, 2]], [[1, 3]]]}', f"{TOKENS} (the first at 1 to 3"),
        ('{"text": "abc", "passages": [{"start": 0, "end": 4}]}', f"{PASSAGES} (expected start"),
        (f'{{"text": "abc", "label": [[0, 1, "{SECRET}"]]}}', "entities of another shape (found `label`; expected"),
        ('{"text": "abc", "ents": [{"start": 0, "end": 1, "label": "X"}]}', "entities of another shape (found `ents`"),
        ('{"text": "abc", "spans": [{"start": 0, "end": 1}]}', "entities of another shape (found `spans`"),
        ('{"id": "7", "text": "a"}\n\n{"id": 7, "text": "c"}\n', "line 3, record 7: an id that another document has"),
    ],
    "a.json": [
        (f'{{"source": "{SECRET}"}}', "line 1: expected BioC JSON"),
        (f'"{SECRET}"', "`ner tag --input-format`"),
        ("<?xml version='1.0'?><collection/>", "This is XML"),
        ('{"documents": [\n{"id": "1", "passages": []},\n{"id": "2", "passages": [', "line 3: the JSON value"),
        ('{"documents": [\n{"id": "1", "passages": []}', "line 2: the JSON value"),
        ('{"documents": [\n{"id": "1", "passages": []} {"id": 1}', "line 2: the JSON value"),
        ('{"documents": [\n{"id": ' + 5000 * "9" + "}]}", "line 2: the JSON value"),
        ('{"documents": [\n{"id": "1"}]}', "line 2, record 1: JSON of another shape (passages: Field required)"),
        (passages({"offset": "0"}), "passages.0.offset: Input"),
        (
            passages({"offset": 0, "text": "abc"}, {"offset": 2, "text": "d"}),
            "passages that overlap or are out of order (the one at 2 begins 1 before the end",
        ),
        (
            passages({"offset": 0, "text": "a", "annotations": [{"locations": [{"offset": 0, "length": 1}]}]}),
            "an entity without a type",
        ),
        (passages({"offset": 0, "text": "a", "annotations": [bioc_entity(0, type="X ")]}), "type with a stray space"),
        (passages({"offset": 0, "text": "a", "spans": [{"span": {"begin": 0, "end": 1}}]}), "(found `spans`;"),
        (
            passages({"offset": 0, "text": "Title"}, {"offset": 6, "text": "b", "annotations": [bioc_entity(0)]}),
            "line 1, record 1: an entity outside of its passage (1 of 1 entities, the first at 0 to 1",
        ),
        (
            passages({"offset": 0, "sentences": [{"offset": 0, "text": "One."}, {"offset": 5, "text": "Two.",
                      "annotations": [bioc_entity(0)]}]}),
            "an entity outside of its passage",
        ),
    ],
    "1.ann": [
        (f"T1\tX 0 3\tabc\nT2\tX 0 3\t{SECRET}", "line 2, record 1: an entity whose text is not at"),
        ("T1\tX  0 3\tabc", "line 1: a tag or type with a stray space"),
        ("T1\tX 0 3\tabc\nT2\tX 0", "line 2: a line that is no annotation (expected T1, type, start and end"),
        (f"T1\tX 0 {'9' * 5000}\tabc", "line 1: a line that is no annotation"),
        ("T1\tX 0 3\tabc\nT1\tX 0 3\tabc", "line 2: an entity's number given twice"),
        (f"{SECRET}", "line 1: a line that is no annotation"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "expected"), [(name, *fault) for name, faults in FAULTS.items() for fault in faults]
)
def test_a_fault_is_reported_with_its_place_and_without_its_text(tmp_path, name, content, expected):
    (tmp_path / name).write_bytes(content.encode())
    if name == "1.ann":
        (tmp_path / "1.txt").write_text("abc")
    with pytest.raises(RequestError) as caught:
        list(read_documents(tmp_path / name))
    message = str(caught.value)
    assert expected in message and f"{name}, line " in message
    assert SECRET not in message


def test_whole_files_that_cannot_be_read_are_refused(tmp_path):
    def refused(name, *content):
        for text in content:
            (tmp_path / name).write_text(text)
        with pytest.raises(RequestError) as caught:
            list(read_documents(tmp_path / name))
        return str(caught.value)

    assert "expected a .txt file of the same name" in refused("1.ann", "")
    assert "there is no file or folder" in refused("none.jsonl")
    assert "expected a suffix that implies the format" in refused("a.xyz", "")
    assert "html is only written" in refused("a.html", "")
    assert "broken XML" in refused("a.XML", "") and "an article of JATS" in refused("a.nxml", "")
    with pytest.raises(RequestError, match="line 1: expected columns 0 and 3, found 2 columns, 0 to 1"):
        (tmp_path / "a.tsv").write_text("a\tO\n")
        next(sentence_rows(tmp_path / "a.tsv", columns=Columns(0, 3)))


@pytest.mark.parametrize("name", ["a.tsv", "a.pubtator", "a.jsonl", "a.json", "a.txt"])
def test_files_that_are_cut_off_or_no_text_are_reported(tmp_path, name):
    content = {"a.tsv": "a\tO\n\n", "a.pubtator": "1|t|a\n1|a|b\n\n", "a.jsonl": '{"text": "a"}\n'}.get(name, " ")
    packed = gzip.compress((content * 3000).encode())
    (tmp_path / f"{name}.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(RequestError, match="cut off"):
        list(read_documents(tmp_path / f"{name}.gz", unique=False))
    (tmp_path / name).write_bytes(b"\xff\xfe\xfa\xfb" * 10)
    with pytest.raises(RequestError, match=r"UTF-8|UTF-16"):
        list(read_documents(tmp_path / name))


@pytest.mark.parametrize("name", ["a.tsv", "a.pubtator", "a.jsonl", "a.json", "a.txt"])
def test_a_file_in_another_encoding_is_named_with_the_command_that_converts_it(tmp_path, name):
    tag = {"a.tsv": "환자는\tO\n아스피린을\tO\n", "a.pubtator": "1|t|환자는 아스피린을\n1|a|복용했다\n"}
    text = tag.get(name, '{"text": "환자는 아스피린을 복용했다"}\n')
    (tmp_path / name).write_bytes(text.encode("cp949"))
    with pytest.raises(RequestError, match=r"looks like CP949 .*; convert it: iconv -f CP949 -t UTF-8") as caught:
        list(read_documents(tmp_path / name))
    assert "Fix or remove" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.pubtator", "1.23E+11|t|a\n1.23E+11|a|b\n"),
        ("a.jsonl", '{"id": "1.23457E+11", "text": "a"}\n'),
        ("a.json", json.dumps({"documents": [{"id": "1,2E+11", "passages": [{"offset": 0, "text": "a"}]}]})),
    ],
)
def test_a_document_whose_id_is_a_rounded_number_is_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(RequestError, match="an id that is a rounded number"):
        list(read_documents(tmp_path / name))


@pytest.mark.parametrize(("end", "is_reported"), [("B-Dis", True), ("B-Disease\n", False), ("B-Disease\r\n", False)])
def test_a_file_that_ends_in_the_middle_of_a_line_is_reported(tmp_path, capsys, end, is_reported):
    for name, pack in (("a.tsv", bytes), ("a.tsv.gz", gzip.compress)):
        (tmp_path / name).write_bytes(pack(f"no\tO\n\ngout\t{end}".encode()))
        assert len(list(read_documents(tmp_path / name))) == 2
        assert (f"{name}, line 3: the last line has no end" in capsys.readouterr().err) == is_reported


@pytest.mark.parametrize("name", ["text", "brat"])
def test_a_sensitive_file_of_a_folder_is_named_by_its_number(tmp_path, capsys, name):
    (tmp_path / f"{SECRET}.txt").write_bytes(b"\xff")
    (tmp_path / "b.txt").write_text("a\0")
    (tmp_path / "b.ann").write_text("")
    with sensitive_data(), Rejects(tmp_path / "r.jsonl", 1.0) as rejects:
        (document,) = read_documents(tmp_path, name, rejects)
        with pytest.raises(RequestError) as caught:
            write_documents(tmp_path / "out.tsv", [document])
    (listed,) = map(json.loads, (tmp_path / "r.jsonl").open())
    assert (listed["file"], listed["reason"]) == (f"{tmp_path}, document 1", "not valid UTF-8")
    assert f"{tmp_path}, document 2, line 1: conll cannot hold document '(withheld)'" in str(caught.value)
    assert SECRET not in capsys.readouterr().err


def test_an_illegal_sentence_is_counted_with_its_document_and_the_others_are_read(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("-DOCSTART-\tO\n\na\tO\n\na\tI-X\n\nb\tB-X\n\n-DOCSTART-\tO\n\nc\tO\n")
    with Rejects(tmp_path / "rejects.jsonl", limit=1) as rejects:
        assert [document.id for document in read_documents(path, rejects=rejects)] == ["a-2"]
    assert json.loads((tmp_path / "rejects.jsonl").read_text()) == {
        "file": str(path), "line": 5, "reason": "an illegal tag sequence",
        "detail": "in IOB2, 1 of 1 tags of the sentence are not allowed where they are",
    }  # fmt: skip


def test_a_document_on_a_line_with_others_is_named_by_its_id(tmp_path):
    documents = [{"id": number, "passages": [{"offset": 0, "text": "abc"}]} for number in range(5)]
    documents[2]["passages"][0]["offset"] = "0"
    documents[3]["id"] = "\ud800"
    documents[4]["passages"].append({"offset": 1, "text": "d"})
    (tmp_path / "a.json").write_text(json.dumps({"documents": documents}))
    with Rejects(tmp_path / "rejects.jsonl", limit=1) as rejects:
        assert [document.id for document in read_documents(tmp_path / "a.json", rejects=rejects)] == ["0", "1"]
    assert [json.loads(line)["record"] for line in (tmp_path / "rejects.jsonl").open()] == ["2", "?", "4"]


def test_rejects_without_a_block_list_and_limit_what_is_read_and_written(tmp_path, capsys):
    rows = ["a\tI-X\n", *("b\tB-X\n" for _ in range(199))]
    path, listed = tmp_path / "a.tsv", tmp_path / "rejects.jsonl"
    path.write_text("\n".join(rows))
    listed.write_text("of before")
    assert len(list(read_documents(path, rejects=Rejects(str(listed))))) == 199
    assert [json.loads(line)["line"] for line in listed.open()] == [1]
    assert "left out 1 of 200 records, which cannot be used" in capsys.readouterr().err
    path.write_text("\n".join(rows[:99]))
    with pytest.raises(WorkError, match=r"1 of 99 records cannot be used, more than the 1\.00% allowed"):
        list(read_documents(path, rejects=Rejects(listed)))
    documents = [Document(str(number), "a\0" if number == 3 else "a") for number in range(100)]
    write_documents(tmp_path / "a.pubtator", documents, rejects=Rejects(listed))
    assert json.loads(listed.read_text())["reason"] == "NUL in the text"
    with pytest.raises(WorkError, match="1 of 50 records"):
        write_documents(tmp_path / "b.pubtator", documents[:50], rejects=Rejects(listed))
    assert not (tmp_path / "b.pubtator").exists()


def test_the_last_suffix_decides_the_format(tmp_path):
    assert format_of(tmp_path / "a.pubtator.txt") == format_of(tmp_path / "a.pubtator.txt.gz") == "pubtator"
    assert [format_of(tmp_path / f"a.pubtator.{end}") for end in ("jsonl", "html", "tsv")] == ["jsonl", "html", "conll"]


def test_a_text_that_unpacks_to_far_more_than_its_file_is_not_held_whole(tmp_path, monkeypatch):
    for module in (soundness, json_stream):
        monkeypatch.setattr(module, "LONGEST_LINE", 3 << 20)
    (tmp_path / "brat").mkdir()
    (tmp_path / "brat" / "a.txt.gz").write_bytes(gzip.compress(b"x" * (4 << 20)))
    with pytest.raises(RequestError, match="a text too long"):
        list(read_documents(tmp_path / "brat", "brat"))
    for value in ('"' + "x" * (9 << 20), "[" * (9 << 20)):
        (tmp_path / "a.json").write_text('{"documents": [' + value)
        with pytest.raises(RequestError, match=r"a\.json, line 1: expected JSON values of at most 3 MiB"):
            list(read_documents(tmp_path / "a.json", "bioc"))
