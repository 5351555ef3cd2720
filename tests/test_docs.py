"""Commands of README and docs/start.md and the examples of docs/python.md run as typed; what the pages name exists."""

import json
import re
import shlex
import tomllib
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import promises
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer.main
from official_files import write_official_files
from typer.testing import CliRunner

from bertrelay.evaluation import statistics
from domain.biomedical.ner import model as ner
from domain.biomedical.ner.decoding import LabelSet
from domain.biomedical.ner.settings import NerSettings
from domain.biomedical.qa import model as qa
from domain.biomedical.qa.settings import QaSettings
from domain.clinical import model as outcome_model
from domain.clinical.settings import ChunkSettings, ModelDescription
from pipelines.cli.app import app
from pipelines.recipe.settings_table import with_tables
from pipelines.recipe.steps import read_recipe
from pipelines.registry import REGISTRY
from pipelines.run.store import Done
from pipelines.samples.hospital import write_hospitals, write_terms
from pipelines.samples.papers import draw_documents, write_entities, write_papers, write_questions
from pipelines.samples.sentence_files import PLAIN_FILES, write_plain_files, write_samples
from pipelines.samples.settings import EntitySettings, QuestionSettings, SampleSettings
from students.searching.index import build_index
from teachers.pairs.model import start_cross_encoder

ROOT = Path(__file__).resolve().parents[1]
README, START, PYTHON = ((ROOT / name).read_text("utf-8") for name in ("README.md", "docs/start.md", "docs/python.md"))
SHARED = ("harness.py", "trainer.py")
STUDENT = "runs/quickstart/student/latest/model"
LINES = [line.strip() for line in (START + README).splitlines() if line.startswith("    ")]
COMMANDS = [shlex.split(line, comments=True) for line in LINES if line.startswith(("make ", "bertrelay "))]

NOT_RUN = {
    "make": "it installs, and takes minutes",
    "bertrelay samples": "the fixture writes these files",
    "bertrelay serve": "it ends when it is stopped; tests/pipelines/cli/test_serve.py runs it",
    "bertrelay run": "it takes minutes, or data of the user; tests/pipelines/test_recipe.py reads every recipe",
}
MODELS = {"MODEL": STUDENT, "ENCODER": STUDENT, "CROSS-ENCODER": "cross-encoder"}
ONE_PROCESS = ["--processes", "2"]  # what several do is in tests/pipelines/cli/test_encode.py


def is_run(words):
    return not any(" ".join(words).startswith(f"{start} ") for start in NOT_RUN)


@pytest.fixture(scope="module")
def place(tiny_encoder, tmp_path_factory):
    """A folder with the sample files and a student."""
    folder = tmp_path_factory.mktemp("readme")
    write_samples(folder, SampleSettings(parallel_train=100, parallel_test=100, nli=100, sts=120, triplets=100))
    write_entities(folder, draw_documents(EntitySettings(train=10, dev=5, test=5)))
    write_questions(folder, QuestionSettings(train=10, dev=5, test=5))
    write_official_files(folder / "sbert-paper")
    write_plain_files(folder, sentences=80)
    texts = [line for name in PLAIN_FILES for line in (folder / name).read_text("utf-8").splitlines()]
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512, "max_position_embeddings": 66}
    student = tiny_encoder("xlm-roberta", texts, layers=2, sizes=sizes, normalize=True)
    (folder / STUDENT).parent.mkdir(parents=True)
    student.save(folder / STUDENT)
    done = Done({"uses": "students.distill"}, {"train_steps": 1}, {}, {}, "", "", 1.0)
    (folder / STUDENT).with_name("done.json").write_text(json.dumps(asdict(done)))
    write_papers(folder, documents=150)
    write_hospitals(folder)
    write_heads(folder)
    write_clinic(folder, tiny_encoder("bert", texts))
    write_index(folder)
    return folder


