import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bertrelay.errors import BertRelayError, RequestError

HEAVY = {"torch", "transformers", "pandas", "matplotlib", "accelerate", "duckdb", "datasketch"}
LESSON = """
# A short lesson.
[student]
uses = "light.learn"
teacher = "@teacher/model"

[teacher]
uses = "light.teach"
"""


@pytest.mark.promise("`--help` and a skipped run load neither torch nor transformers", about="skip")
def test_help_and_a_skipped_run_load_neither_torch_nor_transformers(write_recipe, tmp_path, go):
    path = write_recipe(LESSON)
    go(path)
    requests = [["--help"], ["search", "--help"], ["run", path], ["run", path, "--processes", "2"], ["plan", path]]
    script = f"""
import sys; sys.path.append({str(Path(__file__).parents[1])!r})
import light_stages, pipelines.registry
pipelines.registry.REGISTRY = light_stages.REGISTRY
from pipelines.cli import main
for words in {requests}:
    try:
        main(words)
    except SystemExit as ended:
        assert ended.code == 0
    print("loaded", sorted({HEAVY} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert [line for line in done.stdout.splitlines() if line.startswith("loaded")] == ["loaded []"] * 5
    assert done.stdout.count("SKIP") == 6


def test_the_plan_of_a_clinical_recipe_loads_neither_torch_nor_duckdb(tmp_path):
    script = f"""
import sys
from pipelines.cli import main
try:
    main(["plan", "clinic"])
except SystemExit as ended:
    assert not ended.code
