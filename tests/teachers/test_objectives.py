"""Value and gradient of each objective against loops written by hand, in float64."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from teachers.objectives import Teacher, concatenate, cosine_loss, softmax_loss, triplet_loss
from teachers.settings import CONCATENATIONS

Floats = NDArray[np.float64]

PAPER = ["u,v", "|u-v|", "u*v", "|u-v|,u*v", "u,v,u*v", "u,v,|u-v|", "u,v,|u-v|,u*v"]


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def value_and_gradients(loss, *arrays):
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    value = loss(*tensors)
    value.backward()
    return value.item(), [tensor.grad.numpy() for tensor in tensors]


def assert_all_close(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


# Softmax


def softmax_by_hand(u, v, weight, bias, labels, parts):
    total, gradients = 0.0, [np.zeros_like(array) for array in (u, v, weight, bias)]
    for row, label in enumerate(labels):
        blocks = {"u": u[row], "v": v[row], "|u-v|": abs(u[row] - v[row]), "u*v": u[row] * v[row]}
        joined = np.concatenate([blocks[part] for part in parts])
        powers = np.exp(weight @ joined + bias)
        probabilities = powers / powers.sum()
        total -= np.log(probabilities[label])
        error = probabilities - np.eye(len(bias))[label]
        gradients[2] += np.outer(error, joined)
        gradients[3] += error
        for part, block in zip(parts, np.split(weight.T @ error, len(parts)), strict=True):
            sign = np.sign(u[row] - v[row])
            to_u = {"u": block, "v": 0, "|u-v|": sign * block, "u*v": v[row] * block}
            to_v = {"u": 0, "v": block, "|u-v|": -sign * block, "u*v": u[row] * block}
            gradients[0][row] += to_u[part]
            gradients[1][row] += to_v[part]
    return total, gradients


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("written", PAPER)
def test_softmax_agrees_with_the_formula_for_each_concatenation(written, classes):
    parts = written.split(",")
    arrays = [drawn(4, 3), drawn(4, 3, seed=1), drawn(classes, 3 * len(parts), seed=2), drawn(classes, seed=3)]
    labels = [0, classes - 1, 1, 0]

    def loss(u, v, weight, bias):
        return softmax_loss(nn.functional.linear(concatenate(u, v, parts), weight, bias), torch.tensor(labels))

    value, gradients = value_and_gradients(loss, *arrays)
    expected, expected_gradients = softmax_by_hand(*arrays, labels, parts)
    assert value == pytest.approx(expected, rel=1e-12)
    assert_all_close(gradients, expected_gradients)


def test_the_concatenations_are_the_seven_of_the_paper():
    assert sorted(",".join(parts) for parts in CONCATENATIONS) == sorted(PAPER)


def test_a_teacher_pairs_its_first_sentences_with_its_last_ones():
    given = torch.tensor(drawn(6, 3))  # three first sentences, then their partners
    head = nn.Linear(9, 2, dtype=torch.float64)
    teacher = Teacher(lambda vectors, _: vectors, head, 0.0, ["u", "v", "|u-v|"])  # type: ignore[arg-type]
    by_hand = [
        torch.cat([u, v, (u - v).abs()]) @ head.weight.T + head.bias for u, v in zip(*given.chunk(2), strict=True)
    ]
    torch.testing.assert_close(teacher(given, given), torch.stack(by_hand))


# Cosine


def test_cosine_agrees_with_the_formula():
    u, v, scores = drawn(5, 4), drawn(5, 4, seed=1), np.array([0.0, 0.25, 0.5, 1.0, 0.8])
    expected, to_u, to_v = 0.0, np.zeros_like(u), np.zeros_like(v)
    for row, score in enumerate(scores):
        long_u, long_v = np.sqrt(sum(u[row] ** 2)), np.sqrt(sum(v[row] ** 2))
        cosine = sum(u[row] * v[row]) / (long_u * long_v)
        expected += (cosine - score) ** 2
        to_u[row] = 2 * (cosine - score) * (v[row] / (long_u * long_v) - cosine * u[row] / long_u**2)
        to_v[row] = 2 * (cosine - score) * (u[row] / (long_u * long_v) - cosine * v[row] / long_v**2)
    value, gradients = value_and_gradients(lambda a, b: cosine_loss(a, b, torch.tensor(scores)), u, v)
    assert value == pytest.approx(expected, rel=1e-12)
    assert_all_close(gradients, [to_u, to_v])


# Triplets


def triplet_by_hand(a, p, n, margin):
    total, gradients = 0.0, [np.zeros_like(a) for _ in range(3)]
    for row in range(len(a)):
        near, far = np.sqrt(sum((a[row] - p[row]) ** 2)), np.sqrt(sum((a[row] - n[row]) ** 2))
        if near - far + margin <= 0:
            continue
        total += near - far + margin
        pull, push = (a[row] - p[row]) / near, (a[row] - n[row]) / far
        for gradient, part in zip(gradients, (pull - push, -pull, push), strict=True):
            gradient[row] = part
    return total, gradients


@pytest.mark.parametrize("margin", [1.0, 0.3])
def test_triplet_agrees_with_the_formula(margin):
    arrays = [drawn(12, 4, seed=seed) for seed in range(3)]
    value, gradients = value_and_gradients(lambda a, p, n: triplet_loss(a, p, n, margin), *arrays)
    expected, expected_gradients = triplet_by_hand(*arrays, margin)
    assert value == pytest.approx(expected, rel=1e-12)
    assert_all_close(gradients, expected_gradients)
    inside = np.any(expected_gradients[0] != 0, axis=1)
    assert 0 < inside.sum() < len(inside)  # both sides of the margin are in the sample


def test_a_positive_equal_to_its_anchor_has_a_finite_gradient():
    same, negative = drawn(3, 4), drawn(3, 4, seed=1) * 0.01 + drawn(3, 4)
    value, gradients = value_and_gradients(lambda a, p, n: triplet_loss(a, p, n, 1.0), same, same.copy(), negative)
    assert value > 0
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients)
    assert np.all(gradients[1] == 0)  # of all subgradients the one that stays
