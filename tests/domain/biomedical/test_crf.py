"""The CRF beside enumeration of all its sequences, in float64."""

from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from domain.biomedical.documents.tokens import Scheme, illegal_places
from domain.biomedical.ner.decoding import LabelSet, legal_chain, marginals
from domain.biomedical.ner.model import LinearChain

CASES: list[tuple[Scheme, list[str]]] = [("IOB2", ["A", "B"]), ("IOBES", ["A"])]


def random_crf(labels: LabelSet) -> LinearChain:
    torch.manual_seed(1)
    crf = LinearChain(labels).double()
    for weight in crf.parameters():
        torch.nn.init.normal_(weight)
    return crf


def by_enumeration(crf: LinearChain, labels: LabelSet, emissions: Tensor, tags: list[int]) -> Tensor:
    """log P of one sentence's tags: its score, and the sum over every legal sequence."""
    scores = {}
    for each in product(range(len(labels)), repeat=len(emissions)):
        if not illegal_places([labels.tags[tag] for tag in each], labels.scheme):
            emitted = torch.stack([emissions[place, tag] for place, tag in enumerate(each)]).sum()
            followed = sum(crf.follow[pair] for pair in pairwise(each))
            scores[each] = crf.start[each[0]] + emitted + followed + crf.end[each[-1]]
    return scores[tuple(tags)] - torch.logsumexp(torch.stack(list(scores.values())), dim=0)


@pytest.mark.parametrize(("scheme", "types"), CASES)
def test_likelihood_and_gradients_are_those_of_enumeration(scheme: Scheme, types: list[str]) -> None:
    labels = LabelSet.of_types(types, scheme)
    crf = random_crf(labels)
    names = ["B-A", "I-A", "O", "B-A"] if scheme == "IOB2" else ["B-A", "I-A", "E-A", "S-A"]
    gold = [labels.number[name] for name in names]
    lengths = [4, 1, 3]
    tags = [*gold, labels.number["O"], *[labels.number["O"]] * 3]
    emissions = torch.randn(8, len(labels), dtype=torch.float64, requires_grad=True)
    true = torch.ones(3, dtype=torch.bool)
    ours = crf.log_likelihood(emissions, torch.tensor(tags), torch.tensor(lengths), true, true)
    places = [slice(0, 4), slice(4, 5), slice(5, 8)]
    theirs = torch.stack([by_enumeration(crf, labels, emissions[place], tags[place]) for place in places])
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    weights = [emissions, *crf.parameters()]
    for one, other in zip(
        torch.autograd.grad(ours.sum(), weights), torch.autograd.grad(theirs.sum(), weights), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_the_gradient_of_an_emission_is_gold_minus_its_probability() -> None:
    """Two ways to the same figure: autograd through the partition, and forward–backward."""
    labels = LabelSet.of_types(["A", "B"])
    crf = random_crf(labels)
    emissions = torch.randn(30, len(labels), dtype=torch.float64, requires_grad=True)
    tags, lengths, true = torch.zeros(30, dtype=torch.int64), torch.tensor([18, 12]), torch.ones(2, dtype=torch.bool)
    crf.log_likelihood(emissions, tags, lengths, true, true).sum().backward()
    chain = legal_chain(labels).plus(*crf.scores())
    shares = marginals(emissions.detach().numpy(), lengths.numpy(), chain).probabilities
    assert emissions.grad is not None
    expected = torch.nn.functional.one_hot(tags, len(labels)) - torch.from_numpy(shares)
    torch.testing.assert_close(emissions.grad, expected, rtol=1e-8, atol=1e-8)


def test_a_stretch_from_the_middle_of_a_sentence_may_begin_inside_an_entity() -> None:
    labels = LabelSet.of_types(["A"])
    crf = LinearChain(labels).double()
    tags = torch.tensor([labels.number["I-A"], labels.number["O"]])
    emissions, no, yes = torch.zeros(2, 3, dtype=torch.float64), torch.tensor([False]), torch.tensor([True])
    inside = crf.log_likelihood(emissions, tags, torch.tensor([2]), opens=no, closes=yes)
    begins = crf.log_likelihood(emissions, tags, torch.tensor([2]), opens=yes, closes=yes)
    assert inside.item() == pytest.approx(-torch.tensor(8.0).log().item())  # 3 · 3 pairs but for O I
    assert begins.item() < -1000
