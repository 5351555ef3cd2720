"""Classes and heads of the softmax objective."""

import numpy as np
import pytest
from toy_language import context_in, log_lines, teach, write_toy

from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder
from teachers.model import start_head
from teachers.settings import TrainSettings


@pytest.fixture(scope="module")
def nli(tmp_path_factory):
    """An encoder of the softmax objective: its settings, its context and its metrics."""
    folder = tmp_path_factory.mktemp("nli")
    fields = write_toy(folder, "softmax")
    return fields, context_in(folder), teach(context_in(folder), fields)


def test_an_encoder_from_scratch_learns_to_classify(nli):
    _, context, metrics = nli
    assert log_lines(context, "loss")[0]["loss"] == pytest.approx(np.log(2), abs=0.15)  # two classes, before any step
    assert metrics["dev/accuracy"] > 0.8
    files = {path.name for path in context.output.iterdir()} - {context.work.name}
    assert files == {"head", "metrics.jsonl", "model", "rejects.jsonl", "report.json"}


def test_other_than_2_to_100_classes_and_dev_data_of_other_ones_are_refused(context, tmp_path):
    fields = write_toy(tmp_path, "softmax", train=24)
    train, dev = (tmp_path / f"softmax.{part}.tsv" for part in ("train", "dev"))
    original = train.read_text()
    dev.write_text(dev.read_text().replace("dissimilar", "DISSIMILAR"))
    with pytest.raises(RequestError, match=r"dev:.*dissimilar, similar.*found 1 other"):
        teach(context, fields)
    train.write_text(original.replace("dissimilar", "similar"))
    with pytest.raises(RequestError, match="expected 2 to 100 classes, found 1"):
        teach(context, fields)
    rows = [f"a dog\ta cat\tsomething private {number}" for number in range(101)]
    train.write_text("\n".join(["premise\thypothesis\tlabel", *rows]))
    with pytest.raises(RequestError, match="found 101") as raised:
        teach(context, fields)
    assert "private" not in str(raised.value)


def test_a_head_is_saved_beside_the_encoder_and_trained_further(nli, context):
    fields, first, _ = nli
    saved = {"base": str(first.output / "model"), "head": str(first.output / "head")}
    for folder, head in (("head", saved), ("no-head", {"base": saved["base"]})):
        teach(context_in(context.output / folder), {**fields, **head, "epochs": 1, "log_every": 1})
    losses = [log_lines(context_in(context.output / folder), "loss")[0]["loss"] for folder in ("head", "no-head")]
    assert losses[0] < 0.1 < losses[1]


@pytest.mark.parametrize(
    ("changed", "classes", "pooling", "expected"),
    [
        ({}, ["no", "yes"], "mean", r"trained for \['dissimilar', 'similar'\].*has \['no', 'yes'\]"),
        ({"concatenation": ["|u-v|"]}, None, "mean", r"on \['u', 'v', '\|u-v\|'\].*on \['\|u-v\|'\]"),
        ({}, None, "max", r"a linear map of 192 numbers in .*head\.safetensors, found none that"),
        ({"head": "/nowhere"}, None, "mean", r"expected head\.json and head\.safetensors"),
    ],
)
def test_a_head_of_other_classes_or_another_size_is_refused(nli, changed, classes, pooling, expected):
    fields, first, _ = nli
    of_head = {"base": str(first.output / "model"), "head": str(first.output / "head"), **changed}
    encoder = SentenceEncoder.load(first.output / "model")
    if pooling == "max":
        encoder = SentenceEncoder(encoder.backbone, encoder.tokenizer, pooling=["mean", "max"])
    with pytest.raises(RequestError, match=expected):
        start_head(TrainSettings.model_validate({**fields, **of_head}), encoder, classes or ["dissimilar", "similar"])
