"""The files that work reads: none may change before the result is published, or it would be of neither content.

This holds for the whole process, as a umask does: threads that read ahead belong to the work. Loads nothing heavy.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bertrelay.errors import WorkError

Stamps = dict[str, tuple[Callable[[], object], object]]
"""By the name of an input: what reads its present state, and the state in which it was first read."""

_open: list[Stamps] = []


@contextmanager
def unchanged_inputs(alone: bool = False) -> Iterator[None]:
    """While it is open, inputs are noted as they are read, and `check_inputs` compares them.

    alone: what is read inside does not concern the work around it.
    """
    global _open
    before, noted = _open, Stamps()
    _open = [noted] if alone else [*before, noted]
    try:
        yield
    finally:
        _open = before


def note_input(name: str | Path, state: Callable[[], object] | None = None) -> None:
    """Notes that the input `name` is read now. Raises WorkError where it has changed since it was read before.

    state: gives what must stay the same; by default of a file its size, time and number on the disk.
    """
    name = str(name)
    read_state = state or (lambda: state_of(name))
    if _open:
        now = read_state()
        for noted in _open:
            if noted.setdefault(name, (read_state, now))[1] != now:
                raise changed(name)


def check_inputs() -> None:
    """Raises WorkError for an input that has changed, or is gone, since it was first read."""
    for noted in _open:
        for name, (read_state, state) in list(noted.items()):
            if read_state() != state:
                raise changed(name)


def changed(name: str | Path) -> WorkError:
    """What to raise for an input that is no longer what it was."""
    return WorkError(f"{name} changed while it was read; run the same command again")


def state_of(name: str | Path) -> tuple[int, ...] | None:
    """Size, time and number on the disk of a file; None where there is none."""
    try:
        status = Path(name).stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino
