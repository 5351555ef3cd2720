"""What a corpus or a file's name holds never reaches a terminal as a control character."""

import ast
from pathlib import Path

from bertrelay.progress import printable

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("bertrelay", "teachers", "students", "domain", "pipelines")
PRINTING = {"bertrelay/progress.py", "pipelines/cli/__init__.py", "pipelines/cli/options.py"}


def test_control_characters_become_escapes_and_all_else_stays():
    assert printable("a\x1b[2Jb\x07\r\x00\x7f\x9b1m\udcff") == r"a\u001b[2Jb\u0007\u000d\u0000\u007f\u009b1m\udcff"
    text = "Straße\t개\n𝒜 \u200f\u0301 [bold] \\"
    assert printable(text) == text


def prints(path):
    """The calls in the module at `path` that print past `printable`."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "print",
            "typer.echo",
            "typer.secho",
            "click.echo",
        ):
            yield f"{path.relative_to(ROOT)}:{node.lineno}"


def test_nothing_is_printed_elsewhere():
    found = [place for package in PACKAGES for path in (ROOT / package).rglob("*.py") for place in prints(path)]
    assert {place.partition(":")[0] for place in found} == PRINTING
    assert len(found) == len(PRINTING)
