from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch

from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import METRICS, Metric
from students import similarity

KNOWN = {"east": (4.0, 3.0), "north": (3.0, 4.0), "west": (-4.0, 3.0), "nowhere": (0.0, 0.0)}
# Of east with north, with west and with nowhere, by hand.
EAST: dict[Metric, list[float]] = {
    "cosine": [24 / 25, -7 / 25, 0],
    "dot": [24, -7, 0],
    "euclidean": [-sqrt(2), -8, -5],
    "manhattan": [-2, -8, -7],
}
WEST_WITH_NORTH: dict[Metric, float] = {"cosine": 0, "dot": 0, "euclidean": -sqrt(50), "manhattan": -8}


@pytest.fixture
def encoder(tiny_encoder: Callable[..., SentenceEncoder], monkeypatch: pytest.MonkeyPatch) -> SentenceEncoder:
    """Gives each word its known vector, and zeros in the other dimensions."""
    made, words = tiny_encoder("bert", list(KNOWN)), list(KNOWN)
    vectors = torch.zeros(len(words), made.dim)
    vectors[:, :2] = torch.tensor(list(KNOWN.values()))
    monkeypatch.setattr(made, "tokenize", lambda texts: [[words.index(text)] for text in texts])
    monkeypatch.setattr(made, "forward", lambda ids, mask: vectors[ids[:, 0]])  # noqa: ARG005
    return made


@pytest.mark.parametrize("metric", METRICS)
def test_pairs_and_matrices_are_what_arithmetic_by_hand_gives(metric: Metric, encoder: SentenceEncoder) -> None:
    others = ["north", "west", "nowhere"]
    pairs = similarity(encoder, ["east"] * 3, others, metric)
    np.testing.assert_allclose(pairs, EAST[metric], rtol=1e-6, atol=1e-6)
    table = similarity(encoder, ["east", "west"], others, metric, matrix=True)
    assert table.shape == (2, 3)
    np.testing.assert_allclose(table[0], EAST[metric], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(table[1, 0], WEST_WITH_NORTH[metric], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("sides", "asked", "told"),
    [
        (["east", "north"], {}, "one string; write"),
        ([["east"], "north"], {"matrix": True}, "one string; write"),
        ([["east", None], ["north", "west"]], {}, "NoneType at position 1"),
        ([["east"]], {}, "found 1 sentences.*matrix=True"),
        ([["east"], ["north", "west"]], {}, "found 1 and 2 sentences"),
        ([[], []], {}, "found 0 and 0 sentences"),
        ([["east"], []], {"matrix": True}, "found 1 and 0 sentences"),
        ([["east"], ["west"]], {"metric": "cosin"}, "metric: expected cosine, dot"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    sides: list[Any], asked: dict[str, Any], told: str, encoder: SentenceEncoder
) -> None:
    with pytest.raises(RequestError, match=told):
        similarity(encoder, *sides, **asked)
