"""Vectors on the principal axes of a model, against numpy's SVD and float64."""

import numpy as np
import pytest
from torch import nn

from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.pooling import Projection
from students.compress.dimensions import cosines_to_original, principal_axes, projection_onto


def test_cosines_are_those_after_the_axes_have_led_back():
    before = np.array([[3.0, 4.0], [0.0, 2.0], [5.0, 0.0]], np.float32)
    along_first = np.array([[1.0], [0.0]])
    assert cosines_to_original(before, before, None) == {
        "cosine_mean": pytest.approx(1),
        "cosine_min": pytest.approx(1),
    }
    after = before @ along_first.astype(np.float32)
    metrics = cosines_to_original(before, after, along_first)
    assert metrics["cosine_min"] == 0
    assert metrics["cosine_mean"] == pytest.approx((3 / 5 + 0 + 1) / 3)


SENTENCES = [
    f"{count} {animal} {verb} {where}"
    for count in ("one", "no")
    for animal in ("dog", "cat", "bird")
    for verb in ("runs", "sleeps", "sings")
    for where in ("here", "there")
]


def drawn(count=200, dim=12):
    generator = np.random.default_rng(0)
    return (generator.normal(size=(count, dim)) * np.arange(dim, 0, -1) + 2).astype(np.float32)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def reduced(encoder, dimensions):
    """The encoder on the axes of its vectors, and these axes."""
    axes = principal_axes(encoder.encode(SENTENCES, precision="fp32"), dimensions)
    projection = projection_onto(axes, encoder)
    return SentenceEncoder(
        encoder.backbone, encoder.tokenizer, projection=projection, normalize=encoder.normalize
    ).eval(), axes


def test_axes_are_the_first_right_singular_vectors():
    vectors = drawn()
    axes = principal_axes(vectors, 5)
    _, _, singular = np.linalg.svd(vectors.astype(np.float64))
    assert axes.shape == (12, 5)
    np.testing.assert_allclose(axes.T @ axes, np.eye(5), atol=1e-12)
    np.testing.assert_allclose(np.abs(np.sum(axes * singular[:5].T, axis=0)), 1, atol=1e-9)  # signs are free


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("bias", [None, False, True])
def test_a_model_gives_its_vectors_on_the_axes_with_any_last_module(tiny_encoder, tmp_path, normalize, bias):
    projection = None if bias is None else Projection(16, 20, bias=bias)
    encoder = tiny_encoder("bert", SENTENCES, projection=projection, normalize=normalize)
    smaller, axes = reduced(encoder, 6)
    expected = encoder.encode(SENTENCES, precision="fp32") @ axes
    vectors = smaller.encode(SENTENCES, precision="fp32")
    np.testing.assert_allclose(vectors, unit(expected) if normalize else expected, atol=1e-5)
    smaller.save(tmp_path / "model")
    loaded = SentenceEncoder.load(tmp_path / "model")
    assert loaded.dim == 6
    np.testing.assert_array_equal(loaded.encode(SENTENCES, precision="fp32"), vectors)


@pytest.mark.parametrize("activation", [nn.Identity(), nn.Tanh()])
def test_axes_follow_several_projections_and_a_nonlinear_one_too(tiny_encoder, tmp_path, activation):
    last = Projection(24, 12, True, activation, normalized=True)
    projection = nn.Sequential(Projection(16, 24, activation=nn.ReLU()), last)
    encoder = tiny_encoder("bert", SENTENCES, projection=projection, normalize=True)
    smaller, axes = reduced(encoder, 6)
    expected = unit(encoder.encode(SENTENCES, precision="fp32") @ axes)
    np.testing.assert_allclose(smaller.encode(SENTENCES, precision="fp32"), expected, atol=1e-5)
    assert len(smaller.projection) == (2 if isinstance(activation, nn.Identity) else 3)
    smaller.save(tmp_path)
    np.testing.assert_allclose(SentenceEncoder.load(tmp_path).encode(SENTENCES, precision="fp32"), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("count", "dimensions", "message"),
    [
        (50, 12, "fewer than the model's 12, found 12"),
        (3, 4, "at least as many sentences in the corpus as dimensions, found 3 for 4"),
    ],
)
def test_too_many_dimensions_and_too_few_sentences_are_reported(count, dimensions, message):
    with pytest.raises(RequestError, match=message):
        principal_axes(drawn(count), dimensions)
