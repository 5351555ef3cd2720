"""Refuses to publish a result whose input changed while it was read: it would mix the old content with the new.

The notes are global to the process, so that threads which read ahead add to those of their caller. Loads nothing heavy.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bertrelay.errors import WorkError

Stamps = dict[str, tuple[Callable[[], object], object]]
"""Name of an input → a function that reads its present state, and the state in which it was first read."""

_open: list[Stamps] = []


@contextmanager
def unchanged_inputs(separate: bool = False) -> Iterator[None]:
    """Notes inputs as they are read inside, for `check_inputs` to compare.

    separate: the inputs read inside are not inputs of the surrounding work.
    """
    global _open
    before, noted = _open, Stamps()
    _open = [noted] if separate else [*before, noted]
    try:
        yield
    finally:
        _open = before


def note_input(name: str | Path, state: Callable[[], object] | None = None) -> None:
    """Notes that the input `name` is read now. Raises WorkError if it has changed since it was read before.

    state: reads the state that must stay the same; by default `state_of` the file.
    """
    name = str(name)
    read_state = state or (lambda: state_of(name))
    if _open:
        now = read_state()
        for noted in _open:
            if noted.setdefault(name, (read_state, now))[1] != now:
                raise changed(name)


def check_inputs() -> None:
    """Raises WorkError for an input that was changed or removed since it was first read."""
    for noted in _open:
        for name, (read_state, state) in list(noted.items()):
            if read_state() != state:
                raise changed(name)


def changed(name: str | Path) -> WorkError:
    """The error for an input that changed."""
    return WorkError(f"{name} changed while it was read; run the same command again")


def state_of(name: str | Path) -> tuple[int, ...] | None:
    """Size, mtime and inode of a file; None where it does not exist."""
    try:
        status = Path(name).stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino
