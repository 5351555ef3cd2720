"""`--json` prints one document of one form, and standard input is read wherever a file of text is."""

import json
import re
from pathlib import Path

import pytest
import typer.main

from pipelines.cli.app import app
from pipelines.cli.stdin import READERS

FORMATS = (Path(__file__).parents[3] / "docs/formats.md").read_text("utf-8")
SEARCH = (Path(__file__).parents[3] / "docs/search.md").read_text("utf-8")
SECTION = FORMATS[FORMATS.index("## Results in JSON") : FORMATS.index("## Rejects")]
ENGLISH = "a dog barks\nein hund bellt\na dog .\n"
PAIRS = "anchor\tpositive\na dog barks\tein hund bellt\na dog\tein hund\nbarks\tbellt\n"
SENTENCES = PAIRS.replace("anchor\tpositive", "sentence1\tsentence2")
NOTES = "hadm_id,text\n1,the wound is dry.\n2,slept well again.\n"


def commands(group, path=()):
    """Yields the words and the options of each command."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), {option for parameter in command.params for option in parameter.opts}


def test_every_command_with_json_is_in_the_table_of_its_results():
    rows = re.findall(r"^\| (`.*?) \|", SECTION[SECTION.index("| command |") :], re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert documented == {name for name, options in commands(typer.main.get_command(app)) if "--json" in options}


def test_recipes_stages_and_settings_are_one_document_each(call):
    def result(*words):
        return json.loads(call("recipes", *words, "--json"))["result"]

    names = result()
    assert names["recipes"]["quickstart"].startswith("A first run") and "students.distill" in names["stages"]
    assert result("quickstart") == {"recipe": "quickstart", "text": call("recipes", "quickstart")}
    settings = {setting["name"]: setting for setting in result("students.distill")["settings"]}
    assert settings["max_tokens"] == {
        "name": "max_tokens",
        "type": "integer",
        "default": "128",
        "description": "Longest input, special tokens included.",
    }


def test_every_reader_of_standard_input_is_a_command_and_is_documented():
    names = {" ".join(words) for words in READERS}
    assert names <= {name for name, _ in commands(typer.main.get_command(app))}
    (described,) = re.findall(r"is standard input: (.*?)\. The", SEARCH, re.DOTALL)
    assert {name.partition(" --")[0] for name in re.findall(r"`([^`]+)`", described)} == names


@pytest.mark.parametrize(
    ("words", "fixture", "content", "rest", "keys"),
    [
        ("encode", "model", ENGLISH, ["out.npy"], {"sentences", "dim"}),
        ("similarity", "model", ENGLISH, ["--matrix"], {"model", "metric", "rows", "columns", "matrix"}),
        ("search", "model", ENGLISH, ["english.txt", "--queries", "-"], {"index", "queries"}),
        ("mine", "model", ENGLISH, ["english.txt", "out.tsv"], {"pairs"}),
        ("mine-negatives", "model", PAIRS, ["out.tsv", "--format", "tsv"], {"rows"}),
        ("rerank", "cross_encoder", SENTENCES, ["out.csv", "--format", "tsv"], {"pairs"}),
        ("shrink", "model", ENGLISH, ["small", "--no-trim", "--dimensions", "2"], {"metrics"}),
        ("terms", "model", ENGLISH, ["terms"], {"metrics"}),
        ("ner tag", "tagger", "gout in rats\nfever\n", ["out.jsonl"], {"documents", "entities"}),
        ("qa answer", "answerer", '{"question": "gout?", "context": "gout"}', ["out.jsonl"], {"questions"}),
        ("readmission score", "readmission_model", NOTES, ["out.csv"], {"admissions"}),
    ],
)
def test_a_command_reads_standard_input_and_prints_its_result(
    words, fixture, content, rest, keys, request, call, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("english.txt").write_text(ENGLISH)
    arguments = rest if "-" in rest else ["-", *rest]
    folder = request.getfixturevalue(fixture)
    document = json.loads(call(*words.split(), folder, *arguments, "--json", stdin=content))
    assert list(document) == ["command", "output", "result"] and document["command"] == words
    assert keys <= document["result"].keys()
    assert document["output"] is None or Path(document["output"]).exists()
    assert not list(tmp_path.glob(".bertrelay-*"))  # the copy of standard input
