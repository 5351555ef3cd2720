"""Control characters of a corpus, of its types and of files' names in what commands print."""

import json
import re

import pytest

BAD = "\x1b]0;title\x07\x9b2J\x7f"
SHOWN = r"\u001b]0;title\u0007\u009b2J\u007f"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@pytest.fixture
def corpus(write_lines):
    return write_lines("corpus.txt", [f"a dog {BAD}", f"a cat {BAD}"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("similarity", "{model}", "{corpus}", "--matrix"),
        ("similarity", "{model}", f"a dog {BAD}", "a cat"),
        ("search", "{model}", "{corpus}", "--query", f"a dog {BAD}"),
    ],
)
def test_text_is_shown_with_escapes_and_json_holds_it_as_it_is(call, model, corpus, arguments):
    arguments = [each.format(model=model, corpus=corpus) for each in arguments]
    shown = call(*arguments)
    assert f"a dog {SHOWN}" in shown
    assert not CONTROL.search(shown)
    document = call(*arguments, "--json")
    assert not CONTROL.search(document)
    assert f"a dog {BAD}" in strings(json.loads(document))


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings(inner)


def test_types_of_annotated_files_are_shown_with_escapes(call, tmp_path, capsys):
    for name in ("train.tsv", "devel.tsv"):
        (tmp_path / name).write_text(f"{name}\tB-drug{BAD}\nhelps\tO\n\n" * 50)
    shown = call("data", "check", tmp_path / "train.tsv", tmp_path / "devel.tsv")
    assert f"drug{SHOWN}" in shown
    assert not CONTROL.search(shown + capsys.readouterr().err)


def test_a_files_name_in_an_error_is_shown_with_escapes(refused, tmp_path):
    (tmp_path / "model").mkdir()
    [(code, told)] = refused([["encode", "model", f"none{BAD}.txt", "v.npy"]])
    assert code == 2
    assert f"none{SHOWN}.txt" in told
    assert not CONTROL.search(told)
