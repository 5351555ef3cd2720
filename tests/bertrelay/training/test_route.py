"""Each step's batch and learning rate, as functions of its number."""

import numpy as np
import pytest

from bertrelay.training.batches import Budget, Route, learning_rate, plan_epoch
from bertrelay.training.settings import TrainingSettings


def settings(**others):
    return TrainingSettings(**{"batch_items": 4, "learning_rate": 8.0, "warmup": 0.2, **others})


def rates(total, **others):
    return [learning_rate(step, total, settings(**others)) for step in range(total)]


def test_linear_rates_by_hand():
    """Ten steps, two of them warm-up: 1/2 and 2/2 of the rate, then eighths of it."""
    assert rates(10) == pytest.approx([4, 8, 8, 7, 6, 5, 4, 3, 2, 1])


def test_cosine_rates_by_hand():
    """After two steps of warm-up 8 · (1 + cos(π k/4)) / 2 for k = 0 … 3."""
    root = 2**0.5 / 2
    expected = [4, 8, 8, 4 * (1 + root), 4, 4 * (1 - root)]
    assert rates(6, schedule="cosine", warmup=2 / 6) == pytest.approx(expected)


def test_constant_rates_by_hand():
    assert rates(5, schedule="constant", warmup=0.4) == pytest.approx([4, 8, 8, 8, 8])


def test_without_warm_up_the_first_step_has_the_whole_rate():
    assert rates(4, warmup=0) == pytest.approx([8, 6, 4, 2])


def test_a_share_of_a_step_warms_up_for_a_whole_one():
    assert rates(5, warmup=0.01) == pytest.approx([8, 8, 6, 4, 2])


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
@pytest.mark.parametrize("warmup", [0, 0.1, 1])
@pytest.mark.parametrize("total", [1, 2, 17])
def test_no_step_is_wasted_on_a_rate_of_zero_nor_has_more_than_was_asked(schedule, warmup, total):
    assert all(0 < rate <= 8 + 1e-12 for rate in rates(total, schedule=schedule, warmup=warmup))


LENGTHS = np.random.default_rng(0).integers(3, 30, 90)


def test_the_route_is_the_epochs_plans_one_after_the_other():
    route = Route(LENGTHS, settings(epochs=3, batch_items=None, batch_tokens=100, seed=5))
    expected = [
        (epoch, batch.tolist())
        for epoch in range(3)
        for batch in plan_epoch(LENGTHS, 5, epoch, Budget(tokens=100))
    ]  # fmt: skip
    assert route.total_steps == len(expected)
    for step in np.random.default_rng(0).permutation(len(expected)):  # asked in any order, as after resuming
        epoch, items = route.batch(int(step))
        assert (epoch, items.tolist()) == expected[step]


def test_every_epoch_may_have_items_of_its_own():
    drawn = [np.random.default_rng(epoch).integers(3, 30, 40 + 9 * epoch) for epoch in range(3)]
    route = Route(drawn.__getitem__, settings(epochs=3, batch_items=None, batch_tokens=100, seed=5))
    expected = [
        (epoch, batch.tolist())
        for epoch, lengths in enumerate(drawn)
        for batch in plan_epoch(lengths, 5, epoch, Budget(tokens=100))
    ]
    assert [(epoch, items.tolist()) for epoch, items in map(route.batch, range(route.total_steps))] == expected


def test_the_ends_of_epochs_are_known():
    route = Route(LENGTHS, settings(epochs=2))  # 90 items by 4: 23 steps each
    assert [step for step in range(47) if route.ends_epoch(step)] == [23, 46]
