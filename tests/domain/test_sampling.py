"""Reproducible random numbers against the reference implementation."""

import numpy as np
import pytest

from domain.sampling import draw_by_group, nth_number, uniform_draws


def test_numbers_are_those_of_splitmix64():
    """The first ones of the reference implementation in C, for the seeds 0 and 1234567."""
    seeds = np.array([[0], [1234567]], dtype=np.uint64)
    numbers = nth_number(seeds, np.arange(3, dtype=np.uint64))
    assert numbers[0].tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert numbers[1].tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_draws_of_neighbouring_tokens_items_and_epochs_have_nothing_to_do_with_one_another():
    items, positions = np.repeat(np.arange(2_000), 50), np.tile(np.arange(50), 2_000)
    draws = uniform_draws(0, 0, items, positions)
    assert draws.min() >= 0 and draws.max() < 1
    assert draws.mean() == pytest.approx(0.5, abs=0.003)
    other_epoch = uniform_draws(0, 1, items, positions)
    by_item = draws.reshape(2_000, 150)
    columns = [draws[:, 0], draws[:, 1], draws[:, 2], other_epoch[:, 0], np.roll(draws[:, 0], 1)]
    assert np.abs(np.corrcoef(columns) - np.eye(len(columns))).max() < 0.02
    assert np.abs(np.corrcoef(by_item[:-1, 0], by_item[1:, 0])[0, 1]) < 0.1


def test_a_temperature_gives_small_groups_a_larger_part():
    groups = np.repeat([0, 1], [100, 10])
    drawn = draw_by_group(groups, 2.0, 1, 0)
    assert np.bincount(groups[drawn]).tolist() == [84, 26]  # 110 · (10, 3.16) / 13.16
    times = np.bincount(drawn, minlength=110)
    assert set(times[:100]) == {0, 1} and sorted(times[100:]) == [2] * 4 + [3] * 6
    assert draw_by_group(groups, 1.0, 1, 0).tolist() == list(range(110))
    assert np.bincount(groups[draw_by_group(groups, 1e9, 1, 0)]).tolist() == [55, 55]
    assert not np.array_equal(drawn, draw_by_group(groups, 2.0, 1, 1))
    assert len(draw_by_group(groups[:0], 2.0, 1, 0)) == 0
