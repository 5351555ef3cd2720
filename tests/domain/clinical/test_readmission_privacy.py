"""Marks stand in every column that the stages of outcomes read, and in nothing they tell or write but their scores."""

import re
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from noted_patients import stays, write_bert, write_early_stays

from pipelines.cli import _exit_code

MARK = re.compile(rb"qzx", re.IGNORECASE)

RECIPE = """
name = "private"
[told]
{uses}
base = "./bert"
notes = "clinic/notes"
cohort = "clinic/cohort"
chunking = {{ max_tokens = 24 }}
batch_items = 32
epochs = 1
"""
READMISSION = 'uses = "domain.readmission"\nrisk = "clinic/risk.csv"'


@pytest.fixture
def run(tmp_path, capfd, monkeypatch):
    """Runs the recipe by the command line: the exit code. Checks that nothing tells a mark."""
    monkeypatch.chdir(tmp_path)
    table = stays(160)
    marked = table.assign(
        hadm_id="qzxH" + table["hadm_id"],
        subject_id="qzxS" + table["subject_id"],
        text="QZXNAME OF IT:\nQzxword. " + table["text"],
    )
    write_early_stays(tmp_path / "clinic", marked)
    known = pd.read_parquet(characteristics := tmp_path / "clinic/cohort/characteristics.parquet")
    codes = [[*of_stay, {"code": "QZX", "version": 9}] for of_stay in known["diagnoses"]]
    known.assign(diagnoses=codes).to_parquet(characteristics)
    write_bert(tmp_path / "bert")

    def run_once(uses: str = READMISSION, debug: bool = False) -> tuple[int, str]:
        Path("private.toml").write_text(RECIPE.format(uses=uses))
        code = _exit_code(["run", "private.toml", "--runs", "runs"], debug=debug)
        printed = "".join(capfd.readouterr())
        assert not MARK.search(printed.encode())
        told = [path for path in Path("runs").rglob("*") if path.is_file() and path.suffix != ".parquet"]
        assert [path for path in told if MARK.search(path.read_bytes()) or MARK.search(path.name.encode())] == []
        return code, printed

    return run_once


@pytest.mark.parametrize("task", ["readmission", "mortality", "length-of-stay", "diagnoses"])
def test_marks_are_in_the_scores_and_nowhere_else(run, task):
    code, printed = run(READMISSION if task == "readmission" else f'uses = "domain.outcome"\ntask = "{task}"')
    assert code == 0, printed
    (scores,) = Path("runs/private/told/latest").resolve().glob("scores.parquet")
    assert all(name.startswith("qzxH") for name in pq.read_table(scores)["hadm_id"].to_pylist())
    report = Path("runs/private/report.html").read_text()
    assert "What becomes of patients" in report
    if task in ("readmission", "mortality"):
        assert "small groups, not shown" in report


def test_refused_notes_show_no_mark(run):
    Path("clinic/notes/notes.json").write_text('{"input": "discharge", "stays": "cohort"}')
    code, printed = run('uses = "domain.outcome"\ntask = "mortality"')
    assert code == 2 and "as a discharge summary leaks it" in printed


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-400])


@pytest.mark.parametrize(
    ("breaks", "told"),
    [
        (lambda: cut_off(Path("clinic/notes/notes.parquet")), r"notes\.parquet cannot be read as Parquet"),
        (lambda: cut_off(Path("clinic/cohort/cohort.parquet")), r"cohort\.parquet cannot be read as Parquet"),
        (lambda: Path("clinic/risk.csv").write_text("QZX\n1\n"), "columns hadm_id and true_risk"),
        (lambda: Path("clinic/risk.csv").write_text("hadm_id,true_risk\nqzxH1,0.5\n"), "found none of"),
        (lambda: Path("clinic/risk.csv").write_text("hadm_id,true_risk\nqzxH1,QZX\n"), "columns hadm_id and true_risk"),
    ],
)
def test_broken_files_show_no_mark(run, breaks, told):
    breaks()
    code, printed = run(debug=True)  # the traceback has the words of what caused it
    assert code == 2, printed
    assert re.search(told, printed), printed
