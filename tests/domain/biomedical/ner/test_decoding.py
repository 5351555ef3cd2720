"""Decoding and the CRF against an enumeration of all tag sequences."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from domain.biomedical.documents.tags import illegal_positions
from domain.biomedical.documents.tags import spans_of as spans_of_tags
from domain.biomedical.ner.decoding import Chain, LabelSet, marginals, span_probabilities, viterbi
from domain.biomedical.ner.model import LinearChain, WordSequences

CASES = [("IOB2", ["A"]), ("IOB2", ["A", "B"]), ("IOBES", ["A"])]
Floats = NDArray[np.float64]


def drawn(labels, seed, trained):
    """Emissions for sentences of 0 to 5 words, and a chain with or without trained scores."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, 6 if len(labels) < 5 else 5, 7)
    emissions = generator.normal(scale=2.0, size=(int(lengths.sum()), len(labels)))
    chain = labels.legal_chain
    if trained:
        shapes = [(len(labels),), (len(labels), len(labels)), (len(labels),)]
        chain = Chain(*(scores + generator.normal(size=shape) for scores, shape in zip(chain, shapes, strict=True)))
    return emissions, lengths, chain


def legal_sequences(words, labels):
    """Every legal sequence of a sentence, legality as `domain.biomedical.documents.tags` has it."""
    sequences = product(range(len(labels)), repeat=words)
    return [tags for tags in sequences if not illegal_positions([labels.tags[tag] for tag in tags], labels.scheme)]


def all_sequences(emissions, chain, labels):
    """The score of every legal sequence of a sentence. chain: of numbers or of tensors."""
    return {
        tags: sum(emissions[word, tag] for word, tag in enumerate(tags))
        + (chain.start[tags[0]] + chain.end[tags[-1]] + sum(chain.follow[pair] for pair in pairwise(tags)))
        for tags in legal_sequences(len(emissions), labels)
    }


def sentences(values, lengths):
    return np.split(values, np.cumsum(lengths)[:-1])


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(("scheme", "types"), CASES)
def test_tags_are_the_best_and_probabilities_shares_of_all_legal_sequences(scheme, types, trained, temperature):
    labels = LabelSet.of_types(types, scheme)
    for seed in range(3):
        emissions, lengths, chain = drawn(labels, seed, trained)
        tags = viterbi(emissions, lengths, chain)
        probabilities = span_probabilities(emissions, lengths, chain, tags, labels, temperature)
        divided = Chain(*(scores / temperature for scores in chain))
        forward, backward, _ = marginals(emissions / temperature, lengths, divided)
        expected = []
        for scores, best, shares in zip(
            *(sentences(x, lengths) for x in (emissions, tags, forward * backward)), strict=True
        ):
            if not len(scores):
                continue
            scored = all_sequences(scores, chain, labels)
            assert tuple(best.tolist()) == max(scored, key=lambda sequence: scored[sequence])
            mass = {sequence: np.exp(score / temperature) for sequence, score in scored.items()}
            whole = sum(mass.values())
            names = {sequence: [labels.tags[tag] for tag in sequence] for sequence in mass}
            for span in spans_of_tags(names[tuple(best.tolist())], scheme):
                with_it = [sequence for sequence in mass if span in spans_of_tags(names[sequence], scheme)]
                expected.append(sum(mass[sequence] for sequence in with_it) / whole)
            for word, tag in product(range(len(scores)), range(len(labels))):
                share = sum(value for sequence, value in mass.items() if sequence[word] == tag) / whole
                assert shares[word, tag] == pytest.approx(share, abs=1e-12)
        np.testing.assert_allclose(probabilities, expected, rtol=1e-9)


