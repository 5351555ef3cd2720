"""Losses against loops in float64 and against sentence-transformers, and metrics by hand."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from teachers.model import concatenate
from teachers.objectives import (
    OBJECTIVES,
    DevItems,
    LossInputs,
    contrastive_loss,
    cosines,
    excluded_candidates,
    matryoshka,
    softmax_loss,
    triplet_loss,
)
from teachers.settings import CONCATENATIONS, TrainSettings

losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")

PAPER = ["u,v", "|u-v|", "u*v", "|u-v|,u*v", "u,v,u*v", "u,v,|u-v|", "u,v,|u-v|,u*v"]


def drawn(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def vectors(rows, seed, dim=8):
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def assert_equal(ours, theirs, *inputs):
    """Compares values and gradients of two losses."""
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-9)
    gradients = torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs)
    torch.testing.assert_close(*gradients)


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
    for a, p, n in zip(*(rows.numpy() for rows in triplets), strict=True):
        hinges.append(max(np.sqrt(sum((a - p) ** 2)) - np.sqrt(sum((a - n) ** 2)) + 0.3, 0))
    assert 0 in hinges and max(hinges) > 0  # the sample has triplets on either side of the margin
    assert triplet_loss(*triplets, 0.3).item() == pytest.approx(sum(hinges), rel=1e-12)


def test_a_positive_equal_to_its_anchor_has_a_finite_gradient():
    same, negative = drawn(3, 4), drawn(3, 4, seed=1) * 0.01 + drawn(3, 4)
    tensors = [rows.requires_grad_(True) for rows in (same, same.detach().clone(), negative)]
    value = triplet_loss(*tensors, 1.0)
    value.backward()
    assert value > 0
    assert all(bool(rows.grad.isfinite().all()) for rows in tensors)
    assert not tensors[1].grad.any()  # of all subgradients the one that stays


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


def test_neither_equal_anchors_nor_positives_nor_candidates_near_by_the_guide_are_negatives():
    """Four items by hand: a has two positives, b is a positive of another anchor, the guide is of two dimensions."""
    texts = [*"apnqmbrc"]
    items = ["apn", "aqm", "bra", "cbn"]
    sentences = np.array([[texts.index(letter) for letter in item] for item in items])
    candidates = ["p", "q", "r", "b", "n", "m", "a", "n"]
    excluded = {"a": {"p", "q", "a"}, "b": {"r", "b"}, "c": {"b"}}
    expected = [[text in excluded[anchor] for text in candidates] for anchor in "aabc"]
    assert excluded_candidates(sentences).tolist() == expected
    angles = {"a": 0, "p": 30, "n": 20, "q": 80, "m": 90, "b": 45, "r": 90, "c": 100}
    turned = np.radians([angles[text] for text in texts])
    guide = np.stack([np.cos(turned), np.sin(turned)], axis=1).astype(np.float32)
    to_positive = {"p": 30, "q": 80, "r": 45, "b": 55}  # from each anchor
    for row, (anchor, positive) in enumerate(zip("aabc", "pqrb", strict=True)):
        nearer = [abs(angles[text] - angles[anchor]) < to_positive[positive] - 1e-3 for text in candidates]
        assert excluded_candidates(sentences, guide)[row].tolist() == list(np.logical_or(nearer, expected[row]))


class DrawnVectors(torch.nn.Module):
    """A model of sentence-transformers whose vectors come with its input, by its name."""

    def __init__(self, name, tokenizer=None):
        super().__init__()
        self.name, self.tokenizer, self.max_seq_length = name, tokenizer, 24

    def get_embedding_dimension(self):
        return 8

    def forward(self, features):
        return {"sentence_embedding": features[self.name]}


def loss_of(objective, columns, labels, sentences=None, guide=None, dimensions=()):
    """Returns the loss of items whose vectors are `columns`, as the training computes it."""
    settings = TrainSettings.model_fields
    inputs = LossInputs(labels, settings["margin"].default, settings["temperature"].default, sentences, guide)
    if OBJECTIVES[objective].compares_batch:
        columns = columns[0], torch.cat(columns[1:])
    return matryoshka(OBJECTIVES[objective].loss(inputs), dimensions, *columns)


@pytest.mark.parametrize("width", [2, 3])
def test_contrastive_with_a_guide_is_gistembed(tiny_encoder, width):
    """Value and gradients, of the peer's loss between anchors and positives (and negatives) only."""
    sentences = np.arange(7 * width).reshape(7, width)
    guide = drawn(7 * width, 4, seed=5).float().numpy()
    guide /= np.linalg.norm(guide, axis=1, keepdims=True)
    columns = [vectors(7, seed) for seed in range(width)]
    ours = loss_of("contrastive", columns, torch.zeros(7), sentences, guide) / 7
    models = (DrawnVectors(name, tiny_encoder("bert", ["a b c"]).tokenizer) for name in ("trained", "guide"))
    peer = losses.GISTEmbedLoss(*models, temperature=0.05, contrast_anchors=False, contrast_positives=False)
    by_column = zip(columns, sentences.T, strict=True)
    features = [{"trained": column, "guide": torch.from_numpy(guide[rows])} for column, rows in by_column]
    assert_equal(ours, peer(features, None), *columns)
    assert excluded_candidates(sentences, guide).sum() > 7, "the guide excludes some"


