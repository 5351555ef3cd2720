"""Every column of every table has marks; only the Parquet outputs may have them, and no message or other file.

What a stage keeps below `work` until it is done is what those outputs are made of, and is not looked at either.
"""

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from marked_tables import MARK, Rows, cell, marked_stays, packed, tables, write
from synthetic_patients import write_stays

from pipelines.cli import _exit_code

OUTPUTS = {".parquet"}
COHORT = """
name = "private"
[cohort]
uses = "domain.cohort"
mimic = "mimic"
max_rejects = {max_rejects}
[notes]
uses = "domain.notes"
mimic = "mimic"
cohort = "@cohort"
max_rejects = {max_rejects}
[audit]
uses = "domain.audit"
files = ["@cohort/cohort.parquet", "@notes/notes.parquet"]
"""
OUTCOME = """
name = "private"
[model]
uses = "domain.readmission"
base = "{bert}"
notes = "clinic/notes"
cohort = "clinic/cohort"
risk = "clinic/risk.csv"
"""


@pytest.fixture
def run(tmp_path, capfd, monkeypatch):
    """Runs a recipe from the command line; returns exit code and output, in which no mark may be."""
    monkeypatch.chdir(tmp_path)

    def run_once(recipe=None, debug=False):
        Path("private.toml").write_text(recipe or COHORT.format(max_rejects=1))
        code = _exit_code(["run", "private.toml", "--runs", "runs"], debug=debug)
        printed = "".join(capfd.readouterr())
        assert not MARK.search(printed.encode()), "what was printed shows a mark"
        paths = [path for path in Path("runs").rglob("*") if path.suffix not in OUTPUTS]
        assert not [path for path in Path("runs").rglob("*") if MARK.search(path.name.encode())]
        assert not [path for path in paths if path.is_file() and MARK.search(path.read_bytes())]
        return code, printed

    return run_once


def put(table, column, value, first=1, share=1):
    """Breaks every `share`-th value of a column, from row `first` on."""

    def broken(contents):
        position = contents[table][0].index(column)
        for row in contents[table][first::share]:
            row[position] = value

    return broken


def too_many_fields(contents):
    for row in contents["NOTEEVENTS"][2::3]:
        row.append("QZXEXTRA")


WRONG_DATES = put("NOTEEVENTS", "CHARTDATE", "QZX 2177-03-99", 1, 3)
OF_ROWS = [  # faults that cost some rows each, others of a table in other rows
    put("ADMISSIONS", "ADMITTIME", "05.03.2177- QZX", 1, 3),
    put("ADMISSIONS", "HADM_ID", "", 2, 3),
    put("PATIENTS", "DOB", "QZXDOB", 1, 3),
    put("PATIENTS", "SUBJECT_ID", "qzxS1", 2, 3),
    WRONG_DATES,
    too_many_fields,
    put("DIAGNOSES_ICD", "SEQ_NUM", "QZXSEQ", 1, 3),
]
REASONS = {
    "admittime is no time": 14,
    "without hadm_id": 13,
    "dob is no date": 14,
    "a subject_id that an earlier row has": 12,
}
REASONS |= {"chartdate is no date": 14, "too many fields": 13}
FAULTS: dict[str, tuple[Callable[[Rows], object], float]] = {  # with `max_rejects`
    "a wrong date": (WRONG_DATES, 0),
    "one admission in all rows": (put("ADMISSIONS", "HADM_ID", cell("HADM_ID", 0)), 1),
    "notes of unknown admissions": (put("NOTEEVENTS", "HADM_ID", "qzxH999"), 1),
    "no discharge summaries": (put("NOTEEVENTS", "CATEGORY", "QZXCATEGORY"), 1),
    "an empty cohort": (put("ADMISSIONS", "ADMISSION_TYPE", "NEWBORN"), 1),
    "notes without a header": (lambda contents: contents["NOTEEVENTS"].pop(0), 1),
    "admissions without a header": (lambda contents: contents["ADMISSIONS"].pop(0), 1),
}
DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "truncated notes": ("NOTEEVENTS", lambda raw: gzip.compress(raw)[:-900]),
    "an open quote": ("NOTEEVENTS", lambda raw: raw.replace(b'""Qzxquoted""', b'"Qzxquoted""', 1)),
    "bytes that are no text": ("NOTEEVENTS", lambda raw: raw.replace(b"Qzxend", b"\xff\xfeQzxend")),
    "NUL characters": ("ADMISSIONS", lambda raw: raw.replace(b"QZX", b"\0QZX")),
    "another file": ("PATIENTS", lambda raw: b"%PDF QZX 2177-\n" * 50 + raw),
    "UTF-16": ("NOTEEVENTS", lambda raw: raw.decode().encode("utf-16")),
}


