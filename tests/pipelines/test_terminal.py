"""Control characters of a corpus, of its types and of files' names in what commands print."""

import json
import re

BAD = "\x1b]0;title\x07\x9b2J\x7f"
SHOWN = r"\u001b]0;title\u0007\u009b2J\u007f"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def test_text_is_shown_with_escapes_and_json_holds_it_as_it_is(call, model, write_lines):
    corpus, text = write_lines("corpus.txt", [f"a dog {BAD}", f"a cat {BAD}"]), f"a dog {BAD}"
    for words in (
        ("similarity", model, corpus, "--matrix"),
        ("similarity", model, text, "a cat"),
        ("search", model, corpus, "--query", text),
    ):
        shown, document = call(*words), call(*words, "--json")
        assert f"a dog {SHOWN}" in shown
        assert not CONTROL.search(shown + document)
        assert text in strings(json.loads(document))


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
