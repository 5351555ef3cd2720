"""README's commands as they are typed, with a tiny student in place of the quickstart's, of the same kind and size."""

import re
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer.main
from typer.testing import CliRunner

from bertrelay.evaluation import statistics
from domain.biomedical.ner import model as ner
from domain.biomedical.ner.decoding import LabelSet
from domain.biomedical.qa import model as qa
from pipelines.cli.app import app
from pipelines.recipe import read_recipe
from pipelines.registry import REGISTRY
from pipelines.samples.hospital import write_terms
from pipelines.samples.papers import write_entities, write_questions
from pipelines.samples.sbert_paper import write_sbert_paper
from pipelines.samples.sentences import PLAIN_FILES, write_plain_files, write_samples
from pipelines.samples.settings import EntitySettings, QuestionSettings, SampleSettings, SbertPaperSettings
from teachers.cross_encoder import start_cross_encoder

README = (Path(__file__).resolve().parents[1] / "README.md").read_text("utf-8")
STUDENT = "runs/quickstart/student/latest/model"
LINES = [line.strip().removeprefix("$ ") for line in README.splitlines() if line.startswith("    ")]
COMMANDS = [shlex.split(line, comments=True) for line in LINES if line.startswith(("make ", "torchrun ", "bertrelay "))]

NOT_RUN = {
    "make": "it installs, and takes minutes",
    "torchrun": "tests/pipelines/test_launchers.py runs it",
    "bertrelay run": "it takes minutes, or data of the user; tests/pipelines/test_recipe.py reads every recipe",
}
MODELS = {"MODEL": STUDENT, "ENCODER": STUDENT, "CROSS-ENCODER": "cross-encoder"}
ONE_PROCESS = ["--processes", "2"]  # what several do is in tests/pipelines/test_cli_encode.py


def is_run(words):
    return not any(" ".join(words).startswith(f"{start} ") for start in NOT_RUN)


@pytest.fixture(scope="module")
def place(tiny_encoder, tmp_path_factory):
    """A folder with the sample files and a student."""
    folder = tmp_path_factory.mktemp("readme")
    write_samples(folder, SampleSettings(parallel_train=100, parallel_test=100, nli=100, sts=120, triplets=100))
    write_entities(folder, EntitySettings(train=10, dev=5, test=5))
    write_questions(folder, QuestionSettings(train=10, dev=5, test=5))
    write_sbert_paper(folder / "sbert-paper", SbertPaperSettings(sts=20, train=20, classes=12))
    write_plain_files(folder, seed=1, sentences=80)
    texts = [line for name in PLAIN_FILES for line in (folder / name).read_text("utf-8").splitlines()]
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512, "max_position_embeddings": 66}
    student = tiny_encoder("xlm-roberta", texts, layers=2, sizes=sizes, normalize=True)
    (folder / STUDENT).parent.mkdir(parents=True)
    student.save(folder / STUDENT)
    write_heads(folder)
    write_clinic(folder, tiny_encoder("bert", texts))
    return folder


def write_heads(folder):
    """Models on the student that have learnt nothing: a cross-encoder, a tagger and one that answers."""
    start_cross_encoder(folder / STUDENT).save(folder / "cross-encoder")
    tagger = ner.start_model(folder / STUDENT, LabelSet.of_types(["Chemical", "Disease"]))
    answerer = qa.start_model(folder / STUDENT)
    for kind, name, model in ((ner, "ner", tagger), (qa, "qa", answerer)):
        path = folder / f"runs/laboratory/{name}/latest/model"
        path.parent.mkdir(parents=True)
        kind.save_model(model, path)


def write_clinic(folder, bert):
    """Notes of a few patients, terms and a plain BERT, where the recipe `clinic` leaves them."""
    results = {name: folder / f"runs/clinic/{name}/latest" for name in ("notes", "hospital", "pretraining")}
    for path in results.values():
        path.mkdir(parents=True)
    splits = ["train", "validation", "test"] * 3
    texts = [" ".join(f"word{number}of{note}" for number in range(40)) for note in range(len(splits))]
    persons = {"hadm_id": list("123456789"), "subject_id": list("123456789")}
    pq.write_table(pa.table({**persons, "text": texts, "split": splits}), results["notes"] / "notes.parquet")
    write_terms(results["hospital"])
    bert.backbone.save_pretrained(results["pretraining"] / "model")
    bert.tokenizer.save_pretrained(results["pretraining"] / "model")


def test_the_commands_run_as_they_are_typed_one_after_the_other(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setitem(statistics.with_interval.__kwdefaults__, "resamples", 10)
    commands = [words[1:] for words in COMMANDS if is_run(words)]
    assert len(commands) >= 20
    for words in commands:
        given = [MODELS.get(word, word) for word in words]
        if given[-2:] == ONE_PROCESS:
            del given[-2:]
        done = CliRunner().invoke(app, given)
        assert done.exit_code == 0, f"{' '.join(words)}: {done.exception or done.output}"
    assert {"vectors.npy", "vectors.parquet", "pairs.csv", "matrix.png", "found.jsonl", "best.jsonl", "mined.tsv"} <= {
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
