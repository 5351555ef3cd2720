"""`bertrelay evaluate` on sample data in the official formats; tests/teachers compare its metrics with scipy's."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from official_files import write_official_files
from scipy.spatial.distance import cosine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from bertrelay.encode_files import encode_file
from bertrelay.errors import RequestError
from bertrelay.evaluation import statistics
from bertrelay.model.encoder import SentenceEncoder
from pipelines.recipe.steps import read_recipe
from pipelines.registry import REGISTRY
from pipelines.report.tables import score_lines
from pipelines.run.hub import hub_ids, unknown_ids
from students import evaluate_retrieval
from teachers.sbert_paper.settings import PROTOCOLS, SETS

OF_PAPERS = [name for name in PROTOCOLS if SETS[name]]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("official")
    write_official_files(folder)
    return folder


@pytest.fixture
def evaluate(call, data, monkeypatch):
    """The metrics of a command."""
    monkeypatch.setitem(statistics.with_interval.__kwdefaults__, "resamples", 10)
    return lambda *words: json.loads(call("evaluate", *words, "--data", data, "--json"))["result"]["metrics"]


def test_every_protocol_has_a_figure_for_each_of_its_sets_and_a_table_with_published_ones(evaluate, data):
    metrics = evaluate("tf-idf", *(word for name in OF_PAPERS for word in ("--protocol", name)))
    names = {f"sts/{name}/spearman_cosine" for name in (*SETS["sts"], "mean")}
    names |= {f"senteval/{name}/accuracy" for name in (*SETS["senteval"], "mean")}
    names |= {f"facets/{topic}/pearson_cosine" for topic in ("gun-control", "gay-marriage", "death-penalty", "mean")}
    assert names | {"sections/accuracy", "senteval/MRPC/f1", "without_gold/STS16/headlines"} <= metrics.keys()
    scores = (data / "STS/STS16-en-test/STS2016.gs.headlines.txt").read_text().splitlines()
    assert metrics["without_gold/STS16/headlines"] == scores.count("") > 0
    arguments = (data / "AFS/ArgPairs_GC.csv").read_text().splitlines()
    assert metrics["without_gold/AFS/gun-control"] == sum(line.startswith(",") for line in arguments) > 0
    assert None not in metrics.values()

    similarity = {name: value for name, value in metrics.items() if name.startswith("sts/")}
    head, names, *rows = [line for line in score_lines({"tf-idf": similarity}, intervals=True) if line.strip()][1:]
    assert "tf-idf" in head and "published" in head
    assert "SBERT-NLI-base" in names
    [of_subsets, together] = [row.split() for row in rows if row.split()[0] == "mean"]
    published = {"0.749", "0.613", "0.548", "0.292"}  # of each year's pairs as one set
    assert together[:3] == ["mean", "/", "all"] and published <= set(together)
    assert not published & set(of_subsets)
    [benchmark] = [row for row in rows if row.split()[0] == "STSb"]
    assert " – " in benchmark and "0.847" in benchmark


def test_word_vectors_are_a_model_too_and_one_set_can_be_asked_for(data, evaluate):
    found = evaluate(data / "glove.txt", "--protocol", "sts", "--only", "STS13")
    assert {name.split("/")[1] for name in found} == {"STS13"}
    assert found["sts/STS13/pearson_cosine"] != evaluate("tf-idf", "--protocol", "sts")["sts/STS13/pearson_cosine"]


def test_an_encoder_folder_is_scored_by_the_pooling_asked_for(data, evaluate, tmp_path, tiny_encoder):
    parts = [(data / f"MR/rt-polarity.{part}").read_text().splitlines() for part in ("pos", "neg")]
    texts, labels = parts[0] + parts[1], np.repeat(["positive", "negative"], [len(part) for part in parts])
    encoder = tiny_encoder("bert", texts, layers=1)
    encoder.save(tmp_path / "model")
    asked = [tmp_path / "model", "--protocol", "senteval", "--only", "MR"]
    figures = [evaluate(*asked, *more)["senteval/MR/accuracy"] for more in (["--pooling", "cls"], [])]
    with torch.inference_mode():
        states = [encoder.backbone(torch.tensor([ids])).last_hidden_state[0] for ids in encoder.tokenize(texts)]
    folds = StratifiedKFold(10, shuffle=True, random_state=0)
    for figure, vectors in zip(figures, ([each[0] for each in states], [each.mean(0) for each in states]), strict=True):
        guessed = cross_val_predict(LogisticRegression(max_iter=1000), np.stack(vectors), labels, cv=folds)
        assert figure == pytest.approx((guessed == labels).mean())
    assert figures[0] != figures[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--protocol sts --data none", "data: .*none"),
        ("--protocol sts --data .", "sts: .*STS12"),
        ("--protocol stsb --data .", "--protocol: .*stsb"),
        ("--protocol sts --only MR --data .", "^--only"),
        ("--protocol sts --protocol senteval --only STSb --data .", "senteval"),
        (
            "--protocol mteb --tasks none.toml",
            "'none.toml'",
        ),
        ("--protocol sts --pooling cls --data .", "pooling"),
    ],
)
def test_a_wrong_request_is_reported(call, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match=message):
        call("evaluate", "tf-idf", *arguments.split())


def test_a_set_asked_for_by_name_must_be_there_and_others_need_not(call, data, tmp_path, capsys):
    (tmp_path / "STSBenchmark").mkdir()
    (tmp_path / "STSBenchmark/sts-test.csv").write_bytes((data / "STS/STSBenchmark/sts-test.csv").read_bytes())
    asked = ["evaluate", "tf-idf", "--protocol", "sts", "--data", tmp_path]
    out = call(*asked)
    assert "left out: STS12, STS13, STS14, STS15, STS16, SICK-R; there is no mean" in capsys.readouterr().err
    assert "published" in out and " – " in out
    with pytest.raises(RequestError, match="expected the official files of SICK-R"):
        call(*asked, "--only", "STSb", "--only", "SICK-R")


TASKS = """
[[local]]
task = "Captions"
type = "bitext"
languages = ["en", "de"]
path = "test.en"
second = "test.de"

