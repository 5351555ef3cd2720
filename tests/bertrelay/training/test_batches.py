"""The batch plan: every item once, within its budget, of like lengths, and the same for any number of processes."""

import numpy as np
import pytest

from bertrelay.training.batches import Budget, micro_batches, plan_epoch, share_of

LENGTHS = np.random.default_rng(0).integers(3, 60, 5000)
BUDGETS = [Budget(tokens=600), Budget(items=16), Budget(tokens=1), Budget(items=1), Budget(tokens=10**9)]


def padded(batches):
    return sum(len(batch) * LENGTHS[batch].max() for batch in batches)


@pytest.mark.parametrize("budget", BUDGETS)
def test_every_item_is_in_one_batch_of_an_epoch(budget):
    plan = plan_epoch(LENGTHS, 1, 0, budget)
    assert sorted(np.concatenate(plan)) == list(range(5000))
    assert all(len(batch) for batch in plan)


def test_a_batch_holds_at_most_the_budget_and_one_item_more():
    for batch in plan_epoch(LENGTHS, 1, 0, Budget(tokens=600)):
        lengths = LENGTHS[batch]
        assert lengths.sum() - lengths[-1] < 600


def test_batches_of_items_hold_as_many_as_asked_but_for_the_last_one():
    sizes = sorted(len(batch) for batch in plan_epoch(LENGTHS, 1, 0, Budget(items=16)))
    assert sizes == [5000 % 16] + [16] * (5000 // 16)


def test_batches_are_near_to_their_budget():
    tokens = [LENGTHS[batch].sum() for batch in plan_epoch(LENGTHS, 1, 0, Budget(tokens=600))]
    assert np.mean(tokens) == pytest.approx(600, rel=0.01)


def test_items_longer_than_the_budget_come_one_by_one():
    plan = plan_epoch(np.array([900, 800, 700]), 0, 0, Budget(tokens=100))
    assert sorted(map(list, plan)) == [[0], [1], [2]]


def test_a_plan_is_a_function_of_seed_and_epoch():
    def order(seed, epoch):
        return [batch.tolist() for batch in plan_epoch(LENGTHS, seed, epoch, Budget(tokens=600))]

    assert order(1, 0) == order(1, 0)
    together = [{tuple(sorted(batch)) for batch in order(*which)} for which in ((1, 0), (1, 1), (2, 0), (0, 1))]
    for first in range(4):
        for second in range(first):
            assert not together[first] & together[second]  # other batches, not only another order of them


def test_planning_changes_no_length():
    lengths = LENGTHS.copy()
    plan_epoch(lengths, 0, 0, Budget(tokens=600))
    list(micro_batches(np.arange(50), lengths, lengths, 100))
    assert np.array_equal(lengths, LENGTHS)


def test_grouping_by_length_pads_far_less_than_chance_does():
    grouped = padded(plan_epoch(LENGTHS, 1, 0, Budget(tokens=600)))
    at_random = padded(np.array_split(np.random.default_rng(1).permutation(5000), LENGTHS.sum() // 600))
    total = LENGTHS.sum()
    assert 1 - total / at_random > 0.4
    assert 1 - total / grouped < 0.05


def test_batches_of_all_lengths_come_at_any_time():
    """The steps are not sorted by length: the first half of an epoch learns from as long items as the second."""
    plan = plan_epoch(LENGTHS, 1, 0, Budget(tokens=600))
    means = [LENGTHS[batch].mean() for batch in plan]
    half = len(means) // 2
    assert np.mean(means[:half]) == pytest.approx(np.mean(means[half:]), rel=0.2)


@pytest.mark.parametrize("processes", [1, 2, 3, 7, 100])
def test_the_shares_of_all_processes_are_the_batch(processes):
    batch = np.arange(41)
    shares = [share_of(batch, rank, processes) for rank in range(processes)]
    assert sorted(np.concatenate(shares)) == list(range(41))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("device_tokens", [1, 30, 100, 1000, 10**9])
def test_micro_batches_are_the_items_within_the_memory_given(device_tokens):
    items = np.random.default_rng(3).permutation(5000)[:200]
    pieces = list(micro_batches(items, LENGTHS, LENGTHS, device_tokens))
    assert sorted(np.concatenate(pieces)) == sorted(items)
    for piece in pieces:
        assert len(piece) == 1 or len(piece) * LENGTHS[piece].max() <= device_tokens
    if device_tokens == 10**9:
        assert len(pieces) == 1


@pytest.mark.parametrize("device_tokens", [1, 30, 100, 1000, 10**9])
def test_micro_batches_of_several_texts_an_item_keep_within_memory_however_uneven_the_texts(device_tokens):
    texts = np.random.default_rng(4).integers(1, 40, (60, 3))  # (items, texts)
    pieces = list(micro_batches(np.arange(60), texts.sum(axis=1), 3 * texts.max(axis=1), device_tokens))
    assert sorted(np.concatenate(pieces)) == list(range(60))
    for piece in pieces:
        assert len(piece) == 1 or texts[piece].size * texts[piece].max() <= device_tokens


@pytest.mark.parametrize("wrong", [{}, {"tokens": 5, "items": 5}, {"tokens": 0}, {"items": -1}])
def test_a_budget_is_tokens_or_items(wrong):
    with pytest.raises(ValueError, match="either tokens or items"):
        Budget(**wrong)
