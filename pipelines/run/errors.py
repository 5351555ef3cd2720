"""Error handling: errors of the system and of signals become errors that say what to do."""

import errno
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bertrelay.errors import BertRelayError, RequestError, Stopped, WorkError
from bertrelay.files import NO_SPACE, NOT_UTF8, error_number
from bertrelay.signals import on_stop_signal

NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}
NO_PLACE = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG}


@contextmanager
def named(label: str) -> Iterator[None]:
    """Says in the project's own errors which stage they are about."""
    try:
        yield
    except BertRelayError as error:
        error.args = (f"[{label}] {error}",)
        raise


@contextmanager
def force_explained(forced: Sequence[str]) -> Iterator[None]:
    """Adds how a run with `--force` resumes: the same command would remove what is saved."""
    try:
        yield
    except (Stopped, WorkError) as error:
        if forced:
            hint = f"Leave --force out to resume: with it, {', '.join(forced)} would restart."
            error.args = (f"{error}. {hint}",)
        raise


@contextmanager
def disk_explained(folder: Path, option: str = "--runs DIR") -> Iterator[None]:
    """Turns what a full disk or an unusable folder raises into an error with what to do.

    option: how another folder is named.
    """
    try:
        yield
    except BertRelayError:
        raise
    except Exception as error:
        if isinstance(error, UnicodeEncodeError) and "\udc80" <= error.object[error.start] <= "\udcff":
            raise RequestError(f"{NOT_UTF8}, found one that is not; rename it") from error
        number, path = error_number(error), getattr(error, "filename", None) or folder
        if number in NO_SPACE:
            raise WorkError(
                f"no space left to write {path}: the disk, the quota or the limit on file sizes is full. Free some, "
                f"or choose another disk ({option}), and run the same command again; what was done is kept"
            ) from error
        if number in NOT_ALLOWED:
            raise RequestError(
                f"expected a place that may be read and written, found none: {path}. "
                f"Change its permissions, or choose another folder ({option})"
            ) from error
        if isinstance(error, OSError) and error.errno in NO_PLACE:
            raise RequestError(
                f"expected a place that can be written to, found: {error.strerror}, at {path}. "
                f"Choose another folder ({option})"
            ) from error
        raise


@contextmanager
def stopping_at_once(then: str = "the same command resumes from what is saved") -> Iterator[None]:
    """Turns SIGTERM, Ctrl-C and SIGHUP into Stopped. A training, which stops at a step of its own, handles them itself.

    then: what the error reports of the work so far.
    """

    def stop(number: int) -> None:
        raise Stopped(f"stopped by {signal.Signals(number).name}; {then}", number)

    with on_stop_signal(stop):
        yield
