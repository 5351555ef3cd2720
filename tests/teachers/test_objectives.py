"""Losses against loops in float64 and against sentence-transformers; that of cosine is in test_train."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from teachers.model import concatenate
from teachers.objectives import (
    angle_similarity,
    contrastive_loss,
    cosent_loss,
    cosines,
    matryoshka,
    softmax_loss,
    triplet_loss,
)
from teachers.settings import CONCATENATIONS

losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")

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


def vectors(rows, seed, dim=8):
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def assert_equal(ours, theirs, *inputs):
    """Compares values and gradients of two losses."""
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-9)
    gradients = torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs)
    torch.testing.assert_close(*gradients)


def test_contrastive_is_multiple_negatives_ranking():
    anchors, positives, negatives = (vectors(6, seed) for seed in range(3))
    scores = cosines(anchors, torch.cat([positives, negatives])) * 20
    ours = contrastive_loss(scores, torch.arange(6), torch.zeros(6, 12, dtype=torch.bool)) / 6
    loss = losses.MultipleNegativesRankingLoss(None, scale=20)
    theirs = loss.compute_loss_from_embeddings([anchors, positives, negatives], None)
    assert_equal(ours, theirs, anchors, positives, negatives)


def test_an_excluded_candidate_is_no_negative():
    scores = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    excluded = torch.tensor([[True, False, True]])  # the positive one stays
    assert float(contrastive_loss(scores, torch.tensor([0]), excluded)) == pytest.approx(math.log(1 + math.e))


@pytest.mark.parametrize(("name", "similarity"), [("CoSENTLoss", "cosine"), ("AnglELoss", "angle")])
def test_ranking_is_cosent_and_angle(name, similarity):
    first, second = vectors(7, 1), vectors(7, 2)
    gold = torch.tensor([0.1, 0.5, 0.5, 0.9, 0.0, 1.0, 0.3], dtype=torch.float64)
    alike = angle_similarity(first, second) if similarity == "angle" else torch.cosine_similarity(first, second)
    theirs = getattr(losses, name)(None, scale=20).compute_loss_from_embeddings([first, second], gold)
    assert_equal(cosent_loss(alike * 20, gold) / 7, theirs, first, second)


def test_matryoshka_is_the_mean_over_the_lengths_the_whole_one_once():
    first, second = vectors(4, 1), vectors(4, 2)
    ours = matryoshka(lambda u, v: (u * v).sum(), [5, 2], first, second)
    by_hand = sum((first[:, :length] * second[:, :length]).sum() for length in (2, 5, 8)) / 3
    assert_equal(ours, by_hand, first, second)
    assert_equal(matryoshka(lambda u: u.sum(), [8], first), first.sum(), first)
