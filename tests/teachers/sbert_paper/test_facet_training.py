"""Argument facets with training: folds of pairs or topics."""

import csv
import json

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from toy_language import QUICK, scored_pairs
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from bertrelay.errors import RequestError
from teachers.evaluation.sts import StsPairs
from teachers.sbert_paper import facets as facet_training
from teachers.sbert_paper.facets import TOPICS
from teachers.sbert_paper.settings import FacetSettings


def write_topics(data, pairs):
    by_topic = {}
    for seed, (topic, file) in enumerate(TOPICS.items()):
        by_topic[topic] = scored_pairs(pairs, seed)
        with (data / file).open("w", newline="") as written:
            csv.writer(written).writerows(
                [["score", *"abcdefgh", "x", "y"], *([score, *"abcdefgh", u, v] for u, v, score in by_topic[topic])]
            )
    return by_topic


def test_every_pair_is_tested_once_after_training_on_the_others(context, tmp_path, monkeypatch):
    topics = write_topics(tmp_path, pairs=16)
    everything = sorted(pair for pairs in topics.values() for pair in pairs)
    tested, cosines = [], []
    similarities = StsPairs.similarities

    def recording(pairs, encode):
        similar = similarities(pairs, encode)
        tested.append(list(pairs.rows()))
        cosines.append(similar["cosine"])
        return similar

    monkeypatch.setattr(StsPairs, "similarities", recording)
    fields = {**QUICK, "data": str(tmp_path), "split": "ten-fold", "folds": 4}
    metrics = facet_training.run(FacetSettings.model_validate(fields), context)
    assert sorted(pair for fold in tested for pair in fold) == everything and len(tested) == 4
    for number, fold in enumerate(tested):
        assert sorted([*trained_on(context.work / f"ten-fold-{number}.jsonl"), *fold]) == everything
    for name, statistic in (("spearman", spearmanr), ("pearson", pearsonr)):
        by_fold = [
            statistic(near, [score for *_, score in fold]).statistic for near, fold in zip(cosines, tested, strict=True)
        ]
        assert metrics[f"facets/ten-fold/{name}_cosine"] == pytest.approx(np.mean(by_fold), abs=1e-9)
    assert {metrics[f"without_gold/AFS/{topic}"] for topic in TOPICS} == {0}


def trained_on(path):
    return [tuple(json.loads(line).values()) for line in path.read_text().splitlines()]


def test_a_cross_encoder_is_tested_by_its_scores_after_training_on_the_others(context, tmp_path, tiny_encoder):
    topics = write_topics(tmp_path, pairs=16)
    tiny_encoder("bert", [text for pairs in topics.values() for pair in pairs for text in pair[:2]]).save(
        tmp_path / "base"
    )
    fields = {**QUICK, "base": str(tmp_path / "base"), "learner": "cross-encoder", "data": str(tmp_path)}
    metrics = facet_training.run(FacetSettings.model_validate({**fields, "split": "cross-topic"}), context)
    by_topic = {"spearman": [], "pearson": []}
    for number, pairs in enumerate(topics.values()):
        others = [pair for topic in topics.values() for pair in topic if topic is not pairs]
        assert trained_on(context.work / f"cross-topic-{number}.jsonl") == others
        folder = context.work / f"cross-topic-{number}/model"
        network = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        with torch.inference_mode():
            scores = [network(**tokenizer(u, v, return_tensors="pt")).logits.sigmoid().item() for u, v, _ in pairs]
        assert len(set(scores)) > 16 // 2  # the network distinguishes pairs
        for name, statistic in (("spearman", spearmanr), ("pearson", pearsonr)):
            by_topic[name].append(statistic(scores, [score for *_, score in pairs]).statistic)
    for name, values in by_topic.items():
        assert metrics[f"facets/cross-topic/{name}_score"] == pytest.approx(np.mean(values), abs=1e-4)
    low, high = (metrics[f"facets/cross-topic/spearman_score_{end}"] for end in ("low", "high"))
    assert low < metrics["facets/cross-topic/spearman_score"] < high


def test_parts_without_a_correlation_are_refused_before_any_training(context, tmp_path):
    write_topics(tmp_path, pairs=6)
    fields = {**QUICK, "data": str(tmp_path)}
    with pytest.raises(RequestError, match=r"at least 2 pairs with a score in each of 10 folds, .* found 1 in one"):
        facet_training.run(FacetSettings.model_validate(fields), context)
    path = tmp_path / TOPICS["gay-marriage"]
    head, *rows = csv.reader(path.open(newline=""))
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *(["2", *row[1:]] for row in rows)])
    with pytest.raises(RequestError, match="found a single score in gay-marriage"):
        facet_training.run(FacetSettings.model_validate({**fields, "split": "cross-topic"}), context)
    assert not context.work.exists()
