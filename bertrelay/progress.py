"""Progress of long work: a bar with rate and time left on a terminal, plain lines elsewhere, nothing twice.

`progress` is for work that is counted, `spinner` for work that is not. Neither leaves a user without a sign for more
than SECONDS_OF_SILENCE.

Everything goes to standard error, and only from the main process. Never put text of a record into a description.
"""

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from threading import Lock, Timer
from typing import TYPE_CHECKING, Any

from bertrelay.process_group import ProcessGroup

if TYPE_CHECKING:
    from rich.console import Console

SECONDS_BETWEEN_LINES = 15.0
SECONDS_OF_SILENCE = 2.0


class Bar:
    """Progress that is not displayed: `advance(n)` counts n more units, with a note such as the loss."""

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Counts `amount` more units as done and shows `note` beside them."""


def log(message: str) -> None:
    """Prints a plain line about the work on standard error, from the main process only."""
    if ProcessGroup.from_environment().is_main:
        print(printable(message), file=sys.stderr, flush=True)


@contextmanager
def progress(description: str, total: int, unit: str = "items", done: int = 0, *, shown: bool = True) -> Iterator[Bar]:
    """Shows the progress of `total` units of work, `done` of which were finished before (a resumed run)."""
    if not (shown and ProcessGroup.from_environment().is_main and total > done):
        yield Bar()
    elif sys.stderr.isatty():
        with _rich_bar(description, total, unit, done) as bar:
            yield bar
    else:
        lines = _LineBar(description, total, unit, done)
        with _after_silence(lines.begin):
            yield lines
        lines.finish()


@contextmanager
def spinner(description: str) -> Iterator[None]:
    """Shows that work without a count is under way, once it has taken SECONDS_OF_SILENCE; inside a bar too."""
    if not ProcessGroup.from_environment().is_main:
        yield
    elif sys.stderr.isatty():
        with ExitStack() as stack, _after_silence(lambda: stack.enter_context(_rich_pulse(description))):
            yield
    else:
        with _after_silence(lambda: log(f"{description} …")):
            yield


@contextmanager
def _after_silence(show: Callable[[], object]) -> Iterator[None]:
    """Calls `show` once, from another thread, where the work within takes longer than SECONDS_OF_SILENCE."""
    lock, is_over = Lock(), False

    def show_unless_over() -> None:
        with lock:
            if not is_over:
                show()

    timer = Timer(SECONDS_OF_SILENCE, show_unless_over)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            is_over = True


class _LineBar(Bar):
    """Progress in plain lines: one after SECONDS_OF_SILENCE, then every SECONDS_BETWEEN_LINES, and one at the end."""

    def __init__(self, description: str, total: int, unit: str, done: int) -> None:
        self.description, self.total, self.unit = description, total, unit
        self.done = self.done_before = self.shown = done
        self.note = ""
        self.started = self.last_line = time.monotonic()

    def begin(self) -> None:
        """Prints a first line, unless there is one."""
        if self.last_line == self.started:
            self._print()

    def advance(self, amount: int = 1, note: str = "") -> None:
        self.done += amount
        self.note = note or self.note
        if time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
            self._print()

    def finish(self) -> None:
        if self.shown < self.done:
            self._print()

    def _print(self) -> None:
        self.shown = self.done
        self.last_line = time.monotonic()
        seconds = max(self.last_line - self.started, 1e-6)
        rate = (self.done - self.done_before) / seconds
        left = "" if self.done >= self.total or rate == 0 else f", {(self.total - self.done) / rate:.0f} s left"
        speed = f", {speed_of(rate, self.unit)}" if rate else ""
        log(
            f"{self.description}: {self.done:,} of {self.total:,} {self.unit}{speed}, {seconds:.0f} s{left}"
            + (f"  {self.note}" if self.note else "")
        )


def speed_of(rate: float, unit: str) -> str:
    """A rate per second in words: `12.5/s`, or `54 s a step` where a unit takes more than a second."""
    seconds = 1 / rate
    return (
        f"{rate:,.1f}/s" if rate >= 1 else f"{seconds:,.{int(seconds < 10)}f} s a {unit.split()[0].removesuffix('s')}"
    )


@lru_cache(1)
def _console() -> "Console":
    """The console of all bars: they share one, so that a bar may be shown inside another."""
    from rich.console import Console

    return Console(stderr=True)


@contextmanager
def _rich_bar(description: str, total: int, unit: str, done: int) -> Iterator[Bar]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn(f"{{task.completed:,}}/{{task.total:,}} {unit}"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    # Rich would redirect standard output to standard error too, away from the file or command that reads it.
    with Progress(*columns, console=_console(), redirect_stdout=False) as display:
        task = display.add_task(printable(description), total=total, completed=done, note="", rate="")

        class RichBar(Bar):
            def advance(self, amount: int = 1, note: str = "") -> None:
                speed = display.tasks[task].speed
                fields: dict[str, Any] = {"rate": speed_of(speed, unit) if speed else ""}
                fields |= {"note": note} if note else {}
                display.update(task, advance=amount, **fields)

        yield RichBar()


@contextmanager
def _rich_pulse(description: str) -> Iterator[None]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=_console(), redirect_stdout=False, transient=True) as display:
        display.add_task(printable(description), total=None)
        yield


CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
NAMES: dict[str, str] = {}
"""Path to the name that the user knows, of a file that is a copy of standard input."""


def renamed(text: str) -> str:
    """`text` with the user's names for the files of `NAMES`."""
    for path, name in NAMES.items():
        text = text.replace(path, name)
    return text


def printable(text: str) -> str:
    r"""`text` with control characters as escapes, as JSON writes them (`\u001b`); line breaks and tabs stay.

    Halves of surrogate pairs, which represent undecodable bytes of a file's name, are escaped too. Paths of `NAMES`
    become their names.
    """
    return CONTROL.sub(lambda control: f"\\u{ord(control[0]):04x}", renamed(text))
