"""Stop signals: SIGTERM, Ctrl-C and a closed terminal (SIGHUP) let work save its state before it ends."""

import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from bertrelay.errors import Stopped
from bertrelay.progress import log

HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none
STOPPING = (signal.SIGINT, signal.SIGTERM, *([HANGUP] if HANGUP else []))


@contextmanager
def on_stop_signal(act: Callable[[int], None]) -> Iterator[dict[signal.Signals, Any]]:
    """Calls `act` with every SIGTERM, Ctrl-C and SIGHUP; yields the previous handlers and restores them at the end.

    Under nohup SIGHUP stays ignored. It counts once: shell and system both send it when a terminal closes.
    """

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if number == HANGUP:
            signal.signal(number, signal.SIG_IGN)
            for descriptor in (1, 2):  # writing to a closed terminal would fail
                if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                    null = os.open(os.devnull, os.O_WRONLY)
                    os.dup2(null, descriptor)
                    os.close(null)
        act(number)

    before: dict[signal.Signals, Any] = {}
    try:
        for number in STOPPING:
            if number != HANGUP or signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, handle)
    except ValueError:  # Python handles signals in the main thread only
        pass
    try:
        yield before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StopRequest:
    """The stop signal received, or 0."""

    signal_number = 0
    _is_deferred = True

    @contextmanager
    def act_at_once(self) -> Iterator[None]:
        """Raises Stopped at once, for a signal before or during work that may be abandoned at any point.

        The caller that catches it reports what was saved.
        """
        self._is_deferred = False
        try:
            if self.signal_number:
                self._raise()
            yield
        finally:
            self._is_deferred = True

    def note(self, number: int) -> None:
        """Records a signal; raises Stopped in work that may be abandoned."""
        self.signal_number = number
        log(f"{signal.Signals(number).name}: {'finishing this step, then ' if self._is_deferred else ''}saving …")
        if not self._is_deferred:
            self._raise()

    def _raise(self) -> None:
        raise Stopped(f"stopped by {signal.Signals(self.signal_number).name}", self.signal_number)


@contextmanager
def defer_stop_signals() -> Iterator[StopRequest]:
    """Records a first SIGTERM, Ctrl-C or SIGHUP instead of ending; a second one, unless SIGHUP, ends the process."""
    request = StopRequest()

    def note(number: int) -> None:
        for stopping, handler in before.items():
            signal.signal(stopping, signal.SIG_IGN if stopping == HANGUP else handler)
        request.note(number)

    with on_stop_signal(note) as before:
        yield request
