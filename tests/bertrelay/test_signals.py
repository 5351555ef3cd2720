"""A first signal to stop is noted for the work to end in order; a second one acts at once."""

import os
import pty
import signal
import sys
import threading

import pytest

from bertrelay.signals import STOPPING, defer_stop_signals


@pytest.fixture(autouse=True)
def handlers_stay():
    before = {number: signal.getsignal(number) for number in STOPPING}
    yield
    assert {number: signal.getsignal(number) for number in before} == before


@pytest.mark.parametrize("number", STOPPING)
def test_a_first_signal_is_noted_and_reported(number, capsys):
    with defer_stop_signals() as request:
        assert request.signal_number == 0
        os.kill(os.getpid(), number)
        assert request.signal_number == number
    assert f"{number.name}: finishing this step, then saving" in capsys.readouterr().err


def test_outside_the_main_thread_nothing_is_noted_and_nothing_fails():
    noted = []

    def work():
        with defer_stop_signals() as request:
            noted.append(request.signal_number)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert noted == [0]


def test_under_nohup_a_hangup_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with defer_stop_signals() as request:
        os.kill(os.getpid(), signal.SIGHUP)
        assert request.signal_number == 0
    assert signal.signal(signal.SIGHUP, before) == signal.SIG_IGN


def test_a_second_hangup_lets_the_work_end():
    with defer_stop_signals() as request:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        assert request.signal_number == signal.SIGHUP


WORKS_UNTIL_ASKED = """
import os, pathlib, signal, sys, time
from bertrelay.signals import defer_stop_signals
with defer_stop_signals() as request:
    print("ready", flush=True)
    while not request.signal_number:
        time.sleep(0.01)
    print("still at work", flush=True)
    print("still at work", file=sys.stderr)
    pathlib.Path(sys.argv[1]).write_text(str(request.signal_number))
"""


def test_work_whose_terminal_closes_is_saved(tmp_path):
    saved = tmp_path / "saved.txt"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", WORKS_UNTIL_ASKED, str(saved)])
    assert os.read(terminal, 5) == b"ready"
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert (status, saved.read_text()) == (0, str(signal.SIGHUP.value))
