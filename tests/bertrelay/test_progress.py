import ast
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from bertrelay import progress as module
from bertrelay.progress import printable, progress, speed_of, spinner

SHOWN = """
from bertrelay.progress import progress
with progress("working", 3, "sentences") as bar:
    print("the answer")
    bar.advance(3)
"""


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is turned."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_rate_and_time_left_count_only_what_is_done_now(clock, capsys):
    with progress("encoding", 1000, "sentences", done=600) as bar:
        clock[0] += 20
        bar.advance(100)
        clock[0] += 20
        bar.advance(300)
    assert capsys.readouterr().err.splitlines() == [
        "encoding: 700 of 1,000 sentences, 5.0/s, 20 s, 60 s left",
        "encoding: 1,000 of 1,000 sentences, 10.0/s, 40 s",
    ]


@pytest.mark.parametrize(
    ("rate", "unit", "expected"),
    [
        (1 / 54, "steps", "54 s a step"),
        (0.25, "sentences", "4.0 s a sentence"),
        (0.1, "layers left out", "10 s a layer"),
        (1, "steps", "1.0/s"),
        (2500, "vectors", "2,500.0/s"),
    ],
)
def test_what_is_slow_has_its_seconds_in_place_of_a_rate_of_nothing(rate, unit, expected):
    assert speed_of(rate, unit) == expected


class OnceStarted:
    """A timer that fires when it is started."""

    def __init__(self, seconds, show):
        assert seconds <= 2
        self.start, self.cancel = show, lambda: None


def test_whatever_takes_two_seconds_has_a_sign_by_then(capsys, monkeypatch):
    monkeypatch.setattr(module, "Timer", OnceStarted)
    with progress("encoding", 10) as bar:
        assert capsys.readouterr().err == "encoding: 0 of 10 items, 0 s\n"
        bar.advance(10)
    capsys.readouterr()
    with spinner("loading the model"):
        assert capsys.readouterr().err == "loading the model …\n"
    monkeypatch.setenv("RANK", "1")
    with spinner("loading the model"):
        assert capsys.readouterr().err == ""


def test_what_is_over_before_is_not_shown(capsys, monkeypatch):
    timers = []
    monkeypatch.setattr(module, "Timer", lambda _, show: timers.append(show) or Mock())
    with spinner("loading the model"):
        pass
    timers[0]()  # as where its time comes while it is cancelled
    assert capsys.readouterr().err == ""


def test_nothing_is_shown_where_nothing_is_left_and_by_other_processes(capsys, monkeypatch):
    with progress("encoding", 10, done=10) as bar:
        bar.advance(0)
    monkeypatch.setenv("RANK", "1")
    with progress("encoding", 10) as bar:
        bar.advance(10)
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal of its own")
def test_a_bar_on_the_terminal_leaves_standard_output_alone():
    terminal, end = os.openpty()
    try:
        done = subprocess.run([sys.executable, "-c", SHOWN], stdout=subprocess.PIPE, stderr=end, text=True, check=True)
        assert done.stdout == "the answer\n"
        assert "3/3 sentences" in os.read(terminal, 10_000).decode()
    finally:
        os.close(terminal)
        os.close(end)


ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("bertrelay", "teachers", "students", "domain", "pipelines")
PRINTING = {"bertrelay/progress.py", "pipelines/cli/__init__.py", "pipelines/cli/options.py"}


def test_control_characters_become_escapes_and_all_else_stays():
    assert printable("a\x1b[2Jb\x07\r\x00\x7f\x9b1m\udcff") == r"a\u001b[2Jb\u0007\u000d\u0000\u007f\u009b1m\udcff"
    text = "Straße\t개\n𝒜 \u200f\u0301 [bold] \\"
    assert printable(text) == text


def prints(path):
    """The calls in the module at `path` that print without `printable`."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "print",
            "typer.echo",
            "typer.secho",
            "click.echo",
        ):
            yield f"{path.relative_to(ROOT)}:{node.lineno}"


def test_nothing_is_printed_elsewhere():
    positions = [
        position for package in PACKAGES for path in (ROOT / package).rglob("*.py") for position in prints(path)
    ]
    assert {position.partition(":")[0] for position in positions} == PRINTING
    assert len(positions) == len(PRINTING)
