"""Being asked to stop: SIGTERM and Ctrl-C are noted, so that work can end at a good place."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from bertrelay.progress import say

STOPPING = (signal.SIGINT, signal.SIGTERM)


@dataclass
class StopRequest:
    """The signal that asked to stop, or 0."""

    signal_number: int = 0


@contextmanager
def noted_stop_signals() -> Iterator[StopRequest]:
    """Notes a first SIGTERM or Ctrl-C instead of dying of it; a second one acts at once."""
    request = StopRequest()

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        request.signal_number = number
        for each, handler in before.items():
            signal.signal(each, handler)
        say(f"{signal.Signals(number).name}: finishing this step, then saving …")

    try:
        before = {number: signal.signal(number, note) for number in STOPPING}
    except ValueError:  # outside the main thread Python lets nobody handle signals
        before = {}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