def test_scores_far_apart_leave_finite_probabilities():
    labels = LabelSet.of_types(["A"], "IOBES")
    emissions = np.full((40, len(labels)), -2000.0)
    emissions[:20, labels.number["I-A"]] = emissions[20:, labels.number["O"]] = 2000.0
    forward, backward, _ = marginals(emissions, np.array([40]), labels.legal_chain)
    np.testing.assert_allclose((forward * backward).sum(axis=1), 1.0, rtol=1e-9)


@pytest.mark.parametrize(("scheme", "types"), CASES[1:])
def test_likelihood_and_gradients_of_a_crf_are_those_of_enumeration(scheme, types):
    labels = LabelSet.of_types(types, scheme)
    torch.manual_seed(1)
    crf = LinearChain(labels).double()
    for weight in crf.parameters():
        torch.nn.init.normal_(weight)
    names = ["B-A", "I-A", "O", "B-A"] if scheme == "IOB2" else ["B-A", "I-A", "E-A", "S-A"]
    tags = [labels.number[name] for name in [*names, "O", "O", "O", "O"]]
    emissions = torch.randn(8, len(labels), dtype=torch.float64, requires_grad=True)
    true = np.ones(4, bool)
    ours = crf.log_likelihood(emissions, torch.tensor(tags), WordSequences.of(np.array([4, 1, 0, 3]), true, true))
    theirs = []
    for words in (slice(0, 4), slice(4, 5), slice(5, 8)):
        scores = all_sequences(emissions[words], crf, labels)
        theirs.append(scores[tuple(tags[words])] - torch.logsumexp(torch.stack(list(scores.values())), dim=0))
    theirs = torch.stack(theirs)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    gradients = (
        torch.autograd.grad(likelihoods.sum(), [emissions, *crf.parameters()]) for likelihoods in (ours, theirs)
    )
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_partial_labels_have_the_likelihood_of_all_sequences_that_agree_with_them():
    labels = LabelSet.of_types(["A", "B"])  # O, B-A, I-A, B-B, I-B
    torch.manual_seed(2)
    crf = LinearChain(labels).double()
    for weight in crf.parameters():
        torch.nn.init.normal_(weight)
    emissions = torch.randn(4, len(labels), dtype=torch.float64, requires_grad=True)
    tags = torch.tensor([0, 1, 2, 0])  # of a corpus that annotates A alone
    possible = torch.tensor([[1, 0, 0, 1, 1], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [1, 0, 0, 1, 1]], dtype=torch.bool)
    sequences = WordSequences.of(np.array([4]), np.ones(1, bool), np.ones(1, bool))
    (ours,) = crf.log_likelihood(emissions, tags, sequences, possible)
    scored = all_sequences(emissions, crf, labels)
    without_b = {sequence: tuple(0 if tag > 2 else tag for tag in sequence) for sequence in scored}
    agreeing = [scored[sequence] for sequence, of_a in without_b.items() if of_a == (0, 1, 2, 0)]
    assert len(agreeing) == 4  # O or B-B before, O or B-B after: no entity begins with I
    theirs = torch.logsumexp(torch.stack(agreeing), 0) - torch.logsumexp(torch.stack(list(scored.values())), 0)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    ours, theirs = (torch.autograd.grad(value, [emissions, *crf.parameters()]) for value in (ours, theirs))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_words_from_the_middle_of_a_sentence_may_begin_inside_an_entity():
    labels = LabelSet.of_types(["A"])
    crf = LinearChain(labels).double()
    tags = torch.tensor([labels.number["I-A"], labels.number["O"]])
    emissions, no, yes = torch.zeros(2, 3, dtype=torch.float64), np.array([False]), np.array([True])
    inside = crf.log_likelihood(emissions, tags, WordSequences.of(np.array([2]), opens=no, closes=yes))
    begins = crf.log_likelihood(emissions, tags, WordSequences.of(np.array([2]), opens=yes, closes=yes))
    assert inside.item() == pytest.approx(-torch.tensor(8.0).log().item())  # 3 · 3 pairs but for O I
    assert begins.item() < -1000
