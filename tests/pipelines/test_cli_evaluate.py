"""`bertrelay evaluate` on sample data in the official formats: every protocol from end to end."""

import csv
import json

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from typer.testing import CliRunner

from bertrelay.errors import RequestError
from bertrelay.evaluation import statistics
from pipelines.cli.app import app
from pipelines.report.tables import score_lines, score_tables
from pipelines.samples.sbert_paper import write_sbert_paper
from pipelines.samples.settings import SbertPaperSettings
from teachers.baselines.encoders import tfidf, vectors_for
from teachers.evaluation.settings import PROTOCOLS, SETS, YEARS
from teachers.evaluation.sts import at_once


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("official")
    write_sbert_paper(folder, SbertPaperSettings(sts=20, train=20, classes=12))
    return folder


def evaluate(*arguments):
    result = CliRunner().invoke(app, ["evaluate", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def metrics(data):
    protocols = [word for name in PROTOCOLS for word in ("--protocol", name)]
    with pytest.MonkeyPatch.context() as fewer:
        fewer.setitem(statistics.with_interval.__kwdefaults__, "resamples", 10)
        return json.loads(evaluate("tf-idf", *protocols, "--data", data, "--json"))["metrics"]


def test_every_protocol_has_a_figure_for_each_of_its_sets(metrics):
    names = {f"sts/{name}/spearman_cosine" for name in (*SETS["sts"], "mean")}
    names |= {f"senteval/{name}/accuracy" for name in (*SETS["senteval"], "mean")}
    names |= {f"facets/{topic}/pearson_cosine" for topic in ("gun-control", "gay-marriage", "death-penalty", "mean")}
    assert names | {"sections/accuracy", "senteval/MRPC/f1", "without_gold/STS16/headlines"} <= metrics.keys()
    assert metrics["without_gold/STS16/headlines"] == metrics["without_gold/AFS/gun-control"] == 4  # every fifth
    assert None not in metrics.values()


def test_the_figures_are_those_of_scipy_and_scikit_learn_on_the_same_files(data, metrics):
    rows = [line.split("\t") for line in (data / "STS/STSBenchmark/sts-test.csv").read_text().splitlines()]
    first, second = [row[5] for row in rows], [row[6] for row in rows]
    vectors = at_once(tfidf)([*first, *second])
    cosines = (vectors[:20] * vectors[20:]).sum(axis=1)
    expected = spearmanr(cosines, [float(row[4]) for row in rows]).statistic
    assert metrics["sts/STSb/spearman_cosine"] == pytest.approx(expected, abs=1e-6)

    texts, labels = reviews(data)
    assert metrics["senteval/MR/accuracy"] == pytest.approx(by_scikit_learn(at_once(tfidf)(texts), labels))


def reviews(data):
    texts = [(data / f"MR/rt-polarity.{part}").read_text().splitlines() for part in ("pos", "neg")]
    return texts[0] + texts[1], np.repeat(["positive", "negative"], 12)


def by_scikit_learn(vectors, labels):
    """The accuracy of all guesses of ten folds."""
    folds = StratifiedKFold(10, shuffle=True, random_state=0)
    return (cross_val_predict(LogisticRegression(max_iter=1000), vectors, labels, cv=folds) == labels).mean()


def test_the_arguments_figure_is_scipys(data, metrics):
    with (data / "AFS/ArgPairs_GM.csv").open(newline="") as file:
        rows = [row for row in list(csv.reader(file))[1:] if row[0]]
    u, v = np.split(at_once(tfidf)([row[9] for row in rows] + [row[10] for row in rows]), 2)
    expected = pearsonr((u * v).sum(axis=1), [float(row[0]) for row in rows]).statistic
    assert metrics["facets/gay-marriage/pearson_cosine"] == pytest.approx(expected, abs=1e-6)


def test_the_table_has_intervals_and_published_figures_that_are_marked(metrics):
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


def test_word_vectors_are_a_model_too_and_one_set_can_be_asked_for(data):
    glove = data / "glove.txt"
    out = evaluate(glove, "--protocol", "sts", "--only", "STS13", "--data", data, "--json")
    found = json.loads(out)["metrics"]
    assert {name.split("/")[1] for name in found} == {"STS13"}
    year = data / "STS/STS13-en-test"
    figures = []
    for subset in YEARS["STS13"]:
        pairs = [line.split("\t") for line in (year / f"STS.input.{subset}.txt").read_text().splitlines()]
        gold = [float(line) for line in (year / f"STS.gs.{subset}.txt").read_text().splitlines()]
        sides = [[pair[side] for pair in pairs] for side in (0, 1)]
        u, v = (vectors_for(glove, side).encode(side).astype(float) for side in sides)
        cosines = (u * v).sum(axis=1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
        figures.append(pearsonr(cosines, gold).statistic)  # ranks of equal bags of words are up to rounding
    assert found["sts/STS13/pearson_cosine"] == pytest.approx(np.mean(figures), abs=1e-5)


def test_an_encoder_folder_is_scored_by_the_pooling_asked_for(data, tmp_path, tiny_encoder):
    texts, labels = reviews(data)
    encoder = tiny_encoder("bert", texts, layers=1)
    encoder.save(tmp_path / "model")
    asked = [tmp_path / "model", "--protocol", "senteval", "--only", "MR", "--data", data, "--json"]
    figures = [json.loads(evaluate(*asked, *more))["metrics"] for more in (["--pooling", "cls"], [])]
    with torch.inference_mode():
        states = [encoder.backbone(torch.tensor([ids])).last_hidden_state[0] for ids in encoder.tokenize(texts)]
    by_cls, by_mean = np.stack([each[0] for each in states]), np.stack([each.mean(0) for each in states])
    accuracies = [by_scikit_learn(vectors, labels) for vectors in (by_cls, by_mean)]
    assert [figure["senteval/MR/accuracy"] for figure in figures] == pytest.approx(accuracies)
    assert accuracies[0] != accuracies[1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--protocol", "sts", "--data", "none"], "data: expected a folder with the official files, found none at"),
        (["--protocol", "sts", "--data", "."], "sts: expected the official files of STS12, STS13"),
        (["--protocol", "stsb", "--data", "."], r"protocols\[0\]: expected 'sts', 'sent.*; did you mean"),
        (["--protocol", "sts", "--only", "MR", "--data", "."], "sets: expected some of STS12"),
        (
            ["--protocol", "sts", "--protocol", "senteval", "--only", "STSb", "--data", "."],
            "sets: expected at least one of each protocol, found none of senteval",
        ),
        (["--protocol", "sts", "--pooling", "cls", "--data", "."], "pooling: without effect, because only a model has"),
    ],
)
def test_a_wrong_request_is_told(tmp_path, monkeypatch, arguments, told):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match=told):
        evaluate("tf-idf", *arguments)


def test_a_set_asked_for_by_name_must_be_there_and_others_need_not(data, tmp_path):
    (tmp_path / "STSBenchmark").mkdir()
    (tmp_path / "STSBenchmark/sts-test.csv").write_bytes((data / "STS/STSBenchmark/sts-test.csv").read_bytes())
    found = CliRunner().invoke(app, ["evaluate", "tf-idf", "--protocol", "sts", "--data", str(tmp_path)])
    assert found.exit_code == 0
    assert "left out: STS12, STS13, STS14, STS15, STS16, SICK-R; there is no mean" in found.output
    assert "published" in found.stdout and " – " in found.stdout
    with pytest.raises(RequestError, match="expected the official files of SICK-R"):
        evaluate("tf-idf", "--protocol", "sts", "--only", "STSb", "--only", "SICK-R", "--data", tmp_path)


def test_published_figures_stand_only_where_their_row_is():
    tables = score_tables(
        {
            "a": {
                "ablation/pooling/mean/NLI": 0.5,
                "ablation/concatenation/u, v/NLI": 0.4,
                "senteval/MR/accuracy": 0.7,
                "sts/stsb/spearman_cosine": 0.8,
            }
        }
    )
    found = {(table.family.title, table.caption): list(table.columns) for table in tables}
    assert found == {
        ("Semantic textual similarity", ""): [("a", "Spearman, cosine")],
        ("Classification of sentences", ""): [("a", "accuracy")],
        ("Ablation", "pooling"): [("a", "NLI"), ("published", "NLI")],
        ("Ablation", "concatenation"): [("a", "NLI"), ("published", "NLI")],
    }
