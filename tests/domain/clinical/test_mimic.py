"""Tables of MIMIC with ids of every form, cut files, invalid dates and stray bytes."""

import gzip
import json
from io import StringIO

import numpy as np
import pandas as pd
import pytest

from bertrelay.data.records import Rejects, canonical_id
from bertrelay.errors import RequestError
from domain.clinical.sources import mimic_tables as mimic
from domain.clinical.sources.mimic_tables import read_blocks

HEADER = b"Row_Id,SUBJECT_ID,hadm_id,CHARTDATE,CHARTTIME,TEXT\n"
COLUMNS = ["text", "hadm_id", "charttime", "chartdate"]


def row(number, hadm_id="7", day="2150-01-02", time="2150-01-02 03:04:05", text="well"):
    return f'{number},1,{hadm_id},{day},{time},"{text}"\n'.encode()


@pytest.fixture
def table(tmp_path):
    def write(*rows, name="NOTEEVENTS.csv", header=HEADER):
        data = header + b"".join(rows)
        path = tmp_path / name
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


def rows_of(path, columns=COLUMNS, first_block=0):
    """The rows as tuples of text, and the rejects as (row, reason)."""
    with Rejects(path.parent / "rejects.jsonl", limit=1) as rejects:
        parsed = list(read_blocks(path, columns, rejects.add, first_block))
    listed = [json.loads(line) for line in rejects.path.read_text().splitlines()]
    rows = [tuple(map(str, row)) for block in parsed for row in block.itertuples(index=False)]
    return rows, [(entry["line"], entry["reason"]) for entry in listed]


@pytest.mark.parametrize(
    ("values", "form"),
    [
        ([100001, 100001.0, "100001", "100001.0", " 100001 ", "100001.00\t"], "100001"),
        ([-7, -7.0, "-7", "-7.0"], "-7"),
        ([None, float("nan"), "", "  ", "NA", "nan", "NULL", "\\N"], ""),
        *(([value], value) for value in ["007", "10000032-DS-21", "1.5", "1.0.0", "x.0", ".0"]),
    ],
)
def test_an_id_has_one_form_whatever_a_table_has(values, form):
    assert {canonical_id(value) for value in values} == {form}


def test_an_id_that_floats_do_not_tell_from_another_is_refused():
    assert [canonical_id(value) for value in (2.0**53 - 1, 2**53 + 1)] == ["9007199254740991", "9007199254740993"]
    for value in (float(2**53 + 1), -3.98e18, np.float32(1431331896)):
        with pytest.raises(ValueError, match="more digits than its type of number can hold"):
            canonical_id(value)


@pytest.mark.parametrize(
    "value",
    ["1.23457E+11", " 1.23e+11", "1,23457E+11", "12E+10", "1.2e11", "123456789012345680.0", "123457000000.0"],
)
def test_a_rounded_number_as_text_is_no_id(table, value):
    with pytest.raises(ValueError, match="a rounded number"):
        canonical_id(value)
    parsed, rejected = rows_of(table(row(1, hadm_id=f'"{value}"'), row(2)), ["hadm_id"])
    assert parsed == [("3", "7")]
    assert rejected == [(2, "hadm_id is no id but a rounded number, as 1.23E+11 is")]


@pytest.mark.parametrize("value", ["1E5", "E+11", "12e3", "9007199254740991.0", "1.5"])
def test_an_id_that_only_looks_like_a_number_stays_one(value):
    assert canonical_id(value) in (value, value.removesuffix(".0"))


def test_a_float_that_a_reader_of_tables_makes_of_a_rounded_number_is_no_id():
    (read,) = pd.read_csv(StringIO("hadm_id\n1.23457E+11\n"))["hadm_id"]
    assert isinstance(read, float)
    with pytest.raises(ValueError, match="a rounded number"):
        canonical_id(read)
    for exact in (123457000000, 123456789012.0, 20045700000.0):  # whole, of more digits, of fewer than are rounded
        assert canonical_id(exact) == str(int(exact))


