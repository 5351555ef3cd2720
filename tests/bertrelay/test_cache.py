"""A cached folder: filled once, complete or absent, whatever kills or accompanies the process that fills it."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from bertrelay import locks
from bertrelay.cache import cached_folder
from bertrelay.errors import RequestError, WorkError
from bertrelay.inputs import note_input, unchanged_inputs
from bertrelay.privacy import sensitive_data


class Killed(Exception):
    pass


def write_half(building):
    (building / "first").write_text("1")
    raise Killed


def write_rest(building):
    (building / "second").write_text("2")


@pytest.mark.parametrize(("resume", "names"), [(False, ["second"]), (True, ["first", "second"])])
def test_an_unfinished_folder_is_absent_and_then_emptied_or_resumed(tmp_path, resume, names):
    folder = tmp_path / "cache" / "key"
    with pytest.raises(Killed):
        cached_folder(folder, write_half, resume)
    assert not folder.exists() and folder.with_name("key.partial").exists() == resume
    assert cached_folder(folder, write_rest, resume) == folder
    assert sorted(path.name for path in folder.iterdir()) == names
    cached_folder(folder, write_half, resume)  # complete, so it writes nothing
    assert sorted(path.name for path in folder.parent.iterdir()) == ["key", "key.lock"]


def test_a_second_caller_waits_and_takes_the_folder(tmp_path, monkeypatch):
    filled, logged, waits = [], [], Event()

    def log(text):
        logged.append(text)
        waits.set()

    def fill_when_another_waits(building):
        filled.append(building)
        assert waits.wait(60)
        write_rest(building)

    def read(_):
        return (cached_folder(tmp_path / "key", fill_when_another_waits) / "second").read_text()

    monkeypatch.setattr(locks, "log", log)
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(read, range(2))) == ["2", "2"]
    assert len(filled) == 1
    assert len(logged) == 1 and "key: waiting for another process" in logged[0]


def test_a_complete_folder_is_read_where_no_lock_can_be_made_and_without_one_the_reason_is_named(tmp_path):
    (tmp_path / "key.lock").mkdir()
    with pytest.raises(RequestError, match=r"expected a file that may be written, found .*key"):
        cached_folder(tmp_path / "key", write_rest)
    (tmp_path / "key").mkdir()
    assert cached_folder(tmp_path / "key", write_half) == tmp_path / "key"
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match=r"expected a file that may be written, found .*file/cache"):
        cached_folder(tmp_path / "file/cache/key", write_rest)


def modes(folder):
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.iterdir()]}


def test_what_was_cached_before_data_were_sensitive_is_closed_to_others(tmp_path):
    folder = tmp_path / "key"
    with pytest.raises(Killed):
        cached_folder(folder, write_half, resume=True)
    with sensitive_data():
        cached_folder(folder, write_rest, resume=True)
    assert modes(folder) == {"key": 0o700, "first": 0o600, "second": 0o600}
    cached_folder(tmp_path / "open", write_rest)
    with sensitive_data():
        cached_folder(tmp_path / "open", write_rest)
    assert modes(tmp_path / "open") == {"open": 0o700, "second": 0o600}


def test_files_are_synced_before_the_folder_gets_its_name(tmp_path, monkeypatch):
    """After a power cut only synced files are complete; the name must not be there without them."""
    synced, sync = [], os.fsync

    def noting(descriptor):
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(tmp_path)))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    cached_folder(tmp_path / "key", write_rest)
    assert synced == ["key.partial/second", "key.partial", "."]


def test_an_input_that_changes_meanwhile_leaves_no_folder(tmp_path):
    source = tmp_path / "source"
    source.write_text("before")

    def copy_and_change(building):
        note_input(source)
        (building / "copy").write_text(source.read_text())
        source.write_text("afterwards")

    with unchanged_inputs(), pytest.raises(WorkError, match="source changed while it was read"):
        cached_folder(tmp_path / "key", copy_and_change)
    assert not (tmp_path / "key").exists()
