"""The head with a hidden layer."""

from dataclasses import replace

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
    Regression,
    Sample,
    add_linear_map,
    even_vectors,
    fit_hidden_head,
    fit_linear_head,
    heads_with_kept_directions,
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


def test_evened_vectors_differ_less_in_variance_and_keep_the_teachers_mean_and_scale(monkeypatch):
    """Variances 1 and 1/1024 become, up to the scale, 1 and (1/1024)^0.8 = 1/256."""
    pooled = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], np.float32)
    teacher = (pooled * [3.0, 0.75] + [5.0, 7.0]).astype(np.float32)
    head = linear_projection(torch.diag(torch.tensor([1.0, 1 / 32])), torch.tensor([2.0, 4.0]))
    targets = targets_of(teacher, np.ones(4, np.int32), "teacher")
    monkeypatch.setattr(module, "FLOOR", 0.0)
    evened = even_vectors(head, Sample(np.full(4, 0.25), pooled, np.arange(4), targets))
    with torch.no_grad():
        vectors = evened(torch.from_numpy(pooled)).numpy()
    # s minimises |s (1, 1/16) - (3, 3/4)|²
    scale = (3 + 0.75 / 16) / (1 + 1 / 256)
    np.testing.assert_allclose(vectors, pooled * [scale, scale / 16] + [5.0, 7.0], rtol=1e-5)


@pytest.mark.parametrize("neurons", [0, 5])
def test_heads_with_a_map_are_the_evened_sum_of_both(neurons, tiny_encoder, toy, tmp_path):
    corpus = toy.corpus(tmp_path)
    texts = corpus.texts(0, len(corpus))
    student = tiny_encoder("xlm-roberta", texts).with_parts(normalize=True)
    vectors = rng.normal(size=(len(corpus.english), 8)).astype(np.float32)
    targets = targets_of(vectors, corpus.weights_of(np.arange(len(vectors))), "teacher")
    head = torch.randn(8, student.pooled_dim)
    student.projection = linear_projection(head, torch.zeros(8))
    if neurons:
        hidden = linear_projection(torch.randn(neurons, student.pooled_dim), torch.zeros(neurons))
        hidden.activation = nn.GELU()
        student.projection = nn.Sequential(hidden, linear_projection(torch.randn(8, neurons), torch.zeros(8)))
    sample = Sample.encode(student, corpus, targets, corpus.taught, ComputePrecision.FP32)
    heads = heads_with_kept_directions(student, corpus, targets, ComputePrecision.FP32, [0.5, 2.0])
    pooled, fit = torch.from_numpy(sample.pooled), Regression.fit(sample, module.RIDGE)
    with torch.no_grad():
        trained = student.projection(pooled)
        length = float(trained.norm(dim=1).mean())
        for factor, with_map in heads.items():
            added = factor * length * torch.from_numpy((sample.pooled - fit.pooled_mean) @ fit.softened).float()
            sums = torch.cat([trained, added], dim=1)
            both = linear_projection(torch.cat([torch.eye(8), torch.eye(8)], dim=1), torch.zeros(8))
            expected = even_vectors(both, replace(sample, pooled=sums.numpy()))
            assert torch.allclose(with_map(pooled), expected(sums), atol=1e-3)


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
