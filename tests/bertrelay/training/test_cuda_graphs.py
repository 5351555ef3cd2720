"""Captured passes of a network, with a stand-in for CUDA graphs that computes what a graph would replay."""

import numpy as np
import pytest
import torch
from small_training import train
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, BertModel

from bertrelay.model.network import freeze_pooler
from bertrelay.training import cuda_graphs, loop
from bertrelay.training.cuda_graphs import replay_networks
from bertrelay.training.settings import TrainingSettings
from bertrelay.training.task import Batch

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
SETTINGS = {"seed": 1, "epochs": 3, "batch_items": 7, "learning_rate": 1e-3, "precision": "fp32"}


class Head(nn.Module):
    """A BERT with a linear map on the first token, which may be tied to the word embeddings."""

    def __init__(self, dropout=0.1, tied=False):
        super().__init__()
        torch.manual_seed(0)
        names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
        config = BertConfig(vocab_size=50, max_position_embeddings=40, **SIZES, **dict.fromkeys(names, dropout))
        self.network, self.linear = BertModel(config), nn.Linear(16, 50)
        if tied:
            self.linear.weight = self.network.embeddings.word_embeddings.weight
        freeze_pooler(self.network)

    def forward(self, ids, mask):
        return self.linear(self.network(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0])[:, 7:8]


class Lengths:
    """Sentences whose targets are their lengths."""

    criterion = None

    def __init__(self, items=40, longest=39, tied=False):
        self.model = Head(tied=tied)
        generator = np.random.default_rng(0)
        self.lengths = self.padded_lengths = generator.integers(3, longest + 1, items)
        self.ids = [generator.integers(1, 50, length) for length in self.lengths]

    def collate(self, items, epoch):  # noqa: ARG002
        width = self.lengths[items].max()
        ids = np.stack([np.pad(self.ids[item], (0, width - self.lengths[item])) for item in items])
        inputs = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy((ids > 0).astype(np.int64))}
        return Batch({**inputs, "targets": torch.from_numpy(self.lengths[items] / 40).float()}, {"error": len(items)})

    def loss(self, model, batch):
        predicted = model(batch.inputs["input_ids"], batch.inputs["attention_mask"])[:, 0]
        return {"error": (predicted - batch.inputs["targets"]).square().sum()}


@pytest.fixture
def replays(monkeypatch):
    """The names of the passes that were replayed, in order."""
    names = []

    def capture_graph(launch, pool):
        launch()  # adds nothing to gradients, as those of the outputs are still zero

        def replay():
            names.append(launch.__name__.removeprefix("pass_"))
            with torch.enable_grad():
                launch()

        return replay, pool

    monkeypatch.setattr(cuda_graphs, "capture_graph", capture_graph)
    monkeypatch.setattr(loop, "can_replay", lambda *_: True)
    return names


def trained(folder, tied=False, **settings):
    task = Lengths(tied=tied)
    train(task, TrainingSettings(**{**SETTINGS, **settings}), folder)
    assert "forward" not in vars(task.model.network)
    return task.model.state_dict()


@pytest.mark.parametrize("tied", [False, True], ids=["a head", "a tied head"])
@pytest.mark.parametrize("settings", [{}, {"device_tokens": 100}], ids=["one micro-batch", "several"])
def test_replayed_passes_end_with_the_bits_of_eager_ones(tmp_path, replays, tied, settings):
    replayed = trained(tmp_path / "replayed", tied, **settings)
    assert replays.count("forward") == replays.count("backward") > 8
    replays.clear()
    for eager in ({"cuda_graphs": False}, {"gradient_checkpointing": True}):
        expected = trained(tmp_path / next(iter(eager)), tied, **settings, **eager)
        assert not replays
        assert all(torch.equal(replayed[name], weight) for name, weight in expected.items())


def test_padding_changes_no_gradient(replays):
    task = Lengths()
    task.model = Head(dropout=0.0).train()
    batch = task.collate(np.arange(33), 0)
    assert batch.inputs["input_ids"].shape == (33, 38)

    def gradients():
        task.model.zero_grad(set_to_none=False)
        task.loss(task.model, batch)["error"].backward()
        return {name: weight.grad.clone() for name, weight in task.model.named_parameters() if weight.grad is not None}

    expected = gradients()
    with replay_networks(task.model):
        for _ in range(3):
            padded = gradients()
            for name, gradient in expected.items():
                torch.testing.assert_close(padded[name], gradient, rtol=1e-4, atol=1e-5)
            assert padded.keys() == expected.keys()
    assert replays == ["forward", "backward"] * 2


def test_a_second_forward_pass_before_the_backward_pass_runs_eagerly(replays):
    """It would overwrite what the first one keeps for its backward pass."""
    task = Lengths()
    task.model.train()
    batches = [task.collate(np.array(items), 0) for items in ([0, 1, 2], [0, 2, 1])]
    with replay_networks(task.model):
        task.loss(task.model, batches[0])["error"].backward()
        task.model.zero_grad(set_to_none=False)
        losses = [task.loss(task.model, batch)["error"] for batch in batches]
        sum(losses).backward()
    assert replays == ["forward", "backward"]


def test_the_classifiers_of_transformers_are_replayed_too(replays):
    """They pass the ids to their BERT by position, and return_dict."""
    torch.manual_seed(0)
    classifier = BertForSequenceClassification(BertConfig(vocab_size=50, max_position_embeddings=40, **SIZES)).train()
    ids = torch.tensor([[1, 2, 3], [4, 5, 0]])
    with replay_networks(classifier):
        for _ in range(3):
            classifier(input_ids=ids, attention_mask=(ids > 0).long()).logits.sum().backward()
            classifier.zero_grad(set_to_none=False)
        assert replays == ["forward", "backward"] * 2
        expected = classifier.eval()(input_ids=ids, attention_mask=(ids > 0).long()).logits
    torch.testing.assert_close(classifier(input_ids=ids, attention_mask=(ids > 0).long()).logits, expected)


def test_a_network_whose_passes_cannot_be_captured_is_trained_eagerly(tmp_path, replays, monkeypatch, capfd):
    def fail(*_):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(cuda_graphs, "capture_graph", fail)
    trained(tmp_path)
    assert not replays
    message = "as capturing their passes failed (operation not permitted when stream is capturing)"
    assert capfd.readouterr().err.count(message) == 1