def write_index(folder):
    """Questions with answers as a table, and an index of them that grows."""
    rows = [
        {"id": 4711 + row, "text": f"Where is it, {row}?", "answer": "There.", "language": "en"} for row in range(5)
    ]
    (folder / "faq.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build_index(folder / STUDENT, folder / "faq.jsonl", folder / "news.index", id_column="id", show=["language"])


def write_heads(folder):
    """Models on the student that have learnt nothing: a cross-encoder, a tagger and one that answers; its questions."""
    question = {"id": "1", "type": "list", "body": "Which drug?", "snippets": [{"text": "Aspirin helps."}]}
    (folder / "BioASQ-task7bPhaseB-testset1.json").write_text(json.dumps({"questions": [question]}))
    start_cross_encoder(folder / STUDENT).save(folder / "cross-encoder")
    given = {"base": str(folder / STUDENT), "train": [{"path": "none"}]}
    tagger = ner.start_model(NerSettings.model_validate(given), LabelSet.of_types(["Chemical", "Disease"]))
    answerer = qa.start_model(QaSettings.model_validate(given))
    for kind, name, model in ((ner, "ner", tagger), (qa, "qa", answerer)):
        path = folder / f"runs/biomedical/{name}/latest/model"
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
    readmission = outcome_model.start_model(
        results["pretraining"] / "model", ModelDescription(chunking=ChunkSettings(max_tokens=32))
    )
    (folder / "runs/clinic/readmission/latest").mkdir(parents=True)
    outcome_model.save_model(readmission, folder / "runs/clinic/readmission/latest/model")


@pytest.mark.promise("Commands of README and the start page run as typed", about="docs")
def test_the_commands_of_readme_run_as_typed(place, monkeypatch):
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


def first_examples(command, path="bertrelay"):
    """Yields the first example in the help of each command, and its options."""
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from first_examples(inner, f"{path} {name}")
    if not hasattr(command, "commands"):
        lines = (line.strip() for line in command.help.splitlines())
        options = {option for parameter in command.params for option in parameter.opts}
        yield next((line for line in lines if line.startswith(path)), f"{path}: no example"), options


EXAMPLES = [*first_examples(typer.main.get_command(app))]
NOT_RUN_BY_HELP = tuple(f"bertrelay {name} " for name in ("run", "samples", "serve", "report"))
"""They take minutes, run until they are stopped, or need a run; they have tests of their own."""


@pytest.mark.promise("The first example in the help of each command runs", about="docs")
@pytest.mark.parametrize(("line", "options"), EXAMPLES, ids=[line for line, _ in EXAMPLES])
def test_the_first_example_of_a_commands_help_runs(line, options, place, monkeypatch):
    assert not line.endswith("no example")
    if line.startswith(NOT_RUN_BY_HELP):
        return
    monkeypatch.chdir(place)
    monkeypatch.setitem(statistics.with_interval.__kwdefaults__, "resamples", 10)
    words = [MODELS.get(word, word) for word in shlex.split(line)[1:]]
    done = CliRunner().invoke(app, [*words, *(["--overwrite"] if "--overwrite" in options else [])])
    assert done.exit_code == 0, done.exception or done.output


@pytest.mark.promise("Examples of the Python API run", about="docs")
def test_the_python_examples_run(place, monkeypatch):
    monkeypatch.chdir(place)
    names = {}
    for code in re.findall(r"^```python\n(.*?)^```", README + PYTHON, re.MULTILINE | re.DOTALL):
        exec(code, names)
    made = ["my-student", "copied-student", "smaller-student"]
    assert all((place / name / "modules.json").is_file() for name in made)


def test_the_recipes_of_the_page_on_recipes_are_valid(tmp_path, pages):
    stages = []
    for recipe in re.findall(r"^```toml\n(.*?)^```", pages["recipes.md"], re.MULTILINE | re.DOTALL):
        (tmp_path / "my.toml").write_text(recipe.replace(", … }", " }"), encoding="utf-8")
        stages.append([step.name for step in read_recipe(str(tmp_path / "my.toml"), REGISTRY).steps])
    assert stages == [["teacher", "student", "test"], ["student"]]


# The pages


PAGES = [path.relative_to(ROOT) for path in [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").glob("*.md"))]]


@pytest.fixture(scope="module")
def pages():
    return {path.name: (ROOT / path).read_text("utf-8") for path in PAGES}


def commands_of(page):
    lines = [line.strip().removeprefix("$ ") for line in page.splitlines() if line.startswith("    ")]
    for line in lines:
        for part in line.split("#")[0].split("&&"):
            yield part.split("|")[-1].strip()


DOCUMENTED = sorted({line for page in PAGES for line in commands_of((ROOT / page).read_text("utf-8"))})


@pytest.mark.parametrize("line", [line for line in DOCUMENTED if line.startswith("bertrelay ")])
def test_every_command_has_the_arguments_and_options_it_is_given(line):
    words = shlex.split(line.replace("…", "x").partition("<")[0].partition(">")[0])
    command, given = typer.main.get_command(app), words[1:]
    while hasattr(command, "commands"):
        command, given = command.commands[given[0]], given[1:]
    command.make_context("bertrelay", list(given))


@pytest.mark.parametrize("line", [line for line in DOCUMENTED if line.startswith("python -m benchmarks.")])
def test_every_benchmark_has_the_options_it_is_given(line):
    words = shlex.split(line)
    module = ROOT / f"{words[2].replace('.', '/')}.py"
    sources = [module.read_text("utf-8"), *((ROOT / "benchmarks" / name).read_text("utf-8") for name in SHARED)]
    options = [word for word in words if word.startswith("--") and word != "--help"]
    for option in options:
        name = option.removeprefix("--").replace("-", "_")
        assert any(re.search(rf'"{option}"|"{name}": |\b{name}=', source) for source in sources), option


@pytest.mark.parametrize("name", [page.name for page in PAGES])
def test_settings_in_recipes_exist(pages, name):
    for block in re.findall(r"^```toml\n(.*?)^```", pages[name], re.MULTILINE | re.DOTALL):
        for table in tomllib.loads(block.replace(", … }", " }")).values():
            if isinstance(table, dict) and "uses" in table:
                (stage,) = (stage for stage in REGISTRY if stage.kind == table["uses"])
                module, _, settings = stage.settings.partition(":")
                known = getattr(import_module(module), settings).model_fields
                assert table.keys() - {"uses", "sensitive"} <= known.keys(), table["uses"]


@pytest.mark.parametrize("name", [page.name for page in PAGES])
def test_files_and_links_exist(pages, name):
    folder = ROOT if name.startswith("README") else ROOT / "docs"
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([\w-]+))?\)", pages[name]):
        path = (folder / target) if target else folder / name
        assert path.is_file(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, anchor
    for code in re.findall(
        r"`((?:bertrelay|teachers|students|domain|pipelines|tests|benchmarks)/[\w./-]*)`", pages[name]
    ):
        assert (ROOT / code).exists(), code


def test_tables_of_settings_are_those_of_the_settings(pages):
    assert {name: with_tables(text) for name, text in pages.items()} == pages, (
        "python -m pipelines.recipe.settings_table docs/*"
    )
    assert sum(text.count("<!-- settings of") for text in pages.values()) >= 4


def test_the_page_of_promises_is_that_of_the_marks_of_tests(pages):
    assert promises.page() == pages["promises.md"], "python tests/promises.py"
    assert pages["promises.md"].count("::test_") >= 80


def test_every_public_name_is_documented(pages):
    domains = (f"domain.{name}" for name in ("biomedical", "clinical", "pretraining", "terms"))
    for package in ("bertrelay", "students", "teachers", *domains):
        names = import_module(package).__all__
        assert [name for name in names if not re.search(rf"\b{name}\b", pages["python.md"])] == [], package


def test_modules_of_the_architecture_exist(pages):
    for row in re.findall(r"^\| .*\.py`.*$", pages["architecture.md"], re.MULTILINE):
        names = re.findall(r"`([\w/]+\.py)`", row)
        folders = {ROOT, ROOT / "bertrelay", *((ROOT / name).parent for name in names if "/" in name)}
        for name in names:
            assert any((folder / name).exists() for folder in folders), name


def test_every_benchmark_is_documented(pages):
    scripts = [path.stem for path in (ROOT / "benchmarks").glob("*.py") if '__name__ == "__main__"' in path.read_text()]
    named = set(re.findall(r"python -m benchmarks\.(\w+)", pages["benchmarks.md"]))
    assert set(scripts) - {"harness"} == named


def sentences_of(page):
    """Sentences of the prose of a page, with code and addresses as one word each."""
    page = re.sub(r"^```.*?^```|<!--.*?-->|^(?:    |\||#|!\[).*?$", "", page, flags=re.MULTILINE | re.DOTALL)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", page):
        prose = re.sub(r"`[^`]*`", "Code", re.sub(r"\]\([^)]*\)", "]", " ".join(block.split())))
        yield from filter(None, re.split(r"(?<=[.!?:])\W+(?=[A-Z0-9])", re.sub(r"^(?:[-*]|\d+\.) ", "", prose)))


ENGLISH = {page.name for page in PAGES if not page.name.endswith(".ko.md")}


@pytest.mark.parametrize("name", sorted(ENGLISH))
def test_sentences_are_short(pages, name):
    lengths = {sentence: len(sentence.split()) for sentence in sentences_of(pages[name])}
    assert [sentence for sentence, words in lengths.items() if words > 35] == []
    long = [sentence for sentence, words in lengths.items() if words > 25]
    assert len(long) <= 0.1 * len(lengths), long


def headings(page):
    return re.findall(r"^#+(?= )", page, re.MULTILINE)


def code(page):
    blocks = re.findall(r"^```.*?^```", page, re.MULTILINE | re.DOTALL)
    return blocks, [line.partition(" # ")[0].strip() for line in page.splitlines() if line.startswith("    ")]


def figures(page):
    return sorted(re.findall(r"\d[\d.,]*(?<=\d)", page))


@pytest.mark.parametrize(("english", "korean"), [("README.md", "README.ko.md"), ("start.md", "start.ko.md")])
@pytest.mark.parametrize("part", [headings, code, figures])
def test_korean_pages_are_in_step(pages, english, korean, part):
    assert part(pages[korean]) == part(pages[english])


def test_figures_of_readme_are_those_of_the_benchmarks(pages):
    table = pages["README.md"].partition("| job |")[2].partition("\n\n")[0]
    shown, measured = (set(re.findall(r"\d+[.,]\d+", text)) for text in (table, pages["benchmarks.md"]))
    assert len(shown) >= 20
    assert shown <= measured, shown - measured
