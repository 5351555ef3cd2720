"""README's commands as they are typed, with a tiny student in place of the quickstart's, of the same kind and size."""

import re
import shlex
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.recipe import read_recipe
from pipelines.registry import REGISTRY
from pipelines.samples import plain_files, write_entities, write_plain_files, write_samples
from pipelines.samples.settings import EntitySettings, SampleSettings

README = (Path(__file__).resolve().parents[1] / "README.md").read_text("utf-8")
STUDENT = "runs/quickstart/student/latest/model"
LINES = [line.strip().removeprefix("$ ") for line in README.splitlines() if line.startswith("    ")]
COMMANDS = [shlex.split(line, comments=True) for line in LINES if line.startswith(("make ", "torchrun ", "bertrelay "))]

NOT_RUN = {
    "make": "it installs, and takes minutes",
    "torchrun": "tests/pipelines/test_launchers.py runs it",
    "bertrelay run": "it takes minutes, or data of the user; tests/pipelines/test_recipe.py reads every recipe",
    "bertrelay rerank": "it needs a cross-encoder; tests/pipelines/test_cli_rerank.py runs it on a tiny one",
    "bertrelay ner tag": "it needs a tagger; tests/pipelines/test_cli_ner.py runs it on a tiny one",
    "bertrelay qa answer": "it needs a model that answers; tests/pipelines/test_cli_qa.py runs it on a tiny one",
    "bertrelay data audit": "it needs a cohort; tests/domain/clinical/test_audit.py runs it",
    "bertrelay terms": "it needs a BERT; tests/pipelines/test_cli_terms.py runs it on a tiny one",
    "bertrelay evaluate": "it trains dozens of classifiers; tests/pipelines/test_cli_evaluate.py runs it",
}
ONE_PROCESS = ["--processes", "2"]  # what several do is in tests/pipelines/test_cli_encode.py


def is_run(words):
    return not any(" ".join(words).startswith(f"{start} ") for start in NOT_RUN)


@pytest.fixture(scope="module")
def place(tiny_encoder, tmp_path_factory):
    """A folder with the sample files and a student."""
    folder = tmp_path_factory.mktemp("readme")
    write_samples(folder, SampleSettings(parallel_train=100, parallel_test=100, nli=100, sts=120, triplets=100))
    write_entities(folder, EntitySettings(train=10, dev=5, test=5))
    with pytest.MonkeyPatch.context() as fewer:
        fewer.setattr(plain_files, "SENTENCES", 80)
        write_plain_files(folder, seed=1)
    texts = [line for name in plain_files.FILES for line in (folder / name).read_text("utf-8").splitlines()]
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512, "max_position_embeddings": 66}
    student = tiny_encoder("xlm-roberta", texts, layers=2, sizes=sizes, normalize=True)
    (folder / STUDENT).parent.mkdir(parents=True)
    student.save(folder / STUDENT)
    return folder


def test_the_commands_run_as_they_are_typed_one_after_the_other(place, monkeypatch):
    monkeypatch.chdir(place)
    commands = [words[1:] for words in COMMANDS if is_run(words)]
    assert len(commands) >= 14
    for words in commands:
        given = [STUDENT if word in ("MODEL", "ENCODER") else word for word in words]
        if given[-2:] == ONE_PROCESS:
            del given[-2:]
        done = CliRunner().invoke(app, given)
        assert done.exit_code == 0, f"{' '.join(words)}: {done.exception or done.output}"
    assert {"vectors.npy", "vectors.parquet", "pairs.csv", "matrix.png", "answers.jsonl", "mined.tsv"} <= {
        path.name for path in place.iterdir()
    }


@pytest.mark.parametrize("words", [words for words in COMMANDS if words[0] == "bertrelay"], ids=" ".join)
def test_every_command_has_the_arguments_and_options_it_is_given(words):
    command, given = typer.main.get_command(app), words[1:]
    while hasattr(command, "commands"):
        command, given = command.commands[given[0]], given[1:]
    command.make_context("bertrelay", list(given))


def test_what_is_not_run_is_there():
    for start in NOT_RUN:
        assert any(" ".join(words).startswith(f"{start} ") for words in COMMANDS), start


def test_the_python_runs(place, monkeypatch):
    monkeypatch.chdir(place)
    (code,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    exec(code, {})
    assert (place / "my-student/modules.json").is_file()


def test_the_recipe_is_valid(tmp_path):
    (recipe,) = re.findall(r"^```toml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    (tmp_path / "my.toml").write_text(recipe.replace(", … }", " }"), encoding="utf-8")
    assert [step.name for step in read_recipe(str(tmp_path / "my.toml"), REGISTRY, []).steps] == [
        "teacher",
        "student",
        "test",
    ]
