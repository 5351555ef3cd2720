"""Being asked to stop is noted once; a second time acts at once."""

import os
import signal
import threading

import pytest

from bertrelay.signals import noted_stop_signals


@pytest.fixture(autouse=True)
def handlers_stay():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    assert {number: signal.getsignal(number) for number in before} == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_first_signal_is_noted_and_told(number, capsys):
    with noted_stop_signals() as request:
        assert request.signal_number == 0
        os.kill(os.getpid(), number)
        assert request.signal_number == number
    assert f"{number.name}: finishing this step, then saving" in capsys.readouterr().err


def test_a_second_one_acts_at_once():
    with pytest.raises(KeyboardInterrupt), noted_stop_signals() as request:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    assert request.signal_number == signal.SIGTERM


def test_the_handlers_from_before_are_back_after_a_failure():
    with pytest.raises(ZeroDivisionError), noted_stop_signals():
        raise ZeroDivisionError


def test_outside_the_main_thread_nothing_is_noted_and_nothing_fails():
    noted = []

    def work():
        with noted_stop_signals() as request:
            noted.append(request.signal_number)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert noted == [0]
