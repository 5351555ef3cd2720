"""Losses over parallel pairs, against loops in float64 and against sentence-transformers."""

import numpy as np
import pytest
import torch

from students.distill.losses import BatchPairs, pair_loss

losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")


def vectors(rows, seed, dim=8):
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def assert_equal(ours, theirs, *inputs):
    """Compares values and gradients of two losses."""
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-9)
    gradients = torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs)
    torch.testing.assert_close(*gradients)


def test_the_pairs_of_a_batch_by_hand():
    """The example of the docstring, and one text that translates both sentences."""
    pairs = BatchPairs.find(np.array([4, 9]), ["Open", "Shut"], np.array([4, 4, 9]), ["Offen", "Auf", "Zu"])
    assert pairs.english_rows.tolist() == [0, 0, 1]
    assert pairs.excluded_english.tolist() == [[True, False], [True, False], [False, True]]
    assert pairs.excluded_translations.tolist() == [[True, True, False], [True, True, False], [False, False, True]]
    pairs = BatchPairs.find(np.array([4, 9]), ["Open", "Shut"], np.array([4, 9]), ["Tür", "tür"])
    assert pairs.excluded_english.all() and pairs.excluded_translations.all()


def test_pairs_of_one_english_sentence_each_are_multiple_negatives_in_both_directions():
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
