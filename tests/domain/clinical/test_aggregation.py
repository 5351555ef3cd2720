"""The formula of an admission's probability and the shares of its chunks, against sums written out by hand."""

import numpy as np
import pytest

from domain.clinical.aggregation import CHOICES_OF_C, aggregate, choose_c, contributions

BY_HAND = {
    "max_and_mean": lambda p, c: (max(p) + (sum(p) / len(p)) * (len(p) / c)) / (1 + len(p) / c),  # as in the paper
    "max": lambda p, _: max(p),
    "mean": lambda p, _: sum(p) / len(p),
}


def scattered(seed=0, admissions=60, largest=300):
    """Probabilities with ties, and the admission of each, in random order; some admissions have hundreds."""
    generator = np.random.default_rng(seed)
    sizes = generator.integers(1, largest, admissions)
    owners = generator.permutation(np.repeat(np.arange(admissions), sizes))
    return generator.integers(0, 20, len(owners)) / 19, owners


@pytest.mark.parametrize("aggregation", BY_HAND)
@pytest.mark.parametrize("c", [0.25, 2.0, 32.0])
def test_chunks_that_are_apart_give_the_formula_of_each_admission_and_shares_add_up_to_it(aggregation, c):
    probabilities, owners = scattered()
    expected = [BY_HAND[aggregation](probabilities[owners == owner].tolist(), c) for owner in range(60)]
    assert aggregate(probabilities, owners, 60, aggregation, c) == pytest.approx(expected)
    shares = contributions(probabilities, owners, 60, aggregation, c)
    assert np.bincount(owners, shares) == pytest.approx(expected)


def test_of_equal_chunks_the_first_is_the_largest():
    chunks, owners = np.array([0.4, 0.9, 0.9, 0.1, 0.1]), np.array([1, 1, 1, 0, 0])
    n, c = 3, 2.0
    weight, of_largest = (1 / c) / (1 + n / c), 1 / (1 + n / c)
    expected = [0.4 * weight, 0.9 * (weight + of_largest), 0.9 * weight]
    assert contributions(chunks, owners, 2)[:3] == pytest.approx(expected)


def test_an_admission_without_chunks_has_no_probability():
    probabilities = aggregate(np.array([0.5]), np.array([1]), 3)
    assert np.isnan(probabilities).tolist() == [True, False, True]
    assert np.isnan(aggregate(np.zeros(0), np.zeros(0, np.int64), 2)).all()


def test_c_is_the_one_that_scores_best_and_the_papers_where_none_does():
    probabilities, owners = scattered(4)
    expected = aggregate(probabilities, owners, 60, c=8.0)
    assert choose_c(lambda c: -float(np.abs(aggregate(probabilities, owners, 60, c=c) - expected).sum())) == 8.0
    assert choose_c(lambda _: None) == CHOICES_OF_C[0] == 2.0
