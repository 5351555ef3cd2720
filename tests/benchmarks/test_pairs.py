from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.pairs import encode_in_batches, found_by_scipy
from bertrelay.encoder import SentenceEncoder
from bertrelay.similarity import closest_pair

SENTENCES = [
    f"{word} {other}" for word in ("a dog", "two cats run", "fish") for other in ("here", "there now", "again")
]


@pytest.fixture(scope="module")
def encoder(tiny_encoder: Callable[..., SentenceEncoder]) -> SentenceEncoder:
    return tiny_encoder("bert", SENTENCES)


@pytest.mark.parametrize("by_length", [True, False])
def test_batches_give_the_vectors_of_encode(
    encoder: SentenceEncoder, by_length: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.pairs.BATCH", 4)
    monkeypatch.setattr("benchmarks.pairs.resolve_precision", lambda _: "fp32")
    found = encode_in_batches(encoder, SENTENCES, by_length)
    np.testing.assert_allclose(found, encoder.encode(SENTENCES, precision="fp32"), atol=1e-5)


def test_scipy_finds_the_same_closest_pair() -> None:
    vectors = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    vectors[31] = vectors[7] + np.float32(0.01)
    found = found_by_scipy(vectors, closest_pair(vectors), seed=0)
    assert found[:2] == (7, 31)
    assert found.cosine == pytest.approx(closest_pair(vectors).cosine, abs=1e-12)
