"""Fewer dimensions: axes as numpy's singular vectors give them, folded into the model's last linear map."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from bertrelay.encoder import Projection, SentenceEncoder
from bertrelay.errors import RequestError
from students.shrinking import principal_axes, projection_onto

MakeEncoder = Callable[..., SentenceEncoder]

SENTENCES = [
    f"{count} {animal} {verb} {place}"
    for count in ("one", "no")
    for animal in ("dog", "cat", "bird")
    for verb in ("runs", "sleeps", "sings")
    for place in ("here", "there")
]


def drawn(count: int = 200, dim: int = 12) -> np.ndarray:
    generator = np.random.default_rng(0)
    return (generator.normal(size=(count, dim)) * np.arange(dim, 0, -1) + 2).astype(np.float32)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def reduced(encoder: SentenceEncoder, dimensions: int) -> tuple[SentenceEncoder, np.ndarray]:
    """The encoder on the axes of its own vectors, and these axes."""
    axes = principal_axes(encoder.encode(SENTENCES, precision="fp32"), dimensions)
    projection = projection_onto(axes, encoder)
    return SentenceEncoder(
        encoder.backbone, encoder.tokenizer, projection=projection, normalize=encoder.normalize
    ).eval(), axes


def test_axes_are_the_first_right_singular_vectors_of_the_vectors_as_they_are() -> None:
    vectors = drawn()
    axes = principal_axes(vectors, 5)
    _, _, singular = np.linalg.svd(vectors.astype(np.float64))
    assert axes.shape == (12, 5)
    np.testing.assert_allclose(axes.T @ axes, np.eye(5), atol=1e-12)
    np.testing.assert_allclose(np.abs(np.sum(axes * singular[:5].T, axis=0)), 1, atol=1e-9)  # signs are free


def test_no_other_axes_keep_dot_products_nearer() -> None:
    vectors = drawn().astype(np.float64)

    def error(axes: np.ndarray) -> float:
        return float(np.linalg.norm(vectors @ vectors.T - vectors @ axes @ axes.T @ vectors.T))

    best = error(principal_axes(vectors.astype(np.float32), 4))
    centred = vectors - vectors.mean(axis=0)
    assert best < error(np.linalg.svd(centred)[2][:4].T)
    generator = np.random.default_rng(1)
    assert all(best < error(np.linalg.qr(generator.normal(size=(12, 4)))[0]) for _ in range(50))


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("bias", [None, False, True])
def test_a_model_gives_its_vectors_on_the_axes_whatever_it_ended_in(
    tiny_encoder: MakeEncoder, tmp_path: Path, normalize: bool, bias: bool | None
) -> None:
    own = None if bias is None else Projection(16, 20, bias=bias)
    encoder = tiny_encoder("bert", SENTENCES, projection=own, normalize=normalize)
    smaller, axes = reduced(encoder, 6)
    expected = encoder.encode(SENTENCES, precision="fp32") @ axes
    vectors = smaller.encode(SENTENCES, precision="fp32")
    np.testing.assert_allclose(vectors, unit(expected) if normalize else expected, atol=1e-5)
    smaller.save(tmp_path / "model")
    loaded = SentenceEncoder.load(tmp_path / "model")
    assert loaded.dim == 6
    np.testing.assert_array_equal(loaded.encode(SENTENCES, precision="fp32"), vectors)


def test_a_projection_that_bends_is_refused(tiny_encoder: MakeEncoder) -> None:
    encoder = tiny_encoder("bert", SENTENCES, projection=Projection(16, 16, activation=nn.Tanh()))
    with pytest.raises(RequestError, match="ends in a linear map, found Tanh"):
        projection_onto(np.eye(16)[:, :4], encoder)


@pytest.mark.parametrize(
    ("count", "dimensions", "told"),
    [
        (50, 12, "fewer than the model's 12, found 12"),
        (50, 99, "fewer than the model's 12, found 99"),
        (3, 4, "at least as many sentences in the corpus as dimensions, found 3 for 4"),
    ],
)
def test_too_many_dimensions_and_too_few_sentences_are_told(count: int, dimensions: int, told: str) -> None:
    with pytest.raises(RequestError, match=told):
        principal_axes(drawn(count), dimensions)
