"""Losses that compare the items of a batch, against loops in float64 and against sentence-transformers."""

import math

import numpy as np
import pytest
import torch

from bertrelay.training.in_batch import (
    BatchPairs,
    angle_similarity,
    contrastive_loss,
    cosent_loss,
    cosines,
    matryoshka,
    pair_loss,
)

losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")


def vectors(rows, seed, dim=8):
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def assert_equal(ours, theirs, *inputs):
    """Values and gradients of two losses."""
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-9)
    for own, other in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs), strict=True):
        torch.testing.assert_close(own, other)


def test_contrastive_is_multiple_negatives_ranking():
    anchors, positives, negatives = (vectors(6, seed) for seed in range(3))
    scores = cosines(anchors, torch.cat([positives, negatives])) * 20
    ours = contrastive_loss(scores, torch.arange(6), torch.zeros(6, 12, dtype=torch.bool)) / 6
    loss = losses.MultipleNegativesRankingLoss(None, scale=20)
    theirs = loss.compute_loss_from_embeddings([anchors, positives, negatives], None)
    assert_equal(ours, theirs, anchors, positives, negatives)


def test_what_is_excluded_is_no_negative():
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


def test_pairs_of_one_english_sentence_each_are_multiple_negatives_both_ways():
    english, other = vectors(6, 1), vectors(6, 2)
    pairs = BatchPairs.find(np.arange(6)[::-1], list("uvwxyz"), np.arange(6), list("abcdef"))
    ours = pair_loss(english.flip(0), other, pairs, 0.05) / 6
    loss = losses.MultipleNegativesRankingLoss(
        None, scale=20, directions=("query_to_doc", "doc_to_query"), partition_mode="per_direction"
    )
    assert_equal(ours, loss.compute_loss_from_embeddings([other, english], None), english, other)


def test_neither_other_translations_nor_equal_texts_are_negatives():
    """Five English sentences, two of one text, with nine translations, three of one text; without case; by loops."""
    english, other, temperature = vectors(5, 3), vectors(9, 4), 0.1
    numbers, of = np.array([7, 3, 9, 1, 4]), np.array([3, 3, 7, 9, 1, 4, 4, 4, 9])
    sentences, texts = ["Open", "b", "c", "open", "e"], ["a", "b", "c", "A", "d", "a", "f", "g", "h"]
    rows = [numbers.tolist().index(number) for number in of]
    same = [{k for k in range(5) if sentences[k].lower() == each.lower()} for each in sentences]
    fits = [set().union(*(same[rows[j]] for j in range(9) if texts[j].lower() == text.lower())) for text in texts]
    scores = [[torch.cosine_similarity(a, b, dim=0) / temperature for b in english] for a in other]
    total = torch.zeros((), dtype=torch.float64)
    for i, own in enumerate(rows):
        to_english = [scores[i][e] for e in range(5) if e == own or e not in fits[i]]
        back = [scores[j][own] for j in range(9) if j == i or own not in fits[j]]
        total = total + sum(torch.logsumexp(torch.stack(part), 0) - scores[i][own] for part in (to_english, back))
    assert_equal(
        pair_loss(english, other, BatchPairs.find(numbers, sentences, of, texts), temperature),
        total / 2,
        english,
        other,
    )
