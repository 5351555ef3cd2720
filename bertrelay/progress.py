"""Progress of long work: a bar with rate and time left on a terminal, plain lines elsewhere, nothing twice.

Everything goes to standard error, and only from the main process. Never put text of a record into a description.
"""

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bertrelay.distributed import ProcessGroup

SECONDS_BETWEEN_LINES = 15.0


class Bar:
    """What `progress` hands out: `advance(n)` after n more units, `note` for metrics such as the loss."""

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Counts `amount` more units as done and shows `note` beside them."""


def log(message: str) -> None:
    """Prints a plain line about the work on standard error, from the main process only."""
    if ProcessGroup.from_environment().is_main:
        print(printable(message), file=sys.stderr, flush=True)


@contextmanager
def progress(description: str, total: int, unit: str = "items", done: int = 0, *, shown: bool = True) -> Iterator[Bar]:
    """Shows `total` units of work going by; `done` of them were finished before (a resumed run)."""
    if not (shown and ProcessGroup.from_environment().is_main and total > done):
        yield Bar()
    elif sys.stderr.isatty():
        with _rich_bar(description, total, unit, done) as bar:
            yield bar
    else:
        lines = _LineBar(description, total, unit, done)
        yield lines
        lines.finish()


class _LineBar(Bar):
    """Plain lines: one every few seconds and one at the end."""

    def __init__(self, description: str, total: int, unit: str, done: int) -> None:
        self.description, self.total, self.unit = description, total, unit
        self.done = self.done_before = self.shown = done
        self.note = ""
        self.started = self.last_line = time.monotonic()

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
        log(
            f"{self.description}: {self.done:,} of {self.total:,} {self.unit}, {rate:,.1f}/s, {seconds:.0f} s{left}"
            + (f"  {self.note}" if self.note else "")
        )


@contextmanager
def _rich_bar(description: str, total: int, unit: str, done: int) -> Iterator[Bar]:
    from rich.console import Console
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
    # Rich would send standard output the same way, away from the file or the command that reads it.
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False) as shown:
        task = shown.add_task(printable(description), total=total, completed=done, note="", rate="")

        class RichBar(Bar):
            def advance(self, amount: int = 1, note: str = "") -> None:
                speed = shown.tasks[task].speed
                fields: dict[str, Any] = {"rate": f"{speed:,.1f}/s" if speed else ""} | ({"note": note} if note else {})
                shown.update(task, advance=amount, **fields)

        yield RichBar()


CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
NAMES: dict[str, str] = {}
"""The user's name of a file, by its path, where it is a copy: of standard input."""


def renamed(text: str) -> str:
    """`text` with the user's names for the files of `NAMES`."""
    for path, name in NAMES.items():
        text = text.replace(path, name)
    return text


def printable(text: str) -> str:
    r"""`text` with control characters as escapes, as JSON writes them (`\u001b`); line breaks and tabs stay.

    Halves of surrogate pairs, which represent undecodable bytes of a file's name, are escaped too. Files are called
    by the names in `NAMES`.
    """
    return CONTROL.sub(lambda control: f"\\u{ord(control[0]):04x}", renamed(text))
