import csv
import gzip
import json
import os
import subprocess
import sys
from unittest import mock

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from bertrelay.cache import Cache
from bertrelay.data import readers
from bertrelay.data.records import Rejects, aligned_rows, read
from bertrelay.data.tables import Record, Table
from bertrelay.errors import RequestError, WorkError

SECRET = "Mrs Smith has a fever"


def table(path, content=b"", **settings):
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return Table(path=str(path), **settings)


def values(source, *columns, rejects=None):
    return [record.values for record in read(source, columns, rejects=rejects)]


def refusal(source, *columns):
    with pytest.raises(RequestError) as refused:
        values(source, *columns)
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'id,text,score\n1,"one, two",0.5\n2,three,1\n'),
        ("a.tsv", "id\ttext\tscore\n1\tone, two\t0.5\n2\tthree\t1\n"),
        ("a.jsonl", '{"id": "1", "text": "one, two", "score": "0.5"}\n{"score": "1", "text": "three", "id": "2"}\n'),
    ],
)
@pytest.mark.parametrize("packed", ["", ".gz"])
def test_every_text_format_gives_the_same_records(tmp_path, name, content, packed):
    source = table(tmp_path / (name + packed), content)
    assert values(source, "text", "score") == [("one, two", "0.5"), ("three", "1")]
    assert values(source.model_copy(update={"columns": ["score", 1]}), "nothing") == [
        ("0.5", "one, two"),
        ("1", "three"),
    ]


@pytest.mark.parametrize("name", ["a.tsv", "a.TSV.GZ"])
def test_a_file_is_read_by_the_suffix_of_its_link(tmp_path, name):
    """A hub's cache has the suffix only in the link."""
    table(tmp_path / "9f86d0", "id\ttext\n1\tone\n")
    (tmp_path / "snapshot").symlink_to(tmp_path)
    (tmp_path / name).symlink_to("9f86d0")
    source = Table(path=tmp_path / "snapshot" / name, columns=("text",))
    assert source.path == str(tmp_path / name) and values(source) == [("one",)]
    assert Table(path=str(tmp_path / "snapshot")).path == str(tmp_path)


def test_a_note_of_a_megabyte_is_one_field_and_other_readers_keep_their_limit(tmp_path):
    note = "It is\n" * 180_000
    usual = csv.field_size_limit()
    assert values(table(tmp_path / "a.csv", f'id,text\n1,"{note}"\n2,short\n'), "text") == [(note,), ("short",)]
    assert csv.field_size_limit() == usual < len(note)


def test_plain_lines_split_only_at_newlines_and_keep_blank_ones(tmp_path):
    text = "\ufeffone\r\n\nthree\u2028still\x85still\x0bstill\x1cstill\rstill\nlast"
    assert values(table(tmp_path / "a.en", text), 0) == [
        ("one",),
        ("",),
        ("three\u2028still\x85still\x0bstill\x1cstill\rstill",),
        ("last",),
    ]


def test_quotes_of_a_tsv_are_text_and_it_skips_blank_lines(tmp_path):
    source = table(tmp_path / "a.tsv", '\ufefftext\tlabel\r\n"open\tyes\r\n\r\n\u2028x"y\tno\r\n')
    assert list(read(source, ("label", "text"))) == [
        Record(("yes", '"open'), source.name, 2),
        Record(("no", '\u2028x"y'), source.name, 4),
    ]


@pytest.mark.parametrize(("name", "comma"), [("a.csv", ","), ("a.tsv", "\t")])
def test_a_repeated_header_is_no_record_in_a_table_of_several_columns(tmp_path, name, comma):
    text = "id,text\n1,one\n2,two\n".replace(",", comma)
    source, rejects = table(tmp_path / name, text + text), Rejects(None, 1)
    assert [record.values for record in read(source, ("text",), rejects=rejects)] == [("one",), ("two",)] * 2
    assert list(rejects.counts) == ["the header again, as in a table that was appended to another"]
    assert values(table(tmp_path / "b.csv", "word\nword\n"), "word") == [("word",)]


def test_newlines_in_a_csv_field_stay_as_they_are_and_line_numbers_right(tmp_path):
    source = table(tmp_path / "a.csv", 'text,label\n"one\r\ntwo\n\nthree",yes\n\n"say ""hi""",no\n')
    assert list(read(source, ("text",))) == [
        Record(("one\r\ntwo\n\nthree",), source.name, 2),
        Record(('say "hi"',), source.name, 7),
    ]


def test_a_file_without_header_goes_by_position(tmp_path):
    source = table(tmp_path / "a.csv", "one,two,3\nfour,five,6\n", header=False)
    assert values(source, "sentence1", "sentence2") == [("one", "two"), ("four", "five")]
    assert values(source.model_copy(update={"columns": [2, 0]}), "x") == [("3", "one"), ("6", "four")]
    message = refusal(source.model_copy(update={"columns": ["score"]}))
    assert "without a header" in message and "0 to 2" in message and "'score'" in message
    wider = table(tmp_path / "a.tsv", "1\ta\tb\n2\tc\td\tsource\turl\n", header=False)  # as STS files are
    assert values(wider, 0, 2) == [("1", "b"), ("2", "d")]


def test_dotted_columns_reach_into_nested_objects(tmp_path):
    objects = [
        {"translation": {"en": "yes", "de": "ja"}, "a.b": "plain"},
        {"translation": {"en": "no", "de": "nein"}, "a.b": "dotted"},
    ]
    jsonl = table(tmp_path / "a.jsonl", "".join(json.dumps(item) + "\n" for item in objects))
    pq.write_table(pa.Table.from_pylist(objects), tmp_path / "a.parquet")
    for source in (jsonl, Table(path=str(tmp_path / "a.parquet"))):
        assert values(source, "translation.de", "a.b") == [("ja", "plain"), ("nein", "dotted")]


def test_parquet_gives_typed_values_and_row_numbers(tmp_path):
    pq.write_table(
        pa.table({"text": [f"t{i}" for i in range(3000)], "score": [i / 2 for i in range(3000)]}),
        tmp_path / "a.parquet",
    )
    *_, last = read(Table(path=str(tmp_path / "a.parquet")), ("score", 0))
    assert last == Record((1499.5, "t2999"), str(tmp_path / "a.parquet"), 3000)


def test_a_data_set_of_the_hub_is_loaded_at_its_revision_into_the_cache_and_its_errors_become_ours(
    tmp_path, monkeypatch
):
    from huggingface_hub import constants

    received: dict[str, object] = {}

    def load_dataset(**options):
        received.update(options, downloads=constants.HF_HUB_CACHE)
        return datasets.Dataset.from_list([{"translation": {"en": "yes", "de": "ja"}, "n": 1}] * 2)

    home = constants.HF_HUB_CACHE
    for raised, expected in ((ValueError("Unknown split"), RequestError), (ConnectionError("no network"), WorkError)):
        monkeypatch.setattr(datasets, "load_dataset", mock.Mock(side_effect=raised))
        with pytest.raises(expected, match=str(raised)):
            next(read(Table(hub="owner/corpus"), ("text",), cache=Cache(tmp_path)))
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    source = Table(hub="owner/corpus@abc123", config="de-en", split="validation")
    records = list(read(source, ("translation.en", "n"), cache=Cache(tmp_path)))
    assert records[1] == Record(("yes", 1), "hub:owner/corpus@abc123:de-en:validation", 2)
    assert (received["path"], received["name"]) == ("owner/corpus", "de-en")
    assert (received["split"], received["revision"]) == ("validation", "abc123")
    assert str(received["cache_dir"]).startswith(str(tmp_path / "hub"))
    assert str(received["downloads"]) == str(tmp_path / "hub") and home == constants.HF_HUB_CACHE


