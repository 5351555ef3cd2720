import math

import numpy as np
import pytest
import torch
from torch import nn

from bertrelay.new_encoder import train_wordpiece
from domain.pretraining.items import Text, draw_pairs, pack
from domain.pretraining.sequences import Sequences
from domain.pretraining.settings import PretrainSettings
from domain.pretraining.train import SEED, HeldOut

TOKENIZER = train_wordpiece(["the heart and the lung", "a fever, a cough and a rash"], 80, 40)
WORDS = len(TOKENIZER)


class Guesser(nn.Module):
    """Gives logits that depend on the token that stood there and on the pair, so that metrics are known by hand."""

    def __init__(self, objectives):
        super().__init__()
        self.objectives = objectives
        self.logits = nn.Parameter(torch.randn(WORDS, WORDS, generator=torch.Generator().manual_seed(0)))
        self.next_logits = nn.Parameter(torch.tensor([[0.3, -0.2], [0.1, 0.4]]))

    def forward(self, inputs):
        longest = inputs["attention_mask"].sum(dim=1) % 2
        told = {"mlm": self.logits[inputs["masked_ids"]], "nsp": self.next_logits[longest]}
        return {name: told[name] for name in self.objectives}


def held_out(corpus, objectives=("mlm", "nsp"), **settings):
    given = {
        "base": "./none",
        "documents": [{"path": "none.jsonl"}],
        "max_tokens": 24,
        "objectives": list(objectives),
        "precision": "fp32",
        **settings,
    }
    settings = PretrainSettings.model_validate(given)
    text = Text(corpus, corpus.groups >= 0)
    items = draw_pairs(text, 24, 0.1, SEED, 0) if "nsp" in objectives else pack(text, 24)
    return HeldOut(items, Sequences(corpus, TOKENIZER, settings), settings)


@pytest.fixture(scope="module")
def corpus(random_corpus):
    return random_corpus(25, sentences=(2, 7), tokens=(2, 9), vocabulary=(6, WORDS))


def test_metrics_are_those_computed_by_hand(corpus):
    scored = held_out(corpus)
    model = Guesser(["mlm", "nsp"])
    metrics = scored.metrics(model)
    inputs = scored.sequences.batch(scored.items, np.arange(len(scored.items)), SEED, 0).inputs
    logits = model.logits.detach().double().numpy()
    ids = inputs["masked_ids"].numpy()
    losses = np.log(np.exp(logits[ids]).sum(axis=1)) - logits[ids, ids]
    assert metrics["mlm_loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert metrics["mlm_perplexity"] == pytest.approx(math.exp(losses.mean()), rel=1e-5)
    assert metrics["mlm_accuracy"] == pytest.approx((logits[ids].argmax(axis=1) == ids).mean())
    pairs = model.next_logits.detach().double().numpy()[inputs["attention_mask"].sum(dim=1).numpy() % 2]
    is_random = inputs["is_random"].numpy()
    next_losses = np.log(np.exp(pairs).sum(axis=1)) - pairs[np.arange(len(pairs)), is_random]
    assert metrics["nsp_loss"] == pytest.approx(next_losses.mean(), rel=1e-5)
    assert metrics["nsp_accuracy"] == pytest.approx((pairs.argmax(axis=1) == is_random).mean())
    assert metrics["log_likelihood"] == pytest.approx(-losses.mean() - next_losses.mean(), rel=1e-5)


def test_intervals_are_over_documents(random_corpus):
    """Bootstrapped here, document by document, with another generator."""
    corpus = random_corpus(60, sentences=(2, 9), tokens=(2, 9), vocabulary=(6, WORDS), seed=4)
    scored = held_out(corpus)
    model = Guesser(["mlm", "nsp"])
    metrics = scored.metrics(model)
    pairs = scored.sequences.batch(scored.items, np.arange(len(scored.items)), SEED, 0).inputs
    hits = model.next_logits.detach().argmax(dim=1)[pairs["attention_mask"].sum(dim=1) % 2] == pairs["is_random"]
    by_document = [hits.numpy()[scored.items.documents == number] for number in np.unique(scored.items.documents)]
    generator = np.random.default_rng(99)
    means = []
    for _ in range(2000):
        drawn = generator.integers(0, len(by_document), len(by_document))
        means.append(np.concatenate([by_document[number] for number in drawn]).mean())
    low, high = np.percentile(means, [2.5, 97.5])
    assert metrics["nsp_accuracy_low"] == pytest.approx(low, abs=0.015)
    assert metrics["nsp_accuracy_high"] == pytest.approx(high, abs=0.015)


def test_metrics_are_the_same_every_time_in_batches_of_any_size_and_under_any_seed(corpus):
    model = Guesser(["mlm", "nsp"])
    expected = held_out(corpus).metrics(model)
    for settings in ({}, {"device_tokens": 30}, {"seed": 5}):
        assert held_out(corpus, **settings).metrics(model.train()) == pytest.approx(expected, rel=1e-9)
    assert model.training and model.logits.grad is None
