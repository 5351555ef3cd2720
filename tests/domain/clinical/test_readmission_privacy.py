"""Marks stand in every column that the readmission stage reads, and in nothing it tells or writes but its scores."""

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from noted_patients import stays, write_bert, write_stays

from pipelines.cli import _exit_code

MARK = re.compile(rb"qzx", re.IGNORECASE)

RECIPE = """
name = "private"
[readmission]
uses = "domain.readmission"
base = "./bert"
notes = "clinic/notes"
cohort = "clinic/cohort"
risk = "clinic/risk.csv"
chunking = {{ max_tokens = 24 }}
batch_items = 32
epochs = 1
{more}
"""


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
    write_stays(tmp_path / "clinic", marked)
    write_bert(tmp_path / "bert")

    def run_once(more: str = "") -> tuple[int, str]:
        Path("private.toml").write_text(RECIPE.format(more=more))
        code = _exit_code(["run", "private.toml", "--runs", "runs"], debug=False)
        printed = "".join(capfd.readouterr())
        assert not MARK.search(printed.encode())
        told = [path for path in Path("runs").rglob("*") if path.is_file() and path.suffix != ".parquet"]
        assert [path for path in told if MARK.search(path.read_bytes()) or MARK.search(path.name.encode())] == []
        return code, printed

    return run_once


def test_marks_are_in_the_scores_and_nowhere_else(run):
    code, printed = run()
    assert code == 0, printed
    (scores,) = Path("runs/private/readmission/latest").resolve().glob("scores.parquet")
    assert all(name.startswith("qzxH") for name in pq.read_table(scores)["hadm_id"].to_pylist())
    report = Path("runs/private/report.html").read_text()
    assert "Who comes back" in report and "small groups, not shown" in report


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
def test_broken_files_tell_no_mark(run, breaks, told):
    breaks()
    code, printed = run()
    assert code == 2, printed
    assert re.search(told, printed), printed
