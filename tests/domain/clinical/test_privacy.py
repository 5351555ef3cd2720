"""Marks stand in every column of every table, and in nothing that is told or written but the Parquet outputs.

What a stage keeps below `work` until it is done is what those outputs are made of, and is not looked at either.
"""

import gzip
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from marked_tables import MARK, Rows, cell, packed, tables, write
from transformers import BertConfig, BertForPreTraining

from bertrelay.new_encoder import train_wordpiece
from pipelines.cli import _exit_code

OUTPUTS = {".parquet", ".sqlite"}
PRETRAINING = """
[pretraining]
uses = "domain.pretrain"
base = "./base"
held_out_share = 0.3
documents = [{ path = "@notes/notes.parquet", id = "hadm_id", group = "subject_id" }]
protected_tokens = "@notes/tokens.txt"
max_tokens = 16
epochs = 1
batch_tokens = 4096
"""

RECIPE = """
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
{notes}
[audit]
uses = "domain.audit"
files = ["@cohort/cohort.parquet", "@notes/notes.parquet"]
"""


def put(table: str, column: str, value: str, share: int = 1) -> Callable[[Rows], None]:
    """Breaks every `share`-th value of a column."""

    def broken(found: Rows) -> None:
        place = found[table][0].index(column)
        for row in found[table][1::share]:
            row[place] = value

    return broken


def all_of_one_admission(found: Rows) -> None:
    put("ADMISSIONS", "HADM_ID", cell("HADM_ID", 0))(found)


def without_header(table: str) -> Callable[[Rows], None]:
    return lambda found: found[table].pop(0) and None


def too_many_fields(found: Rows) -> None:
    for row in found["NOTEEVENTS"][1::3]:
        row.append("QZXEXTRA")


def renamed(found: Rows) -> None:
    found["NOTEEVENTS"][0][-1] = "QZXTEXT"


FAULTS: dict[str, Callable[[Rows], None]] = {
    "a wrong time": put("ADMISSIONS", "ADMITTIME", "05.03.2177- QZX", 3),
    "a wrong date": put("NOTEEVENTS", "CHARTDATE", "QZX 2177-03-99", 3),
    "a birth that is no date": put("PATIENTS", "DOB", "QZXDOB", 3),
    "one admission in all rows": all_of_one_admission,
    "admissions without an id": put("ADMISSIONS", "HADM_ID", "", 3),
    "notes of unknown admissions": put("NOTEEVENTS", "HADM_ID", "qzxH999"),
    "notes of other subjects": put("NOTEEVENTS", "SUBJECT_ID", "qzxS888"),
    "no discharge summaries": put("NOTEEVENTS", "CATEGORY", "QZXCATEGORY"),
    "an empty cohort": put("ADMISSIONS", "ADMISSION_TYPE", "NEWBORN"),
    "diagnoses of other admissions": put("DIAGNOSES_ICD", "HADM_ID", "qzxH777"),
    "a diagnosis that is no number": put("DIAGNOSES_ICD", "SEQ_NUM", "QZXSEQ"),
    "notes without a header": without_header("NOTEEVENTS"),
    "admissions without a header": without_header("ADMISSIONS"),
    "too many fields": too_many_fields,
    "a column of another name": renamed,
    "two patients of one id": put("PATIENTS", "SUBJECT_ID", "qzxS1", 2),
}

DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "truncated notes": ("NOTEEVENTS", lambda raw: gzip.compress(raw)[:-900]),
    "truncated admissions": ("ADMISSIONS", lambda raw: gzip.compress(raw)[:-300]),
    "an open quote": ("NOTEEVENTS", lambda raw: raw.replace(b'""Qzxquoted""', b'"Qzxquoted""', 1)),
    "bytes that are no text": ("NOTEEVENTS", lambda raw: raw.replace(b"Qzxend", b"\xff\xfeQzxend")),
    "an id that is no text": ("NOTEEVENTS", lambda raw: raw.replace(b",qzx", b",\xffqzx")),
    "NUL characters": ("ADMISSIONS", lambda raw: raw.replace(b"QZX", b"\0QZX")),
    "another file": ("PATIENTS", lambda raw: b"%PDF QZX 2177-\n" * 50 + raw),
    "UTF-16": ("NOTEEVENTS", lambda raw: raw.decode().encode("utf-16")),
    "nothing in it": ("NOTEEVENTS", lambda raw: raw[:0]),
}


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Runs the recipe by the command line: exit code and what was printed. Checks that nothing tells a mark."""
    monkeypatch.chdir(tmp_path)

    def run_once(max_rejects: float = 1, notes: str = "", more: str = "") -> tuple[int, str]:
        Path("private.toml").write_text(RECIPE.format(max_rejects=max_rejects, notes=notes) + more)
        code = _exit_code(["run", "private.toml", "--runs", "runs"], debug=False)
        printed = "".join(capfd.readouterr())
        assert not MARK.search(printed.encode()), "what was printed tells a mark"
        assert telling(Path("runs")) == []
        return code, printed

    return run_once


def telling(folder: Path) -> list[str]:
    """The files that tell a mark, by content or by name."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix not in OUTPUTS]
    named = [str(path) for path in folder.rglob("*") if MARK.search(path.name.encode())]
    return named + [str(path) for path in files if MARK.search(path.read_bytes())]


def latest(stage: str, name: str) -> Path:
    return Path("runs/private", stage, "latest", name)


def test_marks_are_in_the_outputs_and_nowhere_else(run, tmp_path):
    write(tmp_path / "mimic", tables())
    code, printed = run(max_rejects=0)
    assert code == 0
    assert "NOTEEVENTS" in printed or "noteevents" in printed
    (note, *_) = pq.read_table(latest("notes", "notes.parquet")).to_pylist()
    assert MARK.search(note["text"].encode()) and MARK.search(note["hadm_id"].encode())
    assert MARK.search(str(note["sections"]).encode())
    assert latest("cohort", "flow.csv").is_file() and Path("runs/private/report.html").is_file()


@pytest.mark.parametrize(
    ("fault", "max_rejects"), [*((fault, 1) for fault in FAULTS), ("a wrong time", 0), ("a wrong date", 0)]
)
def test_broken_rows_show_no_mark(run, tmp_path, fault, max_rejects):
    found = tables()
    FAULTS[fault](found)
    write(tmp_path / "mimic", found)
    run(max_rejects)


@pytest.mark.parametrize("damage", DAMAGES)
def test_broken_files_show_no_mark(run, tmp_path, damage):
    write(tmp_path / "mimic", tables())
    table, broken = DAMAGES[damage]
    (tmp_path / "mimic" / f"{table}.csv.gz").write_bytes(broken(packed(tables()[table])))
    run()


@pytest.mark.parametrize("missing", ["ADMISSIONS", "PATIENTS", "NOTEEVENTS"])
def test_a_missing_table_is_reported_without_a_mark(run, tmp_path, missing):
    write(tmp_path / "mimic", {name: rows for name, rows in tables().items() if name != missing})
    code, printed = run()
    assert code == 2
    assert missing.lower() in printed


def test_pretraining_with_a_vocabulary_of_its_own_shows_no_mark(run, tmp_path):
    tokenizer = train_wordpiece([" ".join("abcdefghijklmnopqrstuvwxyz0123456789-.[]:")], 60, 16)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=16, **sizes)
    BertForPreTraining(config).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    write(tmp_path / "mimic", tables())
    code, printed = run(more=PRETRAINING)
    assert code == 0, printed
    assert "not of the train split" in printed
    assert latest("pretraining", "model").is_dir()


def test_rejects_are_listed_by_row_and_reason_alone(run, tmp_path):
    found = tables()
    FAULTS["a wrong date"](found)
    write(tmp_path / "mimic", found)
    assert run()[0] == 0
    rejects = latest("notes", "rejects.jsonl").read_text()
    assert rejects.count("chartdate is no date") == 14


def test_an_audit_that_finds_leaks_shows_rows_alone(run, tmp_path, capfd):
    write(tmp_path / "mimic", tables())
    assert run()[0] == 0
    rows = pq.read_table(latest("notes", "notes.parquet")).to_pylist()
    leaked = [row | {"split": split} for row in rows for split in ("train", "test")]
    pq.write_table(pa.Table.from_pylist(leaked), "leaked.parquet")
    for more in ([], ["--json"]):
        assert _exit_code(["data", "audit", "leaked.parquet", *more], debug=False) == 1
        printed = "".join(capfd.readouterr())
        assert "leaked.parquet" in printed
        assert not MARK.search(printed.encode())
