"""Decoding beside the slow way: every sequence of tags that there is, one by one."""

from itertools import pairwise, product

import numpy as np
import pytest
from numpy.typing import NDArray

from domain.biomedical.documents.tokens import Scheme, illegal_places
from domain.biomedical.documents.tokens import spans_of as spans_of_tags
from domain.biomedical.ner.decoding import (
    Chain,
    LabelSet,
    legal_chain,
    marginals,
    span_probabilities,
    spans_of,
    viterbi,
)

CASES: list[tuple[Scheme, list[str]]] = [("IOB2", ["A"]), ("IOB2", ["A", "B"]), ("IOBES", ["A"])]
Floats = NDArray[np.float64]


def drawn(labels: LabelSet, seed: int, learnt: bool) -> tuple[Floats, NDArray[np.int64], Chain]:
    """Emissions for sentences of 0 to 5 words, and a chain with or without learnt scores."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, 6 if len(labels) < 5 else 5, 7)
    emissions = generator.normal(scale=2.0, size=(int(lengths.sum()), len(labels)))
    chain = legal_chain(labels)
    if learnt:
        shapes = [(len(labels),), (len(labels), len(labels)), (len(labels),)]
        chain = chain.plus(*(generator.normal(size=shape) for shape in shapes))
    return emissions, lengths, chain


def all_sequences(emissions: Floats, chain: Chain, labels: LabelSet) -> dict[tuple[int, ...], float]:
    """Every legal sequence of a sentence and its score, legality as `domain.biomedical.documents.tokens` has it."""
    found = {}
    for tags in product(range(len(labels)), repeat=len(emissions)):
        if illegal_places([labels.tags[tag] for tag in tags], labels.scheme):
            continue
        score = (
            sum(emissions[place, tag] for place, tag in enumerate(tags)) + chain.start[tags[0]] + chain.end[tags[-1]]
        )
        found[tags] = float(score + sum(chain.follow[pair] for pair in pairwise(tags)))
    return found


def sentences(values: NDArray[np.generic], lengths: NDArray[np.int64]) -> list[NDArray[np.generic]]:
    return np.split(values, np.cumsum(lengths)[:-1])


@pytest.mark.parametrize("learnt", [False, True])
@pytest.mark.parametrize(("scheme", "types"), CASES)
def test_the_best_sequence_is_the_best_of_all_legal_ones(scheme: Scheme, types: list[str], learnt: bool) -> None:
    labels = LabelSet.of_types(types, scheme)
    for seed in range(5):
        emissions, lengths, chain = drawn(labels, seed, learnt)
        found = viterbi(emissions, lengths, chain)
        for scores, tags in zip(sentences(emissions, lengths), sentences(found, lengths), strict=True):
            if len(scores):
                known = all_sequences(scores, chain, labels)
                assert tuple(tags.tolist()) == max(known, key=lambda each: known[each])


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("learnt", [False, True])
@pytest.mark.parametrize(("scheme", "types"), CASES)
def test_probabilities_are_shares_of_all_legal_sequences(
    scheme: Scheme, types: list[str], learnt: bool, temperature: float
) -> None:
    labels = LabelSet.of_types(types, scheme)
    for seed in range(3):
        emissions, lengths, chain = drawn(labels, seed, learnt)
        tags = viterbi(emissions, lengths, chain)
        told = span_probabilities(emissions, lengths, chain, tags, labels, temperature)
        by_word = marginals(emissions / temperature, lengths, chain.divided(temperature)).probabilities
        expected: list[float] = []
        for scores, best, shares in zip(*(sentences(x, lengths) for x in (emissions, tags, by_word)), strict=True):
            if not len(scores):
                continue
            known = all_sequences(scores, chain, labels)
            mass = {each: np.exp(score / temperature) for each, score in known.items()}
            whole = sum(mass.values())
            names = {each: [labels.tags[tag] for tag in each] for each in mass}
            for span in spans_of_tags(names[tuple(best.tolist())], scheme):
                with_it = [each for each in mass if span in spans_of_tags(names[each], scheme)]
                expected.append(sum(mass[each] for each in with_it) / whole)
            for place, tag in product(range(len(scores)), range(len(labels))):
                share = sum(value for each, value in mass.items() if each[place] == tag) / whole
                assert shares[place, tag] == pytest.approx(share, abs=1e-12)
        np.testing.assert_allclose(told, expected, rtol=1e-9)


def test_sentences_decode_together_as_they_do_alone() -> None:
    labels = LabelSet.of_types(["A", "B"])
    emissions, lengths, chain = drawn(labels, 3, learnt=True)
    alone = [viterbi(each, np.array([len(each)]), chain) for each in sentences(emissions, lengths)]
    np.testing.assert_array_equal(viterbi(emissions, lengths, chain), np.concatenate(alone))


def test_entities_of_legal_tags_are_those_of_their_names() -> None:
    for scheme, types in CASES:
        labels = LabelSet.of_types(types, scheme)
        emissions, lengths, chain = drawn(labels, 11, learnt=False)
        tags = viterbi(emissions, lengths, chain)
        found = spans_of(tags, labels)
        begins = np.cumsum(lengths) - lengths
        wanted = [
            (begin + span.start, begin + span.end, labels.types.index(span.type))
            for begin, each in zip(begins, sentences(tags, lengths), strict=True)
            for span in spans_of_tags([labels.tags[tag] for tag in each], scheme)
        ]
        assert list(zip(*(column.tolist() for column in found), strict=True)) == wanted


def test_nothing_decodes_to_nothing() -> None:
    labels = LabelSet.of_types(["A"])
    none = np.zeros((0, 3)), np.zeros(0, np.int64), legal_chain(labels)
    tags = viterbi(*none)
    assert len(tags) == 0
    assert len(span_probabilities(*none, tags, labels)) == 0


def test_scores_far_apart_leave_finite_probabilities() -> None:
    labels = LabelSet.of_types(["A"], "IOBES")
    emissions = np.full((40, len(labels)), -2000.0)
    emissions[:20, labels.number["I-A"]] = emissions[20:, labels.number["O"]] = 2000.0
    found = marginals(emissions, np.array([40]), legal_chain(labels))
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1.0, rtol=1e-9)