print("loaded", sorted({HEAVY} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True)
    *planned, loaded = done.stdout.splitlines()
    assert any(line.startswith("RUN     notes") for line in planned) and loaded == "loaded []"


def test_plan_says_why_in_columns_and_in_one_json_document(write_recipe, bertrelay, tmp_path):
    path = write_recipe(LESSON)
    bertrelay("plan", path)
    assert [path.name for path in tmp_path.iterdir()] == ["lesson.toml"]  # a plan on a fresh place leaves no trace
    bertrelay("run", path)
    code, out, _ = bertrelay("plan", path, "--set", "teacher.epochs=2", "--set", "student.epochs=3")
    assert code == 0
    assert out.splitlines() == [
        "RUN     teacher  teacher.epochs: 1 → 2",
        "RUN     student  upstream teacher: teacher.epochs: 1 → 2",
        "                 student.epochs: 1 → 3",
    ]
    whole = (tmp_path / "runs/lesson/teacher/latest").resolve()
    partial = whole.rename(whole.with_name(whole.name + ".partial"))
    *_, head, left = bertrelay("plan", path, "--set", "teacher.epochs=2")[1].splitlines()
    assert head.startswith("unfinished results of other settings")
    assert left.split()[1:] == ["MB", f"runs/lesson/teacher/{partial.name}"]
    partial.rename(whole)
    stages = json.loads(bertrelay("plan", path, "--json")[1])["result"]["stages"]
    found = [(stage["name"], stage["action"], stage["reasons"]) for stage in stages]
    assert found == [("teacher", "SKIP", []), ("student", "SKIP", [])]
    assert Path(stages[0]["folder"]).is_dir()


WRONG = {
    "run lesson.toml --set s.sede=2": '"seed"',
    "run lesson.toml --only sampels": '"samples"',
    "run none.toml": "none.toml",
    "run laboratory": "'biomedical'",
    "run ~none.toml": "'~none.toml'",
    f"plan {'x' * 300}": "File name too long",  # the system's words
    "plan lesson.toml --runs ~none": "--runs",
    "run lesson.toml --runs lesson.toml": "lesson.toml",
    "samples lesson.toml/x": "DIR",
    "run lesson.toml --sett a=1": "--sett",
    "run": "RECIPE",
    "rnu": "rnu",
    "run lesson.toml --processes 0": "processes",
    "ner tag a b c --precision fp8": "'fp8'",
    "recipes quikstart": "quikstart",
    "similarity a b \udce9": "character 0",
}


@pytest.mark.promise("A wrong request exits with 2 and without a traceback", about="errors")
def test_a_wrong_request_ends_with_2_and_without_a_traceback(write_recipe, refused, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    write_recipe('[samples]\nuses = "samples.write"\n[s]\nuses = "samples.papers"\n')
    for (code, message), (request, expected) in zip(refused(map(str.split, WRONG)), WRONG.items(), strict=True):
        assert code == 2 and expected in message, request
        assert "Traceback" not in message


def test_ctrl_c_while_the_command_loads_is_no_error(bertrelay, monkeypatch):
    class Loading:
        @property
        def app(self):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "pipelines.cli.app", Loading())
    assert bertrelay("plan", "quickstart") == (130, "", "")


def test_a_reader_that_has_seen_enough_is_no_error(write_recipe, start):
    stages = "".join(f'[{"t" * 90}{number}]\nuses = "light.teach"\n' for number in range(1000))
    process = start("plan", write_recipe(stages))
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(30) == 1
    assert process.stderr.read() == ""
    process.stdout = open(os.devnull)  # noqa: PTH123, SIM115


def test_what_the_terminals_encoding_lacks_is_printed_as_escapes(write_recipe, go, runs, start, monkeypatch):
    path = write_recipe(LESSON)
    go(path)
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    out, err = start("plan", path, "--runs", runs, "--set", "teacher.epochs=2").communicate(timeout=60)
    assert "teacher.epochs: 1 \\u2192 2" in out and not err


OVERWRITING = (
    "encode . in.csv out.npy|ner tag . in.txt out.jsonl|qa answer . in.csv out.csv|"
    "qa answer . in.csv new.csv --html out.html|readmission score . in.csv out.csv|"
    "outcome score . in.csv new.csv --html out.html|rerank . in.csv out.csv|mine . in.txt in.csv out.csv|"
    "search . in.txt --query x --output out.csv|similarity . in.txt --matrix --csv out.csv|"
    "similarity . in.txt --matrix --picture out.svg"
)


def test_no_command_replaces_a_file_that_is_there_unless_asked(refused, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "terms").mkdir()
    there = [*(tmp_path / f"out.{end}" for end in ("npy", "jsonl", "csv", "html", "svg")), tmp_path / "terms/terms.csv"]
    for file in there:
        file.write_text("mine")
    for name in ("in.txt", "in.csv"):
        (tmp_path / name).write_text("id,text,question,context,hadm_id,term\n1,a,b,c,1,d\n2,e,f,g,2,h\n")
    replaced = "(exists|are there) already; name another.*--overwrite"
    requests, terms = [words.split() for words in OVERWRITING.split("|")], ["terms", ".", "in.csv", "terms"]
    for (code, message), given in zip(refused(requests), requests, strict=True):
        assert code == 2 and re.search(replaced, message), (given, message)
    with pytest.raises(RequestError, match=replaced):
        call(*terms)
    for each in (*requests, terms):
        with pytest.raises(BertRelayError) as next_fault:  # there is no model
            call(*each, "--overwrite")
        assert not re.search(replaced, str(next_fault.value)), each
    assert {file.read_text() for file in there} == {"mine"}


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


def test_a_files_name_in_an_error_is_shown_with_escapes(refused, tmp_path):
    (tmp_path / "model").mkdir()
    [(code, message)] = refused([["encode", "model", f"none{BAD}.txt", "v.npy"]])
    assert code == 2
    assert f"none{SHOWN}.txt" in message
    assert not CONTROL.search(message)


def seconds_of(*arguments):
    """What Python's run of `arguments` printed, and the processor's time: other work on this machine counts little."""
    before = os.times()
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system, done.stdout


@pytest.fixture(scope="module")
def libraries_seconds():
    """Of importing what parses and prints the command line: on a slow machine it alone takes most of a second."""
    return min(seconds_of("-c", "import pydantic.main, typer.rich_utils")[0] for _ in range(3))


@pytest.mark.parametrize("command", ["", "run", "search", "ner tag"])
def test_help_answers_within_a_second_or_four_times_its_libraries(command, libraries_seconds):
    """The lesser of two: the first call after an installation compiles what it imports."""
    calls = [seconds_of("-m", "pipelines", *command.split(), "--help") for _ in range(2)]
    assert all("Usage: bertrelay" in out for _, out in calls)
    assert 0 < min(seconds for seconds, _ in calls) < max(1, 4 * libraries_seconds)


def test_types_of_annotated_files_are_shown_with_escapes(call, tmp_path, capsys):
    for name in ("train.tsv", "devel.tsv"):
        (tmp_path / name).write_text(f"{name}\tB-drug{BAD}\nhelps\tO\n\n" * 50)
    shown = call("data", "check", tmp_path / "train.tsv", tmp_path / "devel.tsv")
    assert f"drug{SHOWN}" in shown
    assert not CONTROL.search(shown + capsys.readouterr().err)