def test_reading_a_text_file_loads_no_heavy_library(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("a\tb\n1\t2\n")
    code = (
        "import sys; from bertrelay.data.records import Table, read; "
        f"print(list(read(Table(path={str(path)!r}), ('a',)))[0].values, "
        "[name for name in ('torch', 'pyarrow', 'pandas', 'datasets', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "('1',) []"


PACKED = gzip.compress(b"".join(b"%d\n" % (i * 7919) for i in range(50_000)), mtime=0)
REFUSED = [
    *((name, "", "text", "has no records") for name in ("a.en", "a.csv", "a.tsv", "a.jsonl")),
    ("a.csv", "text,label\n\n", "text", "has no records"),
    ("a.tsv", "a\tb\n1\t2\n".encode("utf-16"), "a", "found UTF-16"),
    ("a.en", b"one\rtwo\rthree\r", 0, r"expected lines that end in \n, found \r alone"),
    ("a.json", '[{"a": "x"},\n{"a": "y"}]\n', "a", "expected one JSON object per line, found an array"),
    ("a.csv", "id;a\n1;x\n", "a", "';' between them perhaps: write it with commas"),
    ("a.en", b"one\ntw\0o\n", 0, "line 2: a NUL character"),
    ("a.en", b"one\ntwo\nth\xc3(ree\n", 0, "line 3: not valid UTF-8 (byte 10 of the file"),
    ("a.tsv", b"a\nx\nth\xc3(ree\n", "a", "line 3: not valid UTF-8 (byte 6 of the file"),
    ("a.csv", b'a\nx\n"th\xc3(ree"\n', "a", "line 3: not valid UTF-8 (byte 7 of the file"),
    ("a.jsonl", b'{"a": "x"}\n{"a": "y"}\n{"a": "th\xc3("}\n', "a", "line 3: not valid UTF-8 (byte 31 of the file"),
    ("a.csv", "a,a\n1,2\n", "a", "more than once"),
    ("a.jsonl", '{"score_A": 1, "score_B": 2}\n', "score_a", "are score_A, score_B. Did you mean 'score_A'?"),
    ("a.jsonl", '{"score_A": 1}\n', 7, "no column 7: it has 1"),
    ("a.parquet", b"not parquet", "a", "cannot be read as Parquet"),
    ("a.en", PACKED[:-20], 0, "is cut off or damaged after line "),
    ("a.en", PACKED[:-6] + bytes([PACKED[-6] ^ 1]) + PACKED[-5:], 0, "damaged"),
]


@pytest.mark.parametrize(("name", "content", "column", "message"), REFUSED)
def test_an_error_that_stops_the_reading_names_its_position(tmp_path, name, content, column, message):
    error_text = refusal(table(tmp_path / name, content), column)
    assert str(tmp_path / name) in error_text and message in error_text
    assert f"there is no file {tmp_path}/gone.tsv" in refusal(Table(path=str(tmp_path / "gone.tsv")), "a")
    assert "cannot be read: Is a directory" in refusal(Table(path=str(tmp_path)), 0)
    reading, writing = os.pipe()
    os.close(writing)
    with os.fdopen(reading):
        assert "expected a file, found a pipe" in refusal(Table(path=f"/dev/fd/{reading}"), 0)


def test_plain_lines_have_one_column_and_another_is_an_error(tmp_path):
    source = table(tmp_path / "a.txt", "one\n")
    assert values(source.model_copy(update={"columns": [0]}), 0) == values(source, 0)
    assert "whose one column is 0; found 'a', 'b'" in refusal(source, "a", "b")
    for column in ("text", 1):
        error_text = refusal(source.model_copy(update={"columns": [column]}), 0)
        assert f"plain lines, whose one column is 0; found {column!r}" in error_text


@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_a_first_row_that_may_be_a_record_is_described_only_by_its_size(tmp_path, name):
    mark = "," if name.endswith("csv") else "\t"
    source = table(tmp_path / name, mark.join(["Haemoptysis", "Smith", "SCORE"]) + "\n")
    message = refusal(source, "score")
    assert "has no column 'score'. A header was expected in its first row, found 3 columns" in message
    assert "Did you mean 'SCORE'?" in message and "header = false" in message
    assert "Haemoptysis" not in message and "Smith" not in message
    assert "Smith" not in refusal(source, "Smyth")  # no guess at a near name: it would quote the record
    assert "no column 7: it has 3" in refusal(source, 7)


def test_a_quote_left_open_stops_with_the_line_where_it_opens(tmp_path):
    content = 'text,label\n"fine",a\n"never closed,b\n' + "x,c\n" * 5
    source = table(tmp_path / "a.csv", content)
    with Rejects(None, limit=1) as rejects, pytest.raises(RequestError, match="line 3: a quoted field starts here"):
        values(source, "text", rejects=rejects)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", f"{SECRET}\t1\n{SECRET}\t2\n"),
        ("a.csv", f'text,label\n"{SECRET}" x,1\n'),
        ("a.tsv", f"text\tlabel\n{SECRET}\n"),
        ("a.jsonl", f'{{"label": "{SECRET}\n'),
        ("a.jsonl", f'{{"{SECRET}": 1}}\n'),
        ("a.jsonl", f'{{"label": "{SECRET} \\ud800"}}\n'),
    ],
)
def test_no_error_quotes_a_record(tmp_path, name, content):
    message = refusal(table(tmp_path / name, content), "label")
    assert not any(word in message for word in SECRET.split() if len(word) > 3)
    assert str(tmp_path / name) in message


