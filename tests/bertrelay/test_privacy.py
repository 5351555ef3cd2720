"""Sensitive data in a process: the umask, what errors may quote, where temporary files are."""

import os
import tempfile
import traceback
from pathlib import Path

import pytest

from bertrelay.errors import RequestError, WorkError
from bertrelay.privacy import apply_umask, current_umask, is_sensitive, sensitive_data, temporary_files_in


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path):
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize(
    ("outer", "inner", "mask"), [(True, False, 0o027), (False, True, 0o027), (False, False, 0o077)]
)
def test_a_group_that_may_read_may_read_within_it_too(outer, inner, mask):
    with sensitive_data(bool(outer)), sensitive_data(bool(inner)):
        assert current_umask() == mask
    assert current_umask() == 0o022


def test_the_usual_umask_comes_back_with_the_last_that_leaves():
    first, second = sensitive_data(), sensitive_data()  # as two threads may have them
    for context in (first, second):
        context.__enter__()
    first.__exit__(None, None, None)
    assert current_umask() == 0o077 and is_sensitive()
    second.__exit__(None, None, None)
    assert current_umask() == 0o022 and not is_sensitive()


@pytest.mark.parametrize("error", [ValueError("qzx"), KeyError("qzx"), OSError("qzx")])
def test_an_unforeseen_error_leaves_without_its_message(error):
    with (
        pytest.raises(WorkError, match=f"unforeseen {type(error).__name__} in .*test_privacy.py") as raised,
        sensitive_data(),
    ):
        raise error
    assert "qzx" not in "".join(traceback.format_exception(raised.value))


def test_what_caused_an_error_of_ours_stays_within():
    cause = ValueError("qzx")
    with pytest.raises(RequestError, match="ours") as raised, sensitive_data():
        raise RequestError("ours") from cause
    assert "qzx" not in "".join(traceback.format_exception(raised.value))


def test_an_error_of_the_system_says_what_it_is(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"), sensitive_data():
        (tmp_path / "nowhere").read_text()


@pytest.mark.promise("Permissions follow the umask of sensitive data", about="privacy")
def test_permissions_follow_the_umask_and_a_folder_keeps_its_group(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/open").write_text("")
    (tmp_path / "inner").chmod(0o2777)
    os.close(tempfile.mkstemp(dir=tmp_path)[0])
    (tmp_path / "link").symlink_to("/etc/hostname")
    with sensitive_data(group_read=True):
        apply_umask(tmp_path)
    assert mode(tmp_path / "inner") == 0o2750
    assert {mode(path) for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()} == {0o640}


def test_temporary_files_lie_in_the_folder_and_no_longer_after_it(tmp_path):
    before = tempfile.gettempdir(), os.environ.get("TMPDIR")
    with temporary_files_in(tmp_path / "work"), tempfile.NamedTemporaryFile() as file:
        assert Path(file.name).parent == tmp_path / "work" == Path(os.environ["TMPDIR"])
    assert (tempfile.gettempdir(), os.environ.get("TMPDIR")) == before
