"""The head with a hidden layer."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import nn

from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError
from bertrelay.model.pooling import linear_projection, projections_of
from students.distill import head as module
from students.distill.head import (
    HiddenHead,
    add_linear_map,
    fit_hidden_head,
    fit_kept_directions,
    fit_linear_head,
)
from students.distill.targets import targets_of

rng = np.random.default_rng(0)


def test_two_projections_are_the_sum_of_a_linear_and_a_hidden_part():
    head = HiddenHead(rng.normal(size=(3, 2)), rng.normal(size=2), 5)
    nn.init.normal_(head.outer.weight)
    head.eval()
    mean, scale, x = rng.normal(size=3), np.array([0.5, 2.0, 4.0]), rng.normal(size=(4, 3))
    projections = head.as_projections(torch.from_numpy(mean), torch.from_numpy(scale))
    with torch.no_grad():
        expected = head(torch.from_numpy((x - mean) / scale).float())
        assert torch.allclose(projections(torch.from_numpy(x).float()), expected, atol=1e-5)
    assert [part.linear.out_features for part in projections_of(projections)] == [5 + 2 * 3, 2]


@pytest.mark.parametrize("neurons", [0, 5])
def test_a_linear_map_is_added_to_either_head(neurons):
    weight, bias = torch.randn(2, 3), torch.randn(2)
    head = linear_projection(torch.randn(2, 3), torch.randn(2))
    if neurons:
        hidden = linear_projection(torch.randn(neurons, 3), torch.randn(neurons))
        hidden.activation = nn.GELU()
        head = nn.Sequential(hidden, linear_projection(torch.randn(2, neurons), torch.randn(2)))
    x = torch.randn(4, 3)
    with torch.no_grad():
        assert torch.allclose(add_linear_map(head, weight, bias)(x), head(x) + x @ weight.T + bias, atol=1e-5)


def test_a_head_of_the_base_is_refused():
    tanh = linear_projection(torch.randn(2, 3), torch.randn(2))
    tanh.activation = nn.Tanh()
    unbiased = linear_projection(torch.randn(2, 3), None)
    weight, bias, x = torch.randn(2, 3), torch.randn(2), torch.randn(4, 3)
    with pytest.raises(RequestError, match="keep_directions"):
        add_linear_map(tanh, weight, bias)
    with torch.no_grad():
        assert torch.allclose(add_linear_map(unbiased, weight, bias)(x), unbiased(x) + x @ weight.T + bias, atol=1e-5)


def test_the_map_that_keeps_all_directions_is_as_long_as_the_head(tiny_encoder, toy, tmp_path):
    corpus = toy.corpus(tmp_path)
    texts = corpus.texts(0, len(corpus))
    student = tiny_encoder("xlm-roberta", texts).with_parts(normalize=True)
    vectors = rng.normal(size=(len(corpus.english), 8)).astype(np.float32)
    targets = targets_of(vectors, corpus.weights_of(np.arange(len(vectors))), "teacher")
    lengths, head = [], torch.randn(8, student.pooled_dim)
    for factor in (1.0, 10.0):
        student.projection = linear_projection(factor * head, torch.zeros(8))
        weight, bias = fit_kept_directions(student, corpus, targets, ComputePrecision.FP32)
        lengths.append(float(weight.norm()))
        pooled = student.with_parts(projection=None, normalize=False).encode(texts, precision="fp32")
        fractions = corpus.weights_of(np.arange(corpus.taught)) / corpus.weights_of(np.arange(corpus.taught)).sum()
        centre = fractions @ pooled  # it is mapped to 0
        np.testing.assert_allclose(weight.numpy() @ centre + bias.numpy(), 0, atol=1e-3 * factor)
    assert lengths[1] == pytest.approx(10 * lengths[0], rel=1e-3)
    assert torch.linalg.matrix_rank(weight) == min(weight.shape)


def test_a_hidden_layer_fits_what_no_linear_map_does_and_is_loaded_by_sentence_transformers(
    tiny_encoder, toy, tmp_path, monkeypatch
):
    """The teacher's dimensions are squares of the base's, which no linear map gives."""
    monkeypatch.setattr(module, "PASSES", 150)
    corpus = toy.corpus(tmp_path)
    student = tiny_encoder("xlm-roberta", corpus.texts(0, len(corpus)))
    english = student.encode(corpus.texts(0, len(corpus.english)), precision="fp32")
    squares = ((english - english.mean(axis=0)) / english.std(axis=0)) ** 2
    targets = targets_of(squares.astype(np.float32), corpus.weights_of(np.arange(len(english))), "teacher")

    def error(projection):
        vectors = student.with_parts(projection=projection).encode(corpus.texts(0, len(english)), precision="fp32")
        return ((vectors - squares) ** 2).sum(axis=1).mean() / targets.variance

    hidden = fit_hidden_head(student, corpus, targets, 64, ComputePrecision.FP32, seed=1)
    assert error(hidden) < 0.5 < 0.8 * error(fit_linear_head(student, corpus, targets, is_pretrained=False))
    again = fit_hidden_head(student, corpus, targets, 64, ComputePrecision.FP32, seed=1)
    assert all(map(torch.equal, hidden.state_dict().values(), again.state_dict().values()))
    whole = student.with_parts(projection=hidden, normalize=True)
    whole.save(tmp_path / "model")
    texts = corpus.texts(0, 8)
    peer = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(texts)
    np.testing.assert_allclose(peer, whole.encode(texts, precision="fp32"), atol=1e-6)