[[local]]
task = "Captions"
type = "bitext"
languages = ["en", "fr"]
path = "test.en"
second = "test.fr"
"""


@pytest.fixture
def captions(tmp_path, tiny_encoder):
    """A folder with an encoder, and tasks of mteb whose files lie beside the file that names them."""
    texts = ["a dog barks", "rain falls", "ein hund bellt", "regen faellt"]
    tiny_encoder("bert", texts, layers=1).save(tmp_path / "model")
    for language, rows in {"en": texts[:2], "de": texts[2:], "fr": texts[:2]}.items():
        (tmp_path / f"test.{language}").write_text("\n".join(rows))
    (tmp_path / "tasks.toml").write_text(TASKS)
    return tmp_path


def test_tasks_of_mteb_run_on_local_files_in_the_languages_asked_for(call, captions):
    words = ["evaluate", captions / "model", "--protocol", "mteb", "--tasks", captions / "tasks.toml"]
    words += ["--results", captions / "kept"]
    found = json.loads(call(*words, "--language", "en", "--language", "fr", "--json"))["result"]["metrics"]
    assert found == {"mteb/Captions/en-fr/f1": 1.0}  # the same sentences
    lines = [line.split() for line in call(*words).splitlines()]
    assert ["Tasks", "of", "MTEB", "·", "Captions"] in lines and ["en-fr", "1.000"] in lines
    assert {row[0] for row in lines if row} >= {"en-de", "mean"}
    assert [path.name for path in captions.glob("kept/results/*__model/*/*")].count("Captions.json") == 1
    (captions / "tasks.toml").write_text("[mine]\ntask = 1")
    with pytest.raises(RequestError, match="expected `local`, a list of tasks, and nothing else; found mine"):
        call(*words)


def test_a_student_stands_beside_its_teacher_and_beside_vectors_of_it(call, captions, tiny_encoder):
    tiny_encoder("bert", ["a dog barks", "rain falls"], layers=1).save(captions / "teacher")
    parallel = [f"{language}={captions}/test.en,{captions}/test.{language}" for language in ("de", "fr")]
    words = ["evaluate", captions / "model", "--parallel", parallel[0], "--parallel", parallel[1]]
    found = json.loads(call(*words, "--teacher", captions / "teacher", "--recall-at", "1", "--json"))["result"][
        "metrics"
    ]
    english, german = (Path(captions / f"test.{language}").read_text().splitlines() for language in ("en", "de"))
    student, teacher = (SentenceEncoder.load(captions / name) for name in ("model", "teacher"))
    vectors = [encoder.encode(texts, precision="fp32") for encoder, texts in ((student, german), (teacher, english))]
    cosines = [1 - cosine(*rows) for rows in zip(*vectors, strict=True)]
    assert found["nearness/cosine/de"] == pytest.approx(np.mean(cosines), abs=1e-5)
    assert {"recall_at_1/fr", "translation_accuracy/en-de", "nearness/cosine/mean"} <= found.keys()
    encode_file(captions / "teacher", captions / "test.en", captions / "vectors.parquet", precision="fp32")
    again = json.loads(call(*words, "--teacher", captions / "vectors.parquet", "--json"))["result"]["metrics"]
    assert again["nearness/cosine/de"] == pytest.approx(found["nearness/cosine/de"], abs=1e-5)
    lines = call(*words, "--teacher", captions / "teacher").splitlines()
    assert lines[0].split()[0] in ("good", "warn", "fail") and "mean cosine to the teacher's vectors" in lines[0]
    assert any(line.startswith("Nearness to the teacher") for line in lines)
    tasks = ["--protocol", "mteb", "--tasks", captions / "tasks.toml", "--results", captions / "kept", "--json"]
    assert {"mteb/Captions/en-fr/f1", "nearness/cosine/de"} <= json.loads(
        call(*words, "--teacher", captions / "teacher", *tasks)
    )["result"]["metrics"].keys()
    for more, message in (
        (["--recall-at", "3"], "recall_at: without effect"),
        (["--only", "STSb"], "--only: without effect, because there is no --protocol"),
        (["--teacher", captions / "none"], "none"),
    ):
        with pytest.raises(RequestError, match=message):
            call(*words, *more)
    with pytest.raises(RequestError, match="--teacher: without effect, because there is no --parallel"):
        call("evaluate", captions / "model", "--teacher", captions / "teacher", "--protocol", "sts")


def test_queries_search_documents_from_the_command_line(call, captions):
    english, german = ((captions / f"test.{language}").read_text().splitlines() for language in ("en", "de"))
    (captions / "queries.tsv").write_text("".join(f"q{row}\t{text}\n" for row, text in enumerate(german)))
    (captions / "my documents.tsv").write_text("".join(f"d{row}\t{text}\n" for row, text in enumerate(english)))
    (captions / "test.qrels").write_text("q0 0 d0 1\nq1 0 d1 2\n")
    words = ["evaluate", captions / "model", "--protocol", "retrieval", "--corpus", captions / "my documents.tsv"]
    files = ["--queries", captions / "queries.tsv", "--qrels", captions / "test.qrels"]
    metrics = json.loads(call(*words, *files, "--json"))["result"]["metrics"]
    queries, documents = (
        {f"{key}{row}": text for row, text in enumerate(texts)} for key, texts in (("q", german), ("d", english))
    )
    expected = evaluate_retrieval(
        str(captions / "model"), queries, documents, {"q0": {"d0": 1}, "q1": {"d1": 2}}, precision="fp32"
    )
    assert {name: metrics[f"retrieval/my-documents/{name}"] for name in expected} == expected
    lines = [line.split() for line in call(*words, *files).splitlines()]
    assert any(line[:1] == ["Retrieval"] and line[-1] == "my-documents" for line in lines)
    for wrong, message in (
        ([*words, "--queries", captions / "queries.tsv"], "expected --qrels beside --corpus FILE"),
        (words[:4], "expected --corpus"),
        ([*words[:2], *words[4:]], "--corpus: without effect, because there is no --protocol retrieval"),
        (
            [*words[:4], "--corpus", captions, "--qrels", captions],
            "--qrels: without effect, because --corpus is a folder",
        ),
        ([*words, *files, "--only", "STSb"], "--only: without effect"),
    ):
        with pytest.raises(RequestError, match=message):
            call(*wrong)


def test_a_recipe_takes_the_same_tasks_and_names_those_of_the_hub(captions):
    stage = f'[mteb]\nuses = "teachers.protocols"\nmodel = "{captions}/model"\nprotocols = ["mteb"]\n'
    (captions / "a.toml").write_text(stage + 'tasks = ["STS17"]\nlanguages = ["en", "de"]')
    (captions / "b.toml").write_text(stage + TASKS.replace("[[local]]", "[[mteb.local]]"))
    [named], [local] = (read_recipe(str(captions / name), REGISTRY).steps for name in ("a.toml", "b.toml"))
    assert hub_ids(named) == ["STS17"] and unknown_ids(named, {}) == [] and hub_ids(local) == []
    assert [each.path for each in local.settings.local] == [str(captions / "test.en")] * 2
