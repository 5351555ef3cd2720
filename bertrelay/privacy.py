"""Sensitive data: what is written is for its owner alone, and no message names or quotes a record.

This holds for the whole process, as a umask does: threads that read ahead belong to the work. Loads nothing heavy.
"""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bertrelay.errors import BertRelayError, RequestError, WorkError, describe_unforeseen, is_machine_error

OWNER_ALONE, GROUP_READS = 0o077, 0o027
WITHHELD = "(withheld)"

_umasks: list[int] = []  # the usual one, and those of the contexts that are open; empty where none is


@contextmanager
def sensitive_data(group_read: bool = False) -> Iterator[None]:
    """While it is open, new files and folders are for their owner alone, and identifiers are withheld.

    group_read: lets the group of a file read it; within a context that does, always so.
    An unforeseen error, whose message may quote a record, leaves as a WorkError without it; so does what caused one of
    the project's own errors.
    """
    umask = GROUP_READS if group_read or GROUP_READS in _umasks[1:] else OWNER_ALONE
    before = os.umask(umask)
    _umasks.extend([umask] if _umasks else [before, umask])
    try:
        yield
    except BertRelayError as error:
        raise error from None
    except Exception as error:
        if is_machine_error(error):
            raise
        origin = describe_unforeseen(error)
        message = f"{origin}; its message may quote sensitive data and is withheld. What was done is kept"
        raise WorkError(message).with_traceback(error.__traceback__) from None
    finally:
        _umasks.pop()
        os.umask(_umasks[-1])  # another thread's, as long as that one is at work
        if len(_umasks) == 1:
            _umasks.clear()


def is_sensitive() -> bool:
    """Whether the process works on sensitive data now."""
    return bool(_umasks)


@contextmanager
def identifiers_shown() -> Iterator[None]:
    """Names records by their identifiers again, at the user's request."""
    withheld = _umasks.copy()
    _umasks.clear()
    try:
        yield
    finally:
        _umasks.extend(withheld)


@contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Sends temporary files to `folder`: Python's, SQLite's, and those of libraries that read the environment."""
    names = ("TMPDIR", "SQLITE_TMPDIR")
    before, usual = {name: os.environ[name] for name in names if name in os.environ}, tempfile.tempdir
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.update(dict.fromkeys(names, str(folder)))
    tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = usual
        for name in names:
            del os.environ[name]
        os.environ.update(before)


def check_page(with_text: bool) -> None:
    """Raises RequestError for a page of sensitive data where its text was not requested."""
    if is_sensitive() and not with_text:
        raise RequestError(
            "a page shows the text of sensitive data; ask for it with --with-text (in a recipe with_text = true), or "
            "write another format"
        )


def current_umask() -> int:
    """The umask of this process. To be read it is set for a moment, to what lays no other thread's file open."""
    umask = os.umask(OWNER_ALONE)
    os.umask(umask)
    return umask


def apply_umask(folder: Path) -> None:
    """Gives `folder` and all in it the permissions that the umask gives: temporary files and older ones have others."""
    umask = current_umask()
    for path in [folder, *folder.rglob("*")]:
        mode = stat.S_IMODE(path.lstat().st_mode)
        wanted = (mode & ~0o777) | ((0o777 if path.is_dir() else 0o666) & ~umask)
        if mode != wanted and not path.is_symlink():
            with suppress(PermissionError):  # of a colleague's file
                path.chmod(wanted)
