"""Commands on notes and terms, intact and damaged, show no text of them and leave none behind.

The id of an admission stands in its own column of what scoring writes, and terms in the tables and pictures of terms:
they were asked for.
"""

import json
import re
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from bertrelay.data.records import Rejects
from bertrelay.data.shards import Span
from domain.clinical.model import save_model, start_model
from domain.clinical.note_selection import NoteKinds
from domain.clinical.predict_files import notes_source, notes_table, sorted_notes
from domain.clinical.settings import ModelDescription, ScoreOptions
from pipelines.cli import _exit_code

READS_ALL = NoteKinds(ModelDescription(), "notes")
MARK = re.compile("qzx", re.IGNORECASE)
NOTE = "QZXNAME OF IT:\nQzxword. The wound is dry, qzx {n}."
OF_TERMS = {"terms.csv", "neighbours.csv", "vectors.parquet", "tsne.svg", "tsne.png"}


@pytest.fixture(scope="module")
def models(bert, tmp_path_factory):
    """The folder of each command's model."""
    folder = tmp_path_factory.mktemp("model")
    save_model(start_model(bert, ModelDescription.model_validate({"chunking": {"max_tokens": 24}})), folder)
    return {"readmission": folder, "terms": bert}


def frame_of(command):
    """Four rows of the columns that `command` reads."""
    if command == "terms":
        return pd.DataFrame({"term": [f"wound qzx {n}" for n in range(4)], "group": ["qzx a", "Qzx b"] * 2})
    return pd.DataFrame({"hadm_id": [f"qzxH{n % 3}" for n in range(4)], "text": [NOTE.format(n=n) for n in range(4)]})


def cut_off(frame, path):
    frame.to_parquet(path)
    path.write_bytes(path.read_bytes()[:-100])


def first_row_as_names(frame, path):
    frame.iloc[1:].set_axis([f"{value} of it" for value in frame.iloc[0]], axis=1).to_parquet(path)


def with_line(spoil):
    """A function that writes a table as JSONL or CSV, by the path, with a damaged last line."""

    def written(frame, path):
        flat = frame.replace("\n", " ", regex=True)
        rows = flat.to_json(orient="records", lines=True) if path.suffix == ".jsonl" else flat.to_csv(index=False)
        *lines, last = rows.encode().splitlines()
        path.write_bytes(b"\n".join([*lines, spoil(last), b""]))

    return written


DAMAGES = {  # of the whole file: how it is written, and what is reported
    "a Parquet file cut off": (".parquet", cut_off, "cannot be read as Parquet"),
    "Parquet, names from its first row": (".parquet", first_row_as_names, "under names that may be text"),
    "CSV without a header": (".csv", lambda frame, path: frame.to_csv(path, index=False, header=False), "A header was"),
    "an open quote": (".csv", with_line(lambda line: line + b'\n"qzx\n"qzx,qzx'), "a quoted field starts here"),
}
ROWS = {  # of one row
    "bytes that are no text": (".csv", with_line(lambda line: line + b"\xffqzx"), "not valid UTF-8"),
    "JSON cut off": (".jsonl", with_line(lambda line: line[:-3]), "not JSON"),
    "JSON of other values": (
        ".jsonl",
        with_line(lambda _: b'{"hadm_id": ["qzx"], "term": ["qzx"], "text": {"qzx": 1}}'),
        "neither text nor a whole number|a term that is no text",
    ),
    "JSON with half a character": (".jsonl", with_line(lambda line: line.replace(b"qzx", b"\\ud800qzx")), "Unicode"),
}


@pytest.fixture
def call(models, tmp_path, capfd):
    """Runs a command with tracebacks; returns exit code and output, in which no mark may be."""

    def run(command, source, output, *options):
        words = [command, *(["score"] if command != "terms" else [])]
        arguments = [*words, str(models[command]), str(source), str(tmp_path / output), *options]
        code = _exit_code(arguments, debug=True)
        printed = "".join(capfd.readouterr())
        assert not MARK.search(printed), "the output shows a mark"
        assert telling(tmp_path, source) == []
        return code, printed

    return run


