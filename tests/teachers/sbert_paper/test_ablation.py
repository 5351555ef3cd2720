"""The ablation's tables: a training for each cell."""

import numpy as np
import pytest
from scipy.stats import spearmanr
from toy_language import QUICK, scored_pairs

from bertrelay.errors import RequestError
from bertrelay.evaluation import statistics
from bertrelay.model.encoder import SentenceEncoder
from teachers import train
from teachers.sbert_paper import ablation
from teachers.sbert_paper.settings import AblationSettings


def write_ablation(data):
    for part, seed in (("train", 1), ("dev", 2), ("test", 4)):
        rows = [("g", "f", "y", "1", str(score), first, second) for first, second, score in scored_pairs(64, seed)]
        (data / f"sts-{part}.csv").write_text("".join("\t".join(row) + "\n" for row in rows))
    labels = [(first, second, "NEAR" if score > 3 else "FAR") for first, second, score in scored_pairs(64, 3)]
    head = ("sentence_A", "sentence_B", "entailment_judgment")
    (data / "SICK_train.txt").write_text("".join("\t".join(row) + "\n" for row in (head, *labels)))


def test_both_tables_are_filled_and_a_cell_of_both_is_trained_once(context, tmp_path, monkeypatch):
    monkeypatch.setitem(statistics.with_interval.__kwdefaults__, "resamples", 10)
    write_ablation(tmp_path)
    trained = []
    run = train.run

    def counting(settings, inner):
        trained.append(inner.output.name)
        return run(settings, inner)

    monkeypatch.setattr(train, "run", counting)
    fields = {**QUICK, "data": str(tmp_path), "concatenations": [["u", "v"], ["|u-v|"], ["u", "v", "|u-v|"]]}
    settings = AblationSettings.model_validate(fields)
    metrics = ablation.run(settings, context)
    cells = [f"pooling/{pooling}/{data}" for pooling in ("mean", "max", "cls") for data in ("NLI", "STSb")]
    cells += [f"concatenation/{parts}/NLI" for parts in ("u, v", "|u-v|", "u, v, |u-v|")]
    assert [name for name in metrics if not name.endswith(("_low", "_high"))] == [f"ablation/{cell}" for cell in cells]
    assert {f"ablation/{cell}_low" for cell in cells} <= metrics.keys()
    assert len(trained) == len(set(trained)) == 8
    assert metrics["ablation/pooling/mean/NLI"] == metrics["ablation/concatenation/u, v, |u-v|/NLI"]

    model = SentenceEncoder.load(context.work / "cosine-mean-u-v-difference" / "model")
    tested = scored_pairs(64, 2)
    u, v = (model.encode([row[column] for row in tested], precision="fp32") for column in (0, 1))
    cosines = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    expected = spearmanr(cosines, [score for *_, score in tested]).statistic
    # Equal sentences are ties except for rounding.
    assert metrics["ablation/pooling/mean/STSb"] == pytest.approx(expected, abs=1e-3)

    trained.clear()
    assert ablation.run(settings, context) == metrics  # as after a kill: no training is repeated
    assert ablation.run(settings.model_copy(update={"part": "test"}), context) != metrics
    assert trained == []

    rows = [line.split("\t") for line in (tmp_path / "sts-dev.csv").read_text().splitlines()]
    (tmp_path / "blob").write_text("".join(f"{first},{second},{score}\n" for *_, score, first, second in rows))
    (tmp_path / "sts-dev.csv").unlink()
    (tmp_path / "stsb-en-dev.csv").symlink_to(tmp_path / "blob")  # as in a folder of the hub's cache
    assert ablation.run(settings, context) == metrics


def test_missing_files_and_other_scores_are_refused_before_any_training(context, tmp_path):
    settings = AblationSettings.model_validate({**QUICK, "data": str(tmp_path)})

    def refused(expected):
        with pytest.raises(RequestError, match=expected):
            ablation.run(settings, context)

    refused(r"expected SICK_train\.txt, found none below")
    write_ablation(tmp_path)
    path = tmp_path / "sts-dev.csv"
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    path.write_text("".join("\t".join([*row[:4], "7", *row[5:]]) + "\n" for row in rows))
    refused(r"sts-dev\.csv: expected gold scores from 0 to 5, found one outside")
    for part in ("dev", "train"):
        (tmp_path / f"sts-{part}.csv").unlink()
        refused(rf"expected sts-{part}\.csv or stsb-en-{part}\.csv, found none below")
    assert not context.work.exists()
