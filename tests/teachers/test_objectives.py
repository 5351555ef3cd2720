"""Objectives against loops written by hand, in float64; that of cosine is in test_train. Gradients are torch's own."""

import numpy as np
import pytest
import torch
from torch import nn

from teachers.objectives import concatenate, softmax_loss, triplet_loss
from teachers.settings import CONCATENATIONS

PAPER = ["u,v", "|u-v|", "u*v", "|u-v|,u*v", "u,v,u*v", "u,v,|u-v|", "u,v,|u-v|,u*v"]


def drawn(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


@pytest.mark.parametrize("written", PAPER)
def test_softmax_agrees_with_the_formula_for_each_concatenation(written):
    parts = written.split(",")
    u, v, weight, bias = drawn(4, 3), drawn(4, 3, seed=1), drawn(5, 3 * len(parts), seed=2), drawn(5, seed=3)
    labels = [0, 4, 1, 0]
    expected = 0.0
    for a, b, label in zip(u.numpy(), v.numpy(), labels, strict=True):
        blocks = {"u": a, "v": b, "|u-v|": abs(a - b), "u*v": a * b}
        powers = np.exp(weight.numpy() @ np.concatenate([blocks[part] for part in parts]) + bias.numpy())
        expected -= np.log(powers[label] / powers.sum())
    loss = softmax_loss(nn.functional.linear(concatenate(u, v, parts), weight, bias), torch.tensor(labels))
    assert loss.item() == pytest.approx(expected, rel=1e-12)


def test_the_concatenations_are_the_seven_of_the_paper():
    assert sorted(",".join(parts) for parts in CONCATENATIONS) == sorted(PAPER)


def test_triplet_agrees_with_the_formula():
    triplets = [drawn(12, 4, seed=seed) for seed in range(3)]
    hinges = []
    for a, p, n in zip(*(each.numpy() for each in triplets), strict=True):
        hinges.append(max(np.sqrt(sum((a - p) ** 2)) - np.sqrt(sum((a - n) ** 2)) + 0.3, 0))
    assert 0 in hinges and max(hinges) > 0  # both sides of the margin are in the sample
    assert triplet_loss(*triplets, 0.3).item() == pytest.approx(sum(hinges), rel=1e-12)


def test_a_positive_equal_to_its_anchor_has_a_finite_gradient():
    same, negative = drawn(3, 4), drawn(3, 4, seed=1) * 0.01 + drawn(3, 4)
    tensors = [each.requires_grad_(True) for each in (same, same.detach().clone(), negative)]
    value = triplet_loss(*tensors, 1.0)
    value.backward()
    assert value > 0
    assert all(bool(each.grad.isfinite().all()) for each in tensors)
    assert not tensors[1].grad.any()  # of all subgradients the one that stays
