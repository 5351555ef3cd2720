"""Similarities of sentences against arithmetic by hand."""

from math import sqrt

import numpy as np
import pytest
import torch

from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import METRICS
from bertrelay.settings import Metric
from students import similarity

VECTORS = {"east": (4.0, 3.0), "north": (3.0, 4.0), "west": (-4.0, 3.0), "nowhere": (0.0, 0.0)}
# Of east with north, with west and with nowhere, by hand.
EAST: dict[Metric, list[float]] = {
    "cosine": [24 / 25, -7 / 25, 0],
    "dot": [24, -7, 0],
    "euclidean": [-sqrt(2), -8, -5],
    "manhattan": [-2, -8, -7],
}
WEST_WITH_NORTH: dict[Metric, float] = {"cosine": 0, "dot": 0, "euclidean": -sqrt(50), "manhattan": -8}


@pytest.fixture
def encoder(tiny_encoder, monkeypatch):
    """An encoder that gives each word its vector, with zeros in the other dimensions."""
    encoder, words = tiny_encoder("bert", list(VECTORS)), list(VECTORS)
    vectors = torch.zeros(len(words), encoder.dim)
    vectors[:, :2] = torch.tensor(list(VECTORS.values()))
    monkeypatch.setattr(encoder, "tokenize", lambda texts: [[words.index(text)] for text in texts])
    monkeypatch.setattr(encoder, "forward", lambda ids, *_: vectors[ids[:, 0]])
    return encoder


@pytest.mark.parametrize("metric", METRICS)
def test_pairs_and_matrices_are_what_arithmetic_by_hand_gives(metric, encoder):
    others = ["north", "west", "nowhere"]
    pairs = similarity(encoder, ["east"] * 3, others, metric)
    np.testing.assert_allclose(pairs, EAST[metric], rtol=1e-6, atol=1e-6)
    table = similarity(encoder, ["east", "west"], others, metric, matrix=True)
    assert table.shape == (2, 3)
    np.testing.assert_allclose(table[0], EAST[metric], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(table[1, 0], WEST_WITH_NORTH[metric], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("lists", "options", "message"),
    [
        (["east", "north"], {}, "one string; write"),
        ([["east", None], ["north", "west"]], {}, "NoneType at position 1"),
        ([["east"]], {}, "found 1 sentences.*matrix=True"),
        ([[], []], {}, "found 0 and 0 sentences"),
        ([["east"], []], {"matrix": True}, "found 1 and 0 sentences"),
        ([["east"], ["west"]], {"metric": "cosin"}, "metric: expected cosine, dot"),
    ],
)
def test_lists_that_cannot_be_compared_are_refused(lists, options, message, encoder):
    with pytest.raises(RequestError, match=message):
        similarity(encoder, *lists, **options)
