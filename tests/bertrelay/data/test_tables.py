"""Tables: quotes in TSV, names of columns in errors, and files that are no tables."""

import pytest

from bertrelay.data.records import Rejects, read
from bertrelay.data.sentences import as_table
from bertrelay.data.tables import Table
from bertrelay.errors import RequestError


def test_quotes_of_a_tsv_are_text_unless_it_is_quoted_and_are_warned_of_with_their_count(tmp_path, capsys):
    path = tmp_path / "p.tsv"
    path.write_text('text\nA dog.\n"She said ""no""."\n"A\ttab"\n')
    assert [
        record.values[0] for record in read(Table(path=str(path), header=True), ["text"], rejects=Rejects(None))
    ] == [
        "A dog.",
        '"She said ""no""."',
    ]
    assert "p.tsv: warning: quotes around 1 field are read as text" in capsys.readouterr().err
    rows = [record.values[0] for record in read(Table(path=str(path), quoted=True), ["text"])]
    assert rows == ["A dog.", 'She said "no".', "A\ttab"]
    assert not capsys.readouterr().err
    path.write_text('he said "no"\tb\n"Yes!"\tc\n')
    assert len(list(read(Table(path=str(path), header=False), [0]))) == 2
    assert not capsys.readouterr().err


def test_names_in_quotes_are_named_with_the_remedy(tmp_path):
    path = tmp_path / "p.tsv"
    path.write_text('"text"\t"label"\n"A"\t"b"\n')
    with pytest.raises(RequestError, match=r"stand in quotes: read it with quoted = true \(--quoted\)"):
        list(read(Table(path=str(path)), ["text"]))
    assert [record.values[0] for record in read(Table(path=str(path), quoted=True), ["text"])] == ["A"]
    with pytest.raises(ValueError, match="quoted: without effect, because only tsv may have quotes or not"):
        Table(path=str(tmp_path / "a.csv"), quoted=True)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        *(
            (f"a{suffix}", "a source of parallel text reads translation files")
            for suffix in (".tmx", ".xlf", ".PO", ".mo.gz")
        ),
        ("a.xml", "a source of documents reads XML"),
        ("a.html", "write its text one sentence a line"),
        ("a.hwp", "save it as a text document in UTF-8 from Hangul"),
        ("a.docx", "convert it with libreoffice --headless --convert-to 'txt"),
        ("a.xlsx", "save it as CSV in UTF-8, with libreoffice --headless --convert-to 'csv"),
        ("a.pdf", "convert it with pdftotext"),
        ("a.srt", "write its text one sentence a line"),
        ("a.sdlxliff", "export it as .tmx or .xliff"),
        ("a.zip", "unpack it"),
    ],
)
def test_a_file_that_is_no_lines_is_refused_with_what_reads_it_unless_its_lines_are_requested(tmp_path, name, remedy):
    (tmp_path / name).write_text("a\n")
    with pytest.raises(ValueError, match=f"expected lines of text or a table, found a .* file: .*{remedy}"):
        Table(path=str(tmp_path / name))
    with pytest.raises(RequestError, match=r"^expected lines of text or a table"):
        as_table(tmp_path / name)
    assert [record.values[0] for record in read(Table(path=str(tmp_path / name), format="lines"), [0])] == ["a"]


def test_json_over_several_lines_is_named_as_such(tmp_path):
    (tmp_path / "a.json").write_text('{\n  "messages": {"a": "b"}\n}\n')
    with pytest.raises(RequestError, match=r"expected one JSON object per line, found one over several lines.* jq -c"):
        list(read(Table(path=str(tmp_path / "a.json")), ["text"], rejects=Rejects(None)))


@pytest.mark.parametrize(
    ("header", "shown"),
    [
        ("id,note,age", "found 3 columns of other names (id, note among them)."),
        ("sentence_1,de", "2 columns of other names (sentence_1, de among them). Did you mean 'sentence_1'?"),
        ("aspirin,gout", "A header was expected in its first row, found 2 columns of other names."),
        ("id,He has gout.", "found 2 columns of other names (id among them)."),
    ],
)
def test_usual_names_of_columns_are_listed_and_what_may_be_text_of_a_record_is_not(tmp_path, header, shown):
    (tmp_path / "a.csv").write_text(f"{header}\n1,2,3\n")
    with pytest.raises(RequestError) as error:
        list(read(Table(path=str(tmp_path / "a.csv"), columns=["sentence1"]), ()))
    assert shown in str(error.value) and "gout" not in str(error.value)
