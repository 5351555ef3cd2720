"""Stages of several trainings: the ablation's tables and the folds of the arguments."""

import csv
import json

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from bertrelay.errors import RequestError
from bertrelay.evaluation import statistics
from bertrelay.model.encoder import SentenceEncoder
from teachers import train
from teachers.evaluation.sts import StsPairs
from teachers.sbert_paper import ablation
from teachers.sbert_paper import facets as facet_training
from teachers.sbert_paper.settings import TOPICS, AblationSettings, FacetSettings

ANIMALS = ["dog", "cat", "bird", "fish", "horse", "mouse"]
VERBS = ["runs", "sleeps", "eats", "waits"]
NEW = {"layers": 1, "dim": 16, "heads": 2, "vocabulary": 100, "max_tokens": 16, "dropout": 0.0}
QUICK = {"base": NEW, "batch_items": 16, "learning_rate": 5e-3, "precision": "fp32"}


def sentences(count, seed):
    """Pairs of animals, as near as they stand in the list, from 0 to 5."""
    drawn = np.random.default_rng(seed)
    pairs = [(int(drawn.integers(6)), int(drawn.integers(6))) for _ in range(count)]
    return [
        (f"the {ANIMALS[a]} {drawn.choice(VERBS)}", f"the {ANIMALS[b]} {drawn.choice(VERBS)}", 5.0 - abs(a - b))
        for a, b in pairs
    ]


def write_ablation(data):
    for part, seed in (("train", 1), ("dev", 2), ("test", 4)):
        rows = [("g", "f", "y", "1", str(score), first, second) for first, second, score in sentences(64, seed)]
        (data / f"sts-{part}.csv").write_text("".join("\t".join(row) + "\n" for row in rows))
    labels = [(first, second, "NEAR" if score > 3 else "FAR") for first, second, score in sentences(64, 3)]
    head = ("sentence_A", "sentence_B", "entailment_judgment")
    (data / "SICK_train.txt").write_text("".join("\t".join(row) + "\n" for row in (head, *labels)))


def test_the_ablation_fills_both_tables_and_trains_what_they_share_once(context, tmp_path, monkeypatch):
    monkeypatch.setitem(statistics.with_interval.__kwdefaults__, "resamples", 10)
    write_ablation(tmp_path)
    trained = []
    run = train.run

    def counted(settings, inner):
        trained.append(inner.output.name)
        return run(settings, inner)

    monkeypatch.setattr(train, "run", counted)
    given = {**QUICK, "data": str(tmp_path), "concatenations": [["u", "v"], ["|u-v|"], ["u", "v", "|u-v|"]]}
    settings = AblationSettings.model_validate(given)
    metrics = ablation.run(settings, context)
    cells = [f"pooling/{pooling}/{data}" for pooling in ("mean", "max", "cls") for data in ("NLI", "STSb")]
    cells += [f"concatenation/{parts}/NLI" for parts in ("u, v", "|u-v|", "u, v, |u-v|")]
    assert [name for name in metrics if not name.endswith(("_low", "_high"))] == [f"ablation/{cell}" for cell in cells]
    assert {f"ablation/{cell}_low" for cell in cells} <= metrics.keys()
    assert len(trained) == len(set(trained)) == 8
    assert metrics["ablation/pooling/mean/NLI"] == metrics["ablation/concatenation/u, v, |u-v|/NLI"]

    model = SentenceEncoder.load(context.work / "cosine-mean-u-v-difference" / "model")
    tested = sentences(64, 2)
    u, v = (model.encode([row[side] for row in tested], precision="fp32") for side in (0, 1))
    cosines = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    expected = spearmanr(cosines, [score for *_, score in tested]).statistic
    # Equal sentences are ties but for rounding.
    assert metrics["ablation/pooling/mean/STSb"] == pytest.approx(expected, abs=1e-3)

    trained.clear()
    assert ablation.run(settings, context) == metrics  # as after a kill: nothing is trained again
    assert ablation.run(settings.model_copy(update={"part": "test"}), context) != metrics
    assert trained == []


def test_data_without_its_parts_or_with_other_scores_is_refused_before_anything_is_trained(context, tmp_path):
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


