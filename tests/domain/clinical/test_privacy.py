"""Marks stand in every column of every table, and in nothing that is printed or written but the Parquet outputs.

What a stage keeps below `work` until it is done is what those outputs are made of, and is not looked at either.
"""

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from marked_tables import MARK, Rows, cell, marked_stays, packed, tables, write
from noted_patients import write_early_stays

from pipelines.cli import _exit_code

OUTPUTS = {".parquet", ".sqlite"}
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
{uses}
base = "{bert}"
notes = "clinic/notes"
cohort = "clinic/cohort"
chunking = {{ max_tokens = 24 }}
batch_items = 32
epochs = 1
"""
READMISSION = 'uses = "domain.readmission"\nrisk = "clinic/risk.csv"'


@pytest.fixture
def run(tmp_path, capfd, monkeypatch):
    """Runs a recipe by the command line: exit code and what was printed. Checks that nothing shows a mark."""
    monkeypatch.chdir(tmp_path)

    def run_once(recipe: str = COHORT.format(max_rejects=1), debug: bool = False) -> tuple[int, str]:
        Path("private.toml").write_text(recipe)
        code = _exit_code(["run", "private.toml", "--runs", "runs"], debug=debug)
        printed = "".join(capfd.readouterr())
        assert not MARK.search(printed.encode()), "what was printed shows a mark"
        paths = [path for path in Path("runs").rglob("*") if path.suffix not in OUTPUTS]
        assert not [path for path in Path("runs").rglob("*") if MARK.search(path.name.encode())]
        assert not [path for path in paths if path.is_file() and MARK.search(path.read_bytes())]
        return code, printed

    return run_once


def latest(stage: str, name: str) -> Path:
    return Path("runs/private", stage, "latest", name)


# Tables of a hospital


def put(table: str, column: str, value: str, share: int = 1) -> Callable[[Rows], None]:
    """Breaks every `share`-th value of a column."""

    def broken(found: Rows) -> None:
        place = found[table][0].index(column)
        for row in found[table][1::share]:
            row[place] = value

    return broken


def too_many_fields(found: Rows) -> None:
    for row in found["NOTEEVENTS"][1::3]:
        row.append("QZXEXTRA")


FAULTS: dict[str, Callable[[Rows], object]] = {
    "a wrong time": put("ADMISSIONS", "ADMITTIME", "05.03.2177- QZX", 3),
    "a wrong date": put("NOTEEVENTS", "CHARTDATE", "QZX 2177-03-99", 3),
    "a birth that is no date": put("PATIENTS", "DOB", "QZXDOB", 3),
    "one admission in all rows": put("ADMISSIONS", "HADM_ID", cell("HADM_ID", 0)),
    "admissions without an id": put("ADMISSIONS", "HADM_ID", "", 3),
    "notes of unknown admissions": put("NOTEEVENTS", "HADM_ID", "qzxH999"),
    "no discharge summaries": put("NOTEEVENTS", "CATEGORY", "QZXCATEGORY"),
    "an empty cohort": put("ADMISSIONS", "ADMISSION_TYPE", "NEWBORN"),
    "a diagnosis that is no number": put("DIAGNOSES_ICD", "SEQ_NUM", "QZXSEQ"),
    "notes without a header": lambda found: found["NOTEEVENTS"].pop(0),
    "admissions without a header": lambda found: found["ADMISSIONS"].pop(0),
    "too many fields": too_many_fields,
    "two patients of one id": put("PATIENTS", "SUBJECT_ID", "qzxS1", 2),
}
DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "truncated notes": ("NOTEEVENTS", lambda raw: gzip.compress(raw)[:-900]),
    "an open quote": ("NOTEEVENTS", lambda raw: raw.replace(b'""Qzxquoted""', b'"Qzxquoted""', 1)),
    "bytes that are no text": ("NOTEEVENTS", lambda raw: raw.replace(b"Qzxend", b"\xff\xfeQzxend")),
    "NUL characters": ("ADMISSIONS", lambda raw: raw.replace(b"QZX", b"\0QZX")),
    "another file": ("PATIENTS", lambda raw: b"%PDF QZX 2177-\n" * 50 + raw),
    "UTF-16": ("NOTEEVENTS", lambda raw: raw.decode().encode("utf-16")),
}


def test_marks_are_in_the_outputs_and_nowhere_else(run, tmp_path):
    write(tmp_path / "mimic", tables())
    code, printed = run(COHORT.format(max_rejects=0))
    assert code == 0 and "noteevents" in printed.lower()
    (note, *_) = pq.read_table(latest("notes", "notes.parquet")).to_pylist()
    assert all(MARK.search(str(note[name]).encode()) for name in ("text", "hadm_id", "sections"))
    assert latest("cohort", "flow.csv").is_file() and Path("runs/private/report.html").is_file()


@pytest.mark.parametrize(
    ("fault", "max_rejects"), [*((fault, 1) for fault in FAULTS), ("a wrong time", 0), ("a wrong date", 0)]
)
def test_broken_rows_show_no_mark(run, tmp_path, fault, max_rejects):
    found = tables()
    FAULTS[fault](found)
    write(tmp_path / "mimic", found)
    run(COHORT.format(max_rejects=max_rejects))


@pytest.mark.parametrize("damage", DAMAGES)
def test_broken_files_show_no_mark(run, tmp_path, damage):
    write(tmp_path / "mimic", tables())
    table, broken = DAMAGES[damage]
    (tmp_path / "mimic" / f"{table}.csv.gz").write_bytes(broken(packed(tables()[table])))
    run()


def test_rejects_are_listed_by_row_and_reason_alone(run, tmp_path):
    found = tables()
    FAULTS["a wrong date"](found)
    write(tmp_path / "mimic", found)
    assert run()[0] == 0
    assert latest("notes", "rejects.jsonl").read_text().count("chartdate is no date") == 14


def test_an_audit_that_finds_leaks_shows_rows_alone(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    rows = [{"hadm_id": f"qzx{n}", "subject_id": f"qzx{n}", "text": f"qzx {n} " * 30} for n in range(3)]
    leaked = [row | {"split": split} for row in rows for split in ("train", "test")]
    pq.write_table(pa.Table.from_pylist(leaked), "leaked.parquet")
    for more in ([], ["--json"]):
        assert _exit_code(["data", "audit", "leaked.parquet", *more], debug=False) == 1
        printed = "".join(capfd.readouterr())
        assert "leaked.parquet" in printed and not MARK.search(printed.encode())


# Outcomes


@pytest.fixture
def clinic(run, bert, tmp_path):
    """Runs a stage of outcomes on marked notes, labels and codes."""
    write_early_stays(tmp_path / "clinic", marked_stays(160))
    known = pd.read_parquet(characteristics := tmp_path / "clinic/cohort/characteristics.parquet")
    codes = [[*of_stay, {"code": "QZX", "version": 9}] for of_stay in known["diagnoses"]]
    known.assign(diagnoses=codes).to_parquet(characteristics)
    return lambda uses=READMISSION, debug=False: run(OUTCOME.format(uses=uses, bert=bert), debug)


@pytest.mark.parametrize("task", ["readmission", "length-of-stay", "diagnoses"])
def test_marks_are_in_the_scores_and_nowhere_else(clinic, task):
    code, printed = clinic(READMISSION if task == "readmission" else f'uses = "domain.outcome"\ntask = "{task}"')
    assert code == 0, printed
    scores = pq.read_table(latest("model", "scores.parquet"))
    assert all(name.startswith("qzxH") for name in scores["hadm_id"].to_pylist())
    report = Path("runs/private/report.html").read_text()
    assert "What becomes of patients" in report
    assert task != "readmission" or "small groups, not shown" in report


def cut_off(path: str) -> Callable[[], object]:
    return lambda: Path(path).write_bytes(Path(path).read_bytes()[:-400])


@pytest.mark.parametrize(
    ("breaks", "told"),
    [
        (cut_off("clinic/notes/notes.parquet"), r"notes\.parquet cannot be read as Parquet"),
        (cut_off("clinic/cohort/cohort.parquet"), r"cohort\.parquet cannot be read as Parquet"),
        (lambda: Path("clinic/risk.csv").write_text("QZX\n1\n"), "columns hadm_id and true_risk"),
        (lambda: Path("clinic/risk.csv").write_text("hadm_id,true_risk\nqzxH1,0.5\n"), "found none of"),
        (lambda: Path("clinic/risk.csv").write_text("hadm_id,true_risk\nqzxH1,QZX\n"), "columns hadm_id and true_risk"),
    ],
)
def test_broken_files_of_outcomes_show_no_mark(clinic, breaks, told):
    breaks()
    code, printed = clinic(debug=True)  # the traceback has the words of what caused it
    assert code == 2 and re.search(told, printed), printed
