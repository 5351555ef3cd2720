"""The recipes of the SBERT paper, on synthetic sentences in the official formats and with a tiny base: every stage."""

import json

from official_files import write_official_files
from typer.testing import CliRunner

from bertrelay.evaluation import statistics
from pipelines.cli.app import app
from teachers.sbert_paper.settings import SETS

LESS = {  # than the paper's, for a test
    "infersent.hidden": "4",
    "facets-ten-fold.folds": "2",
    "facets-ten-fold-cross-encoder.folds": "2",
    "ablation.poolings": '["mean"]',
    "ablation.concatenations": '[["u", "v", "|u-v|"]]',
}


def test_the_whole_recipe_runs_and_every_protocol_has_its_figures(tmp_path, tiny_encoder, monkeypatch):
    monkeypatch.setitem(statistics.with_interval.__kwdefaults__, "resamples", 10)
    data = tmp_path / "data"
    write_official_files(data)
    texts = (data / "STS/STSBenchmark/sts-train.csv").read_text().splitlines()
    tiny_encoder("bert", texts, layers=1).save(tmp_path / "base")
    given = {"seeds": "[1]", "vars.data": data, "vars.base": tmp_path / "base", "vars.glove": "glove.txt", **LESS}
    changes = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    ran = CliRunner().invoke(
        app, ["run", "sbert-paper", "--runs", str(tmp_path / "runs"), "--processes", "1", *changes]
    )
    assert ran.exit_code == 0, ran.output

    found = json.loads((tmp_path / "runs/sbert-paper/metrics.json").read_text())
    for stage in ("sbert-nli", "bert-averaged", "bert-cls", "glove", "infersent-nli", "tf-idf"):
        figures = {f"sts/{name}/spearman_cosine" for name in (*SETS["sts"], "mean")} | {"facets/mean/pearson_cosine"}
        figures |= {f"senteval/{name}/accuracy" for name in (*SETS["senteval"], "mean")}
        assert figures <= found[stage].keys()
    for stage, figure in {
        "test-stsb": "sts/STSb/spearman_cosine",
        "test-nli-stsb": "sts/STSb/spearman_cosine",
        "cross-encoder": "sts/STSb/spearman_score",
        "poly-encoder": "sts/STSb/spearman_score",
        "ablation": "ablation/pooling/mean/STSb",
    }.items():
        assert found[stage][figure] is not None
    assert found["test-sections"]["sections/accuracy"] is not None
    for split in ("ten-fold", "cross-topic"):
        assert found[f"facets-{split}"][f"facets/{split}/spearman_cosine"] is not None
        assert found[f"facets-{split}-cross-encoder"][f"facets/{split}/spearman_score"] is not None
    report = (tmp_path / "runs/sbert-paper/report.html").read_text()
    assert all(each in report for each in ("0.749", "0.874", "0.804", "0.808", "0.854", "0.741", "0.572"))