def test_a_flag_is_0_or_1_or_empty_and_nothing_else(table):
    header = b"Row_Id,HADM_ID,ISERROR\n"
    flags = ["", "0", "1", "1.0", "2", "-1", "0.5", "TRUE"]
    parsed, rejected = rows_of(table(*(f"1,7,{flag}\n".encode() for flag in flags), header=header), ["iserror"])
    assert [flag for _, flag in parsed] == ["", "0", "1", "1"]
    assert rejected == [(row, "iserror is no flag (0, 1, or empty)") for row in (6, 7, 8, 9)]


@pytest.mark.parametrize(("encoding", "name"), [("utf-16", "UTF-16"), ("utf-16-le", "UTF-16LE")])
def test_a_table_in_utf16_is_named_with_the_command_that_converts_it(table, encoding, name):
    path = table()
    path.write_bytes((HEADER + row(1)).decode().encode(encoding))
    with pytest.raises(RequestError, match=f"found UTF-16.*iconv -f {name} -t UTF-8"):
        mimic.columns_of(path)


@pytest.mark.parametrize("name", ["NOTEEVENTS.csv", "NOTEEVENTS.csv.gz"])
def test_text_over_several_lines_is_one_row_and_columns_come_as_asked(table, name):
    path = table(row(1, text='one\ntwo ""quoted"", 98.6'), row(2, " 8.0 "), name=name)
    assert rows_of(path) == (
        [
            ("2", 'one\ntwo "quoted", 98.6', "7", "2150-01-02 03:04:05", "2150-01-02 00:00:00"),
            ("3", "well", "8", "2150-01-02 03:04:05", "2150-01-02 00:00:00"),
        ],
        [],
    )


def test_missing_times_are_null_and_words_such_as_na_are_text(table):
    path = table(row(1, "", time="", text="NA"), row(2, text=""))
    parsed, _ = rows_of(path, ["text", "hadm_id", "charttime"])
    assert parsed == [("2", "NA", "", "NaT"), ("3", "", "7", "2150-01-02 03:04:05")]


WRONG_TIMES = ["2150-02-30 00:00:00", "2150-1-2 03:04:05", "02/01/2150", "2150-01-02", "2150-01-02T03:04:05", "noon"]
WRONG_ROWS = [b"2,1,7\n", b"4,1,7,,,\xff\xfe\n", b"5,1,7,,,a,b\n"]
REASONS = ["charttime is no time YYYY-MM-DD HH:MM:SS"] * 6 + ["chartdate is no date YYYY-MM-DD"] * 2
REASONS += ["too few fields", "not valid UTF-8", "too many fields"]


def test_a_row_that_cannot_be_used_is_reported_by_its_number_alone_and_a_date_may_come_with_midnight(table):
    wrong = [*(row(1, time=time) for time in WRONG_TIMES), row(1, day="2150-13-01"), row(1, day="20500102")]
    parsed, rejected = rows_of(table(row(1), *wrong, *WRONG_ROWS, row(2, day="2150-01-02 00:00:00")))
    assert [(entry[0], entry[4]) for entry in parsed] == [("2", "2150-01-02 00:00:00"), ("14", "2150-01-02 00:00:00")]
    assert sorted(rejected) == list(enumerate(REASONS, 3))


def test_reading_resumes_at_a_block(table, monkeypatch):
    monkeypatch.setattr(mimic, "BLOCK_ROWS", 7)
    times = dict.fromkeys((3, 20, 21, 99), "noon")
    path = table(*(row(n, text=f"text {n}", time=times.get(n, "2150-01-02 03:04:05")) for n in range(100)))
    whole, rejected = rows_of(path)
    assert len(whole) == 96 and [number for number, _ in rejected] == [n + 2 for n in times]
    assert rows_of(path, first_block=3) == (whole[19:], rejected[2:])


@pytest.mark.parametrize("share", [0.3, 0.999])
def test_a_packed_file_that_is_cut_is_reported(table, share):
    path = table(*(row(n, text=f"{n * 7919 % 100_003}") for n in range(4_000)), name="NOTEEVENTS.csv.gz")
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(RequestError, match=r"cut off or damaged after line .*Fetch or pack it again"):
        rows_of(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "found none among 0 columns"),
        (HEADER, "has no records"),
        (HEADER.replace(b"TEXT", b"NOTE"), r"expected one column text .*found none among 6 columns"),
    ],
)
def test_a_table_of_nothing_or_without_a_column_is_reported(table, data, message):
    with pytest.raises(RequestError, match=message):
        rows_of(table(header=data))
