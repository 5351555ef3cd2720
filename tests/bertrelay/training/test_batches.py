"""Batches and learning rates: every item once an epoch, batches of the size, and pure functions of the step."""

import numpy as np
import pytest

from bertrelay.training.batches import BatchSchedule, learning_rate, micro_batches, plan_epoch, rank_items
from bertrelay.training.settings import TrainingSettings

LENGTHS = np.random.default_rng(0).integers(3, 60, 5000)
SIZES = [{"batch_tokens": 600}, {"batch_items": 16}, {"batch_tokens": 1}, {"batch_items": 1}, {"batch_tokens": 10**9}]


def padded(batches):
    return sum(len(batch) * LENGTHS[batch].max() for batch in batches)


@pytest.mark.parametrize("size", SIZES)
def test_every_item_is_in_one_batch_of_an_epoch(size):
    plan = plan_epoch(LENGTHS, 1, 0, **size)
    assert sorted(np.concatenate(plan)) == list(range(5000))
    assert all(len(batch) for batch in plan)


def test_batches_exceed_their_size_by_less_than_an_item():
    tokens = [LENGTHS[batch] for batch in plan_epoch(LENGTHS, 1, 0, batch_tokens=600)]
    assert all(lengths.sum() - lengths[-1] < 600 for lengths in tokens)
    assert np.mean([lengths.sum() for lengths in tokens]) == pytest.approx(600, rel=0.01)
    sizes = sorted(len(batch) for batch in plan_epoch(LENGTHS, 1, 0, batch_items=16))
    assert sizes == [5000 % 16] + [16] * (5000 // 16)
    longer = plan_epoch(np.array([900, 800, 700]), 0, 0, batch_tokens=100)
    assert sorted(map(list, longer)) == [[0], [1], [2]]


def test_a_plan_is_a_function_of_seed_and_epoch():
    def order(seed, epoch):
        return [batch.tolist() for batch in plan_epoch(LENGTHS, seed, epoch, batch_tokens=600)]

    assert order(1, 0) == order(1, 0)
    plans = [{tuple(sorted(batch)) for batch in order(*key)} for key in ((1, 0), (1, 1), (2, 0), (0, 1))]
    for first in range(4):
        for second in range(first):
            assert not plans[first] & plans[second]  # different batches, not only in another order


def test_grouping_by_length_pads_far_less_than_a_random_order_and_does_not_sort_the_steps():
    plan = plan_epoch(LENGTHS, 1, 0, batch_tokens=600)
    random_order = padded(np.array_split(np.random.default_rng(1).permutation(5000), LENGTHS.sum() // 600))
    assert 1 - LENGTHS.sum() / random_order > 0.4
    assert 1 - LENGTHS.sum() / padded(plan) < 0.05
    means = [LENGTHS[batch].mean() for batch in plan]
    half = len(means) // 2
    assert np.mean(means[:half]) == pytest.approx(np.mean(means[half:]), rel=0.2)


def test_groups_are_not_split_and_are_batched_by_their_longest_item():
    generator = np.random.default_rng(2)
    sizes = generator.integers(1, 13, 800)  # a sentence with few translations or many
    groups = np.repeat(np.arange(800), sizes)
    lengths = np.repeat(generator.integers(5, 60, 800), sizes) + generator.integers(-2, 3, sizes.sum())
    plan = plan_epoch(lengths, 1, 0, batch_tokens=600, groups=groups)
    assert sorted(np.concatenate(plan)) == list(range(len(groups)))
    assert sum(len(np.unique(groups[batch])) for batch in plan) == 800
    padded_tokens = sum(len(batch) * lengths[batch].max() for batch in plan)
    assert 1 - lengths.sum() / padded_tokens < 0.15


@pytest.mark.promise("The items of all processes are the batch", about="processes")
@pytest.mark.parametrize("processes", [1, 2, 3, 7, 100])
def test_the_items_of_all_ranks_are_the_batch(processes):
    by_rank = [rank_items(np.arange(41), rank, processes) for rank in range(processes)]
    assert sorted(np.concatenate(by_rank)) == list(range(41))
    sizes = [len(items) for items in by_rank]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("device_tokens", [1, 30, 100, 1000, 10**9])
def test_micro_batches_are_the_items_within_device_tokens(device_tokens):
    """Items of one text, and of several texts of uneven lengths that are padded together."""
    items = np.random.default_rng(3).permutation(5000)[:200]
    micros = list(micro_batches(items, LENGTHS, LENGTHS, device_tokens))
    assert sorted(np.concatenate(micros)) == sorted(items)
    assert all(len(micro) == 1 or len(micro) * LENGTHS[micro].max() <= device_tokens for micro in micros)
    assert device_tokens < 10**9 or len(micros) == 1
    texts = np.random.default_rng(4).integers(1, 40, (60, 3))  # (items, texts)
    micros = list(micro_batches(np.arange(60), texts.sum(axis=1), 3 * texts.max(axis=1), device_tokens))
    assert sorted(np.concatenate(micros)) == list(range(60))
    assert all(len(micro) == 1 or texts[micro].size * texts[micro].max() <= device_tokens for micro in micros)


@pytest.mark.parametrize("wrong", [{}, {"batch_tokens": 5, "batch_items": 5}, {"batch_tokens": 0}, {"batch_items": -1}])
def test_a_batch_size_is_in_tokens_or_items(wrong):
    with pytest.raises(ValueError, match=r"exactly one of batch_tokens and batch_items|greater than or equal to 1"):
        TrainingSettings(**wrong)


def settings(**changes):
    return TrainingSettings(**{"batch_items": 4, "learning_rate": 8.0, "warmup": 0.2, **changes})


@pytest.mark.parametrize(
    ("total", "changes", "expected"),
    [
        (10, {}, [4, 8, 8, 7, 6, 5, 4, 3, 2, 1]),  # two steps of warm-up, then eighths of the rate
        # 8 · (1 + cos(π k/4)) / 2 for k = 0 … 3
        (6, {"schedule": "cosine", "warmup": 2 / 6}, [4, 8, 8, 4 + 8**0.5, 4, 4 - 8**0.5]),
        (5, {"schedule": "constant", "warmup": 0.4}, [4, 8, 8, 8, 8]),
        (4, {"warmup": 0}, [8, 6, 4, 2]),
        (5, {"warmup": 0.01}, [8, 8, 6, 4, 2]),  # a fraction of a step is rounded up to one
    ],
)
def test_learning_rates_by_hand(total, changes, expected):
    assert [learning_rate(step, total, settings(**changes)) for step in range(total)] == pytest.approx(expected)


@pytest.mark.parametrize("sizes", [(90, 90, 90), (40, 49, 58)])
def test_the_schedule_is_the_plans_of_the_epochs_in_order(sizes):
    """Steps are read in random order, as a resumed training may; each epoch may have its own items."""
    by_epoch = [np.random.default_rng(0 if sizes[0] == 90 else size).integers(3, 30, size) for size in sizes]
    lengths = by_epoch[0] if sizes[0] == 90 else by_epoch.__getitem__
    schedule = BatchSchedule(lengths, settings(epochs=3, batch_items=None, batch_tokens=100, seed=5))
    expected = [
        (epoch, batch.tolist())
        for epoch, epoch_lengths in enumerate(by_epoch)
        for batch in plan_epoch(epoch_lengths, 5, epoch, batch_tokens=100)
    ]
    assert schedule.total_steps == len(expected)
    for step in np.random.default_rng(0).permutation(len(expected)):
        epoch, items = schedule.batch(int(step))
        assert (epoch, items.tolist()) == expected[step]