@pytest.mark.parametrize(("fault", "max_rejects"), FAULTS.values(), ids=FAULTS)
def test_broken_tables_show_no_mark(run, tmp_path, fault, max_rejects):
    fault(contents := tables())
    write(tmp_path / "mimic", contents)
    assert run(COHORT.format(max_rejects=max_rejects))[0] in (1, 2)


@pytest.mark.parametrize("damage", DAMAGES)
def test_broken_files_show_no_mark(run, tmp_path, damage):
    write(tmp_path / "mimic", tables())
    table, broken = DAMAGES[damage]
    (tmp_path / "mimic" / f"{table}.csv.gz").write_bytes(broken(packed(tables()[table])))
    run()


@pytest.mark.promise("Rejects name records only by row and reason", about="privacy")
def test_rejects_are_listed_by_row_and_reason_alone(run, tmp_path):
    contents = tables()
    for fault in OF_ROWS:
        fault(contents)
    write(tmp_path / "mimic", contents)
    assert run()[0] == 0
    listed = "".join(Path(f"runs/private/{name}/latest/rejects.jsonl").read_text() for name in ("cohort", "notes"))
    for reason, count in REASONS.items():
        assert listed.count(reason) == count, listed


def test_an_audit_that_finds_leaks_shows_rows_alone(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    rows = [{"hadm_id": f"qzx{n}", "subject_id": f"qzx{n}", "text": f"qzx {n} " * 30} for n in range(3)]
    leaked = [row | {"split": split} for row in rows for split in ("train", "test")]
    pq.write_table(pa.Table.from_pylist(leaked), "leaked.parquet")
    for more in ([], ["--json"]):
        assert _exit_code(["data", "audit", "leaked.parquet", *more], debug=False) == 1
        printed = "".join(capfd.readouterr())
        assert "leaked.parquet" in printed and not MARK.search(printed.encode())


def cut_off(path):
    return lambda: Path(path).write_bytes(Path(path).read_bytes()[:-400])


@pytest.mark.parametrize(
    ("breaks", "message"),
    [
        (cut_off("clinic/notes/notes.parquet"), r"notes\.parquet cannot be read as Parquet"),
        (cut_off("clinic/cohort/cohort.parquet"), r"cohort\.parquet cannot be read as Parquet"),
        (lambda: Path("clinic/risk.csv").write_text("QZX\n1\n"), "columns hadm_id and true_risk"),
        (lambda: Path("clinic/risk.csv").write_text("hadm_id,true_risk\nqzxH1,0.5\n"), "found none of"),
        (lambda: Path("clinic/risk.csv").write_text("hadm_id,true_risk\nqzxH1,QZX\n"), "columns hadm_id and true_risk"),
    ],
)
def test_broken_files_of_outcomes_show_no_mark(run, bert, tmp_path, breaks, message):
    write_stays(tmp_path / "clinic", marked_stays(40))
    breaks()
    code, printed = run(OUTCOME.format(bert=bert), debug=True)  # the traceback has the words of what caused it
    assert code == 2 and re.search(message, printed), printed
