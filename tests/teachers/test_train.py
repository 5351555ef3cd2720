"""Encoders learn a toy language in which sentences about one animal mean the same."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from toy_language import log_lines, records, teach, write_toy

from bertrelay.data.tokens import Tokens
from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.layout import Prompts
from bertrelay.report import read_report
from teachers.settings import TrainSettings
from teachers.train import TeacherData, start_encoder


@pytest.mark.parametrize("objective", ["softmax", "cosine"])
def test_an_evaluation_by_two_processes_equals_that_of_one(context, tmp_path, evaluated_twice, objective):
    evaluations = evaluated_twice("teachers.train")
    fields = write_toy(tmp_path, objective)
    sts = {"dev_sts": {"toy": fields["dev"][0]}} if objective == "cosine" else {}
    teach(context, {**fields, **sts, "epochs": 1})
    [(by_one, by_two)] = evaluations
    assert by_two == pytest.approx(by_one, abs=1e-5) and len(by_one) == (3 if sts else 1)


@pytest.mark.parametrize(
    ("objective", "criterion", "least"),
    [
        ("cosine", "dev/spearman_cosine", 0.3),
        ("triplet", "dev/triplet_accuracy", 0.8),
        ("contrastive", "dev/retrieval_accuracy", 4 / 80),  # one in eighty by chance, and animals have many sentences
    ],
)
def test_an_encoder_from_scratch_and_its_linear_layer_learn(context, tmp_path, objective, criterion, least):
    fields = {**write_toy(tmp_path, objective), "linear": True}
    metrics = teach(context, fields)
    losses = [line["loss"] for line in log_lines(context, "loss")]
    assert losses[-1] < (0.8 if objective == "contrastive" else 0.5) * losses[0]
    assert metrics[criterion] > least
    assert metrics["train_items"] == len(set(records(objective, 240, 1)))
    learnt = SentenceEncoder.load(context.output / "model").projection
    begun = start_encoder(TrainSettings.model_validate(fields), ["a dog"], context).projection
    assert not torch.allclose(learnt.linear.weight, begun.linear.weight, atol=1e-4)


def test_the_dev_metric_of_the_report_is_that_of_the_model_and_the_dev_data(context, tmp_path):
    fields = write_toy(tmp_path, "cosine")
    teach(context, {**fields, "epochs": 2})
    rows = [line.split("\t") for line in (tmp_path / "cosine.dev.tsv").read_text().splitlines()[1:]]
    first, second, gold = zip(*rows, strict=True)
    encoder = SentenceEncoder.load(context.output / "model")
    vectors = (encoder.encode(texts, precision="fp32", normalize_embeddings=True) for texts in (first, second))
    cosines = np.multiply(*vectors).sum(axis=1)
    [headline] = read_report(context.output).headlines
    assert headline.measure.value == pytest.approx(
        spearmanr(cosines, [float(score) for score in gold]).statistic, abs=2e-3
    )


def test_the_mean_of_sts_sets_is_measured_beside_the_metric_of_the_objective(context, tmp_path):
    fields = write_toy(tmp_path, "softmax", train=64)
    write_toy(tmp_path, "cosine")
    sets = {name: {"path": str(tmp_path / f"cosine.{part}.tsv")} for name, part in (("a", "dev"), ("b", "train"))}
    metrics = teach(context, {**fields, "dev_sts": sets, "epochs": 1})
    [evaluation] = log_lines(context, "dev/sts/spearman_cosine")
    by_set = [evaluation[f"dev/sts/{name}/spearman_cosine"] for name in sets]
    assert metrics["dev/sts/spearman_cosine"] == pytest.approx(np.mean(by_set))
    assert metrics["dev/accuracy"] == evaluation["dev/accuracy"]
    assert not [name for name in metrics if name.startswith("sts/")], "a dev score must not be taken for a test score"


def test_more_dimensions_than_the_model_has_are_refused(context, tmp_path):
    fields = {**write_toy(tmp_path, "cosine", train=24), "dimensions": [8, 64]}
    with pytest.raises(RequestError, match="dimensions: expected at most the 32 of the model's vectors, found 64"):
        teach(context, fields)


def test_a_base_with_a_default_prompt_is_trained_on_texts_with_it(tiny_encoder, context, tmp_path):
    fields = write_toy(tmp_path, "cosine", train=24)
    texts = ["a dog runs here", "the cat sleeps there"]
    tiny_encoder("bert", texts, prompts=Prompts({"all": "the cat "}, "all")).save(tmp_path / "base")
    teach(context, {**fields, "base": str(tmp_path / "base"), "epochs": 1})
    tokens = Tokens(context.work / "tokens")
    first = TeacherData.read(TrainSettings.model_validate(fields), context).train.sentences[0]
    trained = SentenceEncoder.load(context.output / "model")
    assert trained.prompts.text() == "the cat "
    assert tokens.padded(np.array([0]), trained.pad_id)[0][0].tolist() == trained.tokenize(["the cat " + first])[0]
