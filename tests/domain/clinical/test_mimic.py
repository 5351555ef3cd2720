"""Tables read as MIMIC and its users leave them: ids of every form, cut files, wrong dates, stray bytes."""

import gzip

import pyarrow as pa
import pytest

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from domain.clinical import mimic
from domain.clinical.ids import canonical_id, canonical_ids
from domain.clinical.mimic import read_blocks, version_of

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
    """The rows as tuples, and the rejects as (row, reason)."""
    rejects = Rejects(path.parent / "rejects.jsonl", limit=1)
    with rejects:
        found = [block.rows for block in read_blocks(path, columns, rejects, first_block)]
    listed = [line.split('"line": ')[1] for line in rejects.path.read_text().splitlines()]
    reasons = [(int(line.split(",")[0]), line.split('"reason": "')[1].removesuffix('"}')) for line in listed]
    return [tuple(map(str, each.values())) for part in found for each in part.to_pylist()], reasons


@pytest.mark.parametrize("value", [100001, 100001.0, "100001", "100001.0", " 100001 ", "100001.00\t"])
def test_an_id_has_one_form_whatever_a_table_holds(value):
    assert canonical_id(value) == "100001"
    assert canonical_ids(pa.array([value])).to_pylist() == ["100001"]


@pytest.mark.parametrize("value", [None, float("nan"), "", "  "])
def test_a_missing_id_is_empty(value):
    kind = pa.float64() if isinstance(value, float) else pa.string()
    assert canonical_id(value) == ""
    assert canonical_ids(pa.array([value], kind)).to_pylist() == [""]


@pytest.mark.parametrize("value", ["007", "10000032-DS-21", "1.5", "1.0.0", "x.0", ".0"])
def test_what_is_no_number_that_went_through_floats_stays(value):
    assert canonical_id(value) == value
    assert canonical_ids(pa.array([value])).to_pylist() == [value]


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
    found, _ = rows_of(path, ["text", "hadm_id", "charttime"])
    assert found == [("2", "NA", "", "None"), ("3", "", "7", "2150-01-02 03:04:05")]


@pytest.mark.parametrize(
    "time", ["2150-02-30 00:00:00", "2150-1-2 03:04:05", "02/01/2150", "2150-01-02", "2150-01-02T03:04:05", "noon"]
)
def test_a_wrong_time_is_reported_by_its_row_alone(table, time):
    found, rejected = rows_of(table(row(1), row(2, time=time), row(3)))
    assert [each[0] for each in found] == ["2", "4"]
    assert rejected == [(3, "charttime is no time YYYY-MM-DD HH:MM:SS")]


def test_a_date_may_come_with_midnight_and_a_wrong_one_is_reported(table):
    path = table(row(1, day="2150-01-02 00:00:00"), row(2, day="2150-13-01"), row(3, day="20500102"))
    found, rejected = rows_of(path)
    assert [each[4] for each in found] == ["2150-01-02 00:00:00"]
    assert rejected == [(number, "chartdate is no date YYYY-MM-DD") for number in (3, 4)]


def test_rows_of_another_width_and_stray_bytes_are_reported_by_their_rows(table):
    path = table(row(1), b"2,1,7\n", row(3), b"4,1,7,,,\xff\xfe\n", b"5,1,7,,,a,b\n", row(6))
    found, rejected = rows_of(path)
    assert [each[0] for each in found] == ["2", "4", "7"]
    wide = "another number of fields than the header"
    assert sorted(rejected) == [(3, wide), (5, "text is not valid UTF-8"), (6, wide)]


def test_blocks_say_where_they_are_and_reading_resumes_from_them(table, monkeypatch):
    monkeypatch.setattr(mimic, "BLOCK_BYTES", 4_096)
    wrong = {57, 130, 131, 299}
    path = table(*(b"x,y\n" if n in wrong else row(n, n, text=f"{n}\n" * 9) for n in range(300)))
    whole, rejected = rows_of(path)
    assert [(each[0], each[2]) for each in whole] == [(str(n + 2), str(n)) for n in range(300) if n not in wrong]
    assert [number for number, _ in rejected] == sorted(n + 2 for n in wrong)
    with Rejects(None, 1) as rejects:
        blocks = list(read_blocks(path, COLUMNS, rejects))
    assert len(blocks) > 5 and [block.number for block in blocks] == list(range(len(blocks)))
    rest, _ = rows_of(path, first_block=3)
    assert rest == whole[sum(block.rows.num_rows for block in blocks[:3]) :]
    assert blocks[-1].bytes_read == path.stat().st_size


@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_a_packed_file_that_is_cut_is_reported(table, share):
    path = table(*(row(n, text=f"{n * 7919 % 100_003}") for n in range(20_000)), name="NOTEEVENTS.csv.gz")
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(RequestError, match=r"cut off or damaged somewhere after row .*Fetch it again"):
        rows_of(path)


def test_a_plain_file_that_is_cut_within_a_text_is_reported_and_swallows_nothing(table):
    path = table(*(row(n) for n in range(100)))
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(RequestError, match="a quote is left open"):
        rows_of(path)


def test_a_missing_column_is_reported_by_its_name(table):
    with pytest.raises(RequestError, match=r"expected one column iserror .*found none among 6 columns"):
        rows_of(table(row(1)), ["text", "iserror"])


@pytest.mark.parametrize(("data", "told"), [(b"", "is empty"), (HEADER, "holds no rows")])
def test_a_table_of_nothing_is_reported(table, data, told):
    with pytest.raises(RequestError, match=told):
        rows_of(table(header=data))


@pytest.mark.parametrize(("columns", "version"), [(b"SUBJECT_ID,DOB", "III"), (b"subject_id,anchor_age", "IV")])
def test_the_table_of_patients_shows_which_mimic_it_is(table, columns, version):
    assert version_of(table(header=columns + b"\n")) == version


def test_a_table_of_patients_of_neither_is_refused(table):
    with pytest.raises(RequestError, match="expected a column dob"):
        version_of(table(header=b"subject_id,age\n"))