def telling(folder, source):
    """The files besides `source` with a mark in name or content, where the output has none by request."""
    files = [path for path in folder.rglob("*") if path.is_file() and path != source and path.name not in OF_TERMS]
    return [str(path) for path in files if MARK.search(path.name) or MARK.search(content(path))]


def content(path):
    """The content of a file without its column of ids."""
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        return f"{table.drop_columns(['hadm_id']).to_pylist()} {table.schema} {pq.read_metadata(path)}"
    if path.suffix == ".jsonl":
        return str([json.loads(line) | {"hadm_id": ""} for line in path.read_text().splitlines()])
    return path.read_bytes().decode(errors="replace")


OUTPUTS = {"readmission": ("o.parquet", "o.jsonl"), "terms": ("o",)}
COMMANDS = pytest.mark.parametrize("command", OUTPUTS)


@COMMANDS
def test_what_is_whole_is_worked_on_and_not_reported(call, tmp_path, command):
    frame_of(command).to_parquet(source := tmp_path / "given.parquet")
    for output in OUTPUTS[command]:
        code, printed = call(command, source, output)
        assert code == 0 and ("3 admissions" in printed or "4 terms" in printed), printed


@COMMANDS
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_and_not_reported(call, tmp_path, command, damage):
    suffix, write, message = DAMAGES[damage]
    write(frame_of(command), source := tmp_path / f"given{suffix}")
    code, printed = call(command, source, OUTPUTS[command][0], "--max-rejects", "1")
    assert code == 2 and re.search(message, printed), printed
    assert not [path for path in tmp_path.rglob("*") if path.name in {"o.parquet", *OF_TERMS}]


@COMMANDS
@pytest.mark.parametrize("damage", ROWS)
def test_a_damaged_row_is_listed_by_its_line_alone(call, tmp_path, command, damage):
    suffix, write, message = ROWS[damage]
    write(frame_of(command), source := tmp_path / f"given{suffix}")
    code, printed = call(command, source, "a.parquet" if command != "terms" else "a", "--max-rejects", "0")
    assert code == 1 and re.search(message, printed), printed
    assert not [path for path in tmp_path.iterdir() if path.name in ("a.parquet", "a.parquet.partial")]
    for output in OUTPUTS[command]:
        code, printed = call(command, source, output, "--max-rejects", "1")
        assert code == 0 and re.search(f"left out 1 of 4 .*({message})", printed), printed
    listed = [json.loads(line) for path in tmp_path.rglob("*rejects.jsonl") for line in path.read_text().splitlines()]
    assert listed and all(set(reject) == {"file", "line", "reason"} for reject in listed)


def test_notes_are_sorted_beside_the_output(tmp_path, monkeypatch):
    pd.DataFrame({"hadm_id": [*range(40), *range(40)], "text": "qzx"}).to_parquet(tmp_path / "notes.parquet")
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    notes = notes_table("notes.parquet", ScoreOptions())
    with Rejects(None) as rejects, sorted_notes(notes, Path("out/o.csv"), rejects, 1_000, READS_ALL) as by_admission:
        assert len(by_admission.names) == 40
        assert by_admission.of(Span(3, 5, 2)) == {"3": ["qzx"], "4": ["qzx"]}
        assert [path.name for path in Path("out").iterdir()] == [".o.csv.notes"]
    assert not list(Path("out").iterdir())


def test_notes_of_an_admission_in_two_files_are_in_the_order_of_the_files(tmp_path):
    (tmp_path / "in").mkdir()
    for file, rows in {"0": [("a", "a1"), ("b", "b1"), ("b", "b2")], "1": [("b", "b3"), ("a", "a2")]}.items():
        pd.DataFrame(rows, columns=["hadm_id", "text"]).to_parquet(tmp_path / f"in/{file}.parquet")
    notes = notes_source(f"{tmp_path}/in/", ScoreOptions())
    with Rejects(None) as rejects, sorted_notes(notes, tmp_path / "out", rejects, 1_000, READS_ALL) as by_admission:
        assert by_admission.of(Span(0, 2, 2)) == {"a": ["a1", "a2"], "b": ["b1", "b2", "b3"]}