def write_topics(data, pairs):
    found = {}
    for seed, (topic, file) in enumerate(TOPICS.items()):
        found[topic] = sentences(pairs, seed)
        with (data / file).open("w", newline="") as written:
            csv.writer(written).writerows(
                [["score", *"abcdefgh", "x", "y"], *([score, *"abcdefgh", u, v] for u, v, score in found[topic])]
            )
    return found


def test_every_pair_is_tested_once_by_what_the_others_teach(context, tmp_path, monkeypatch):
    topics = write_topics(tmp_path, pairs=16)
    everything = sorted(pair for pairs in topics.values() for pair in pairs)
    tested, cosines = [], []
    similarities = StsPairs.similarities

    def noted(pairs, encode):
        found = similarities(pairs, encode)
        tested.append(list(pairs.rows()))
        cosines.append(found["cosine"])
        return found

    monkeypatch.setattr(StsPairs, "similarities", noted)
    given = {**QUICK, "data": str(tmp_path), "split": "ten-fold", "folds": 4}
    metrics = facet_training.run(FacetSettings.model_validate(given), context)
    assert sorted(pair for fold in tested for pair in fold) == everything and len(tested) == 4
    for number, fold in enumerate(tested):
        assert sorted([*learned(context.work / f"ten-fold-{number}.jsonl"), *fold]) == everything
    for name, statistic in (("spearman", spearmanr), ("pearson", pearsonr)):
        by_fold = [
            statistic(each, [score for *_, score in fold]).statistic for each, fold in zip(cosines, tested, strict=True)
        ]
        assert metrics[f"facets/ten-fold/{name}_cosine"] == pytest.approx(np.mean(by_fold), abs=1e-9)
    assert {metrics[f"without_gold/AFS/{topic}"] for topic in TOPICS} == {0}


def learned(path):
    return [tuple(json.loads(line).values()) for line in path.read_text().splitlines()]


def test_a_cross_encoder_is_tested_by_its_scores_of_what_the_others_teach(context, tmp_path, tiny_encoder):
    topics = write_topics(tmp_path, pairs=16)
    tiny_encoder("bert", [text for pairs in topics.values() for pair in pairs for text in pair[:2]]).save(
        tmp_path / "base"
    )
    given = {**QUICK, "base": str(tmp_path / "base"), "learner": "cross-encoder", "data": str(tmp_path)}
    metrics = facet_training.run(FacetSettings.model_validate({**given, "split": "cross-topic"}), context)
    by_topic = {"spearman": [], "pearson": []}
    for number, pairs in enumerate(topics.values()):
        others = [pair for each in topics.values() for pair in each if each is not pairs]
        assert learned(context.work / f"cross-topic-{number}.jsonl") == others
        folder = context.work / f"cross-topic-{number}/model"
        network = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        with torch.inference_mode():
            scores = [network(**tokenizer(u, v, return_tensors="pt")).logits.sigmoid().item() for u, v, _ in pairs]
        assert len(set(scores)) > 16 // 2  # the network tells pairs apart
        for name, statistic in (("spearman", spearmanr), ("pearson", pearsonr)):
            by_topic[name].append(statistic(scores, [score for *_, score in pairs]).statistic)
    for name, found in by_topic.items():
        assert metrics[f"facets/cross-topic/{name}_score"] == pytest.approx(np.mean(found), abs=1e-4)
    low, high = (metrics[f"facets/cross-topic/spearman_score_{end}"] for end in ("low", "high"))
    assert low < metrics["facets/cross-topic/spearman_score"] < high


def test_parts_that_cannot_be_correlated_are_refused_before_anything_is_trained(context, tmp_path):
    write_topics(tmp_path, pairs=6)
    given = {**QUICK, "data": str(tmp_path)}
    with pytest.raises(RequestError, match=r"at least 2 pairs with a score in each of 10 folds, .* found 1 in one"):
        facet_training.run(FacetSettings.model_validate(given), context)
    path = tmp_path / TOPICS["gay-marriage"]
    head, *rows = csv.reader(path.open(newline=""))
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *(["2", *row[1:]] for row in rows)])
    with pytest.raises(RequestError, match="found one score alone in gay-marriage"):
        facet_training.run(FacetSettings.model_validate({**given, "split": "cross-topic"}), context)
    assert not context.work.exists()
