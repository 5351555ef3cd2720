from collections.abc import Callable

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from benchmarks.pairs import closest_pair, encode_in_batches
from bertrelay.encoder import SentenceEncoder

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
    monkeypatch.setattr("benchmarks.pairs.resolve_precision", lambda *_: "fp32")
    found = encode_in_batches(encoder, SENTENCES, by_length)
    np.testing.assert_allclose(found, encoder.encode(SENTENCES, precision="fp32"), atol=1e-5)


@pytest.mark.parametrize("pair", [(7, 31), (44, 45), (0, 49)])
def test_the_closest_pair_in_float64_is_that_of_scipy_wherever_it_stands(
    pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.pairs.ROWS_AT_ONCE", 7)
    vectors = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    vectors[pair[1]] = vectors[pair[0]] + np.float32(0.01)
    distances = pdist(vectors.astype(np.float64), "cosine")
    assert tuple(side[distances.argmin()] for side in np.triu_indices(50, 1)) == pair
    found = closest_pair(vectors, np.float64)
    assert found[:2] == pair
    assert found.cosine == pytest.approx(1 - distances.min(), abs=1e-12)
    assert closest_pair(vectors)[:2] == pair
