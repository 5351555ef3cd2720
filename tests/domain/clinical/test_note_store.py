"""The store of notes: order, copies, and what a kill leaves on the disk."""

import signal
import subprocess
import sys
from itertools import groupby
from random import Random

import pytest

from bertrelay.data.shards import Span
from bertrelay.errors import WorkError
from domain.clinical import note_store
from domain.clinical.note_store import Note, open_note_store


def test_notes_are_read_by_stay_time_and_row_without_copies(tmp_path):
    random = Random(7)
    times = [None, "2150-01-01 10:00:00", "2150-01-02 10:00:00"]
    notes = [
        Note(random.randrange(9), random.choice("ab"), random.randrange(2), random.choice(times), row, text)
        for row, text in enumerate(random.choices(["one two", " one\ntwo", "drei – µg", "four", ""], k=400))
    ]
    first = {}
    for note in notes:
        words = note.text.split()
        first.setdefault((note.stay, note.hadm_id, note.kind, note.charted, *(words or [note.row])), note)
    expected = sorted(first.values(), key=lambda note: (note.stay, note.charted is None, note.charted or "", note.row))
    with open_note_store(tmp_path / "sorting") as store:
        for start in range(0, 400, 60):
            store.add(notes[start : start + 60])
        store.add([])
        sizes = store.sort()
        read = [stay for first in (0, 3) for stay in store.read(Span(first, first * 3 or 3, 3))]
        assert len(store) == len(expected) < len(notes)
    assert read == [(stay, list(group)) for stay, group in groupby(expected, lambda note: note.stay)]
    assert sizes == {stay: sum(len(note.text) for note in group) for stay, group in read}
    assert not list(tmp_path.iterdir())


KILLED = """
import os, signal, sys
from pathlib import Path
from random import randbytes
from bertrelay.privacy import sensitive_data
from domain.clinical import note_store
from domain.clinical.note_store import Note, open_note_store

note_store.MEMORY = "32MB"
with sensitive_data(), open_note_store(Path(sys.argv[1])) as store:
    for first in range(0, 160_000, 8000):
        rows = range(first, first + 8000)
        store.add([Note(row % 7919, f"qzxH{randbytes(50).hex()}", 0, None, row, f"Qzxword {row}") for row in rows])
    store.sort()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_leaves_no_text_and_its_keys_only_in_the_folder_until_the_next_run(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    folder = tmp_path / "run" / "sorting"
    command = [sys.executable, "-c", KILLED, str(folder)]
    assert subprocess.run(command, check=False, cwd=tmp_path / "elsewhere").returncode == -signal.SIGKILL
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and {path.parent for path in files} == {folder}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600} and folder.stat().st_mode & 0o777 == 0o700
    written = b"".join(path.read_bytes() for path in files)
    assert b"qzxH" in written and b"Qzxword" not in written
    with open_note_store(folder):
        assert not set(files) & set(folder.iterdir())
    assert not folder.exists()


def test_a_sort_that_fails_is_reported_without_what_is_sorted(tmp_path, monkeypatch):
    monkeypatch.setattr(note_store, "SORTED", "SELECT CAST('qzx' AS INT)")
    message = r"could not be sorted in .*: DuckDB reports ConversionException\."
    with pytest.raises(WorkError, match=message), open_note_store(tmp_path / "sorting") as store:
        store.sort()