PEERS = {
    "contrastive": ("MultipleNegativesRankingLoss", {"scale": 20}),
    "cosent": ("CoSENTLoss", {"scale": 20}),
    "angle": ("AnglELoss", {"scale": 20}),
    "cosine": ("CosineSimilarityLoss", {}),
}


@pytest.mark.promise(
    "Losses that compare the items of a batch have the values and gradients of sentence-transformers', over cut "
    "vectors those of its MatryoshkaLoss",
    about="exact",
)
@pytest.mark.parametrize("dimensions", [[], [2, 6]])
@pytest.mark.parametrize("objective", PEERS)
def test_an_objective_has_the_values_and_gradients_of_sentence_transformers(objective, dimensions):
    """Its losses are means over the batch, and its MatryoshkaLoss a sum over the dimensions."""
    columns = [vectors(6, seed) for seed in range(3 if objective == "contrastive" else 2)]
    sentences = np.arange(18).reshape(6, 3)[:, : len(columns)]
    labels = torch.tensor([0.125, 0.5, 0.5, 0.875, 0, 1], dtype=torch.float64)  # as float32 the same
    ours = loss_of(objective, columns, labels, sentences, dimensions=dimensions)
    name, options = PEERS[objective]
    model = DrawnVectors("vectors")
    loss = losses.MatryoshkaLoss(model, getattr(losses, name)(model, **options), [8, *dimensions])
    theirs = loss([{"vectors": column} for column in columns], labels) * 6 / (1 + len(dimensions))
    assert_equal(ours, theirs, *columns)


def test_matryoshka_is_the_mean_over_the_lengths_the_whole_one_once():
    first, second = vectors(4, 1), vectors(4, 2)
    ours = matryoshka(lambda u, v: (u * v).sum(), [5, 2], first, second)
    by_hand = sum((first[:, :length] * second[:, :length]).sum() for length in (2, 5, 8)) / 3
    assert_equal(ours, by_hand, first, second)
    assert_equal(matryoshka(lambda u: u.sum(), [8], first), first.sum(), first)


FIRST = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
SECOND = [[1.0, 0.1], [1.0, 0.2], [0.0, 2.0]]
THIRD = [[3.0, 0.0], [0.0, 1.1], [9.0, 9.0]]


@pytest.mark.parametrize(
    ("objective", "columns", "labels", "expected"),
    [
        ("softmax", [FIRST, SECOND], ["no", "no", "yes"], 2 / 3),
        ("cosine", [FIRST, SECOND], [0.9, 0.1, 0.5], 1.0),  # cosines .995, .196, .707
        ("cosent", [FIRST, SECOND], [0.5, 0.1, 0.9], 0.5),
        ("angle", [FIRST, SECOND], [0.1, 0.9, 0.5], -1.0),
        ("triplet", [FIRST, SECOND, THIRD], [None] * 3, 2 / 3),  # the negative of the second one is nearer
        ("contrastive", [FIRST, SECOND], [None] * 3, 1 / 3),  # (0, 2) is the nearest to (0, 1); (1, .2) to (1, 1)
    ],
)
def test_the_metric_of_each_objective_by_hand(objective, columns, labels, expected):
    dev = DevItems(np.array(columns, np.float32), labels, lambda first, _: ["no" for _ in first])
    assert OBJECTIVES[objective].measure(dev) == pytest.approx(expected)


def test_every_objective_is_a_choice_of_the_settings_that_describes_itself():
    described = TrainSettings.model_fields["objective"].description
    assert all(f"`{name}`: {objective.summary}" in described for name, objective in OBJECTIVES.items())
    assert set().union(*(objective.settings for objective in OBJECTIVES.values())) <= TrainSettings.model_fields.keys()
