"""Sensitive data: files are for their owner only, and no message names or quotes a record.

Both hold for the whole process, as a umask does: threads that read ahead belong to the work. Loads nothing heavy.
"""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bertrelay.errors import BertRelayError, RequestError, WorkError, describe_unforeseen, is_machine_error

OWNER_ONLY, GROUP_READS = 0o077, 0o027
WITHHELD = "(withheld)"

_umasks: list[int] = []  # the usual one, and those of the open `sensitive_data` contexts; empty without any


@contextmanager
def sensitive_data(group_read: bool = False) -> Iterator[None]:
    """Makes new files and folders readable by their owner only, and withholds identifiers, while it is open.

    group_read: let the group of a file read it; inside a context that does, it always may.
    An unforeseen error, whose message may quote a record, becomes a WorkError without the message; an error of the
    project's own loses its cause.
    """
    umask = GROUP_READS if group_read or GROUP_READS in _umasks[1:] else OWNER_ONLY
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
        os.umask(_umasks[-1])  # that of another thread's context, as long as one is open
        if len(_umasks) == 1:
            _umasks.clear()


def is_sensitive() -> bool:
    """Returns true while the process works on sensitive data."""
    return bool(_umasks)


@contextmanager
def show_identifiers() -> Iterator[None]:
    """Lets errors and logs name records by their identifiers, at the user's request."""
    withheld = _umasks.copy()
    _umasks.clear()
    try:
        yield
    finally:
        _umasks.extend(withheld)


@contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Sends temporary files to `folder`: Python's, and those of libraries that read the environment."""
    before, usual = os.environ.get("TMPDIR"), tempfile.tempdir
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = usual
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before


def check_page(with_text: bool) -> None:
    """Raises RequestError for a page of sensitive data where its text was not requested."""
    if is_sensitive() and not with_text:
        raise RequestError(
            "a page shows the text of sensitive data; allow it with --with-text (in a recipe with_text = true), or "
            "write another format"
        )


def current_umask() -> int:
    """The umask of this process. Reading it sets it briefly to 0o077, so that no file of another thread is readable."""
    umask = os.umask(OWNER_ONLY)
    os.umask(umask)
    return umask


def apply_umask(folder: Path) -> None:
    """Gives `folder` and everything in it the umask's permissions: temporary files and older ones have others."""
    umask = current_umask()
    for path in [folder, *folder.rglob("*")]:
        mode = stat.S_IMODE(path.lstat().st_mode)
        expected = (mode & ~0o777) | ((0o777 if path.is_dir() else 0o666) & ~umask)
        if mode != expected and not path.is_symlink():
            with suppress(OSError):  # the file of another user, or a disk that is only read
                path.chmod(expected)


def close_if_sensitive(folder: Path) -> None:
    """Gives `folder` the umask's permissions where data are sensitive: an earlier call may have left it open."""
    if is_sensitive():
        apply_umask(folder)