BAD_ROWS = {
    "a.csv": ("text,label\nok,1\nonly one\na,b,c\nok\x00,2\nok,2\n", {3: "few", 4: "many", 5: "NUL"}),
    "b.csv": ('text,label\nok,1\n"a"b,1\none\rtwo,1\nok,2\n', {3: "CSV", 4: "CSV"}),
    "a.tsv": ("text\tlabel\nok\t1\nonly one\na\tb\tc\nok\t2\n", {3: "few", 4: "many"}),
    "a.jsonl": (
        '{"text": "ok", "label": 1}\n[1]\n{"text": \n\n{"text": "ok"}\n{"text": null, "label": 1}\n'
        '{"text": "\\ud800", "label": 1}\n{"text": "ok", "label": 2}\n' + "[" * 100_000 + "\n",
        {2: "object", 3: "JSON", 5: "missing", 6: "missing", 7: "Unicode", 9: "JSON"},
    ),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows_are_listed_by_file_line_and_reason_and_the_others_read(tmp_path, name):
    content, expected = BAD_ROWS[name]
    source = table(tmp_path / name, content)
    with Rejects(tmp_path / "out" / "rejects.jsonl", limit=1) as rejects:
        records = values(source, "text", "label", rejects=rejects)
    assert [(text, str(label)) for text, label in records] == [("ok", "1"), ("ok", "2")]
    listed = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    assert all({*item} - {"detail"} == {"file", "line", "reason"} and item["file"] == source.name for item in listed)
    assert next(item for item in listed if "detail" in item)["detail"].startswith(("expected", "found", "quotes"))
    assert [item["line"] for item in listed] == list(expected)
    assert all(word in item["reason"] for item, word in zip(listed, expected.values(), strict=True))
    assert rejects.counts.total() == len(expected)


def test_two_tables_are_read_row_by_row_and_an_unusable_row_keeps_its_partner(tmp_path):
    english, german = table(tmp_path / "a.en", b"one\n\xff\nthree\n"), table(tmp_path / "a.de", "eins\nzwei\ndrei\n")
    pairs = [
        tuple(isinstance(row, Record) and row.values[0] for row in pair) for pair in aligned_rows(english, german, [0])
    ]
    assert pairs == [("one", "eins"), (False, "zwei"), ("three", "drei")]


@pytest.mark.parametrize(("first", "second"), [(5, 2), (2, 5)])
def test_tables_that_are_not_aligned_are_reported_with_the_rows_of_both(tmp_path, first, second):
    tables = [table(tmp_path / name, "x\n" * count) for name, count in (("a.en", first), ("a.de", second))]
    longer = tables[0 if first > second else 1].name
    with pytest.raises(RequestError, match=f"first has {first} rows and the second {second}: line 3 of {longer}"):
        list(aligned_rows(*tables, [0]))


@pytest.mark.promise("Rejects are listed, and past the limit the stage stops", about="counted")
def test_rejects_up_to_the_limit_are_allowed_and_one_more_stops(tmp_path):
    (tmp_path / "r.jsonl").write_text("from an earlier run\n")
    with Rejects(tmp_path / "r.jsonl"):
        pass
    assert (tmp_path / "r.jsonl").read_text() == ""
    with pytest.raises(KeyError), Rejects(None) as rejects:
        rejects.add("f", 1, "bad")
        raise KeyError("the real one")
    with Rejects(tmp_path / "r.jsonl", limit=0.01) as rejects:
        rejects.used(99)
        rejects.add("f.tsv", 7, "too few fields")
    with pytest.raises(WorkError) as stopped, Rejects(tmp_path / "r.jsonl", limit=0.01) as rejects:
        rejects.used(98)
        rejects.add("f.tsv", 7, "too few fields")
        rejects.add("f.tsv", 9, "not valid UTF-8")
    message = str(stopped.value)
    assert "2 of 100" in message and "1.00%" in message and "f.tsv, line 7" in message and "r.jsonl" in message
    assert "1 × too few fields in f.tsv" in message and "1 × not valid UTF-8 in f.tsv" in message
    assert rejects.counts == {"too few fields": 1, "not valid UTF-8": 1} and rejects.summary(["g.tsv"]) == ""


def test_bad_lines_at_the_start_do_not_stop_and_mostly_bad_files_stop_early():
    with Rejects(None, limit=0.01) as rejects:
        for line in range(900):
            rejects.add("f", line, "bad")
        rejects.used(100_000)
        for line in range(100):
            rejects.add("f", line, "bad")
    with pytest.raises(WorkError, match="1,000 of 1,005"), Rejects(None, limit=0.01) as rejects:
        rejects.used(5)
        for line in range(10_000):
            rejects.add("f", line, "bad")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "exactly one of them"),
        ({"path": "a", "hub": "owner/name"}, "exactly one of them"),
        ({"path": "a", "config": "de"}, "config: without effect, because hub is absent"),
        ({"hub": "owner/name", "format": "csv", "header": False}, "format, header: without effect"),
        ({"path": "a.txt", "header": False}, "header: without effect, because only csv and tsv .* read as lines"),
        ({"path": "a.csv", "format": "jsonl", "header": False}, "header: without effect, .* read as jsonl"),
        ({"path": "a", "columns": [-1]}, "greater than or equal to 0"),
        ({"path": "a", "columns": []}, "at least 1 item"),
    ],
)
def test_invalid_settings_of_a_table_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        Table.model_validate(settings)


def test_reading_is_a_stream(tmp_path):
    source = table(tmp_path / "a.en", b"fine\n" * 100_000 + b"\xff\n")
    walk = read(source, (0,))
    assert next(walk).line == 1
    with pytest.raises(RequestError, match="line 100,001"):
        list(walk)


def test_a_line_without_an_end_is_one_unusable_record_and_those_after_it_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "LONGEST_LINE", 20)
    lines = b"one\n" + b"x" * 20 + b"\n" + b"y" * 21 + b"\n" + b"z" * 95 + b"\nlast\n"
    rejects = Rejects(None, limit=1.0)
    source = table(tmp_path / "a.txt.gz", lines)
    assert values(source, 0, rejects=rejects) == [("one",), ("x" * 20,), ("last",)]
    assert rejects.counts == {"a line too long": 2}
    assert "line 3: a line too long (more than 0 MiB)" in refusal(source, 0)


def test_objects_nested_without_an_end_are_no_columns(tmp_path):
    deep = '{"a":' * 900 + "1" + "}" * 900
    assert values(table(tmp_path / "a.jsonl", f'{{"b":"x","c":{deep}}}\n'.encode()), "b") == [("x",)]
