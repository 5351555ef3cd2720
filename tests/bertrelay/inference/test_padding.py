import numpy as np

from bertrelay.inference.batches import batch_shape, sorted_batches


def test_batches_hold_their_longest_row_and_stay_within_the_budget():
    for longest in range(1, 300):
        width, height = batch_shape(longest, rows=1000, batch_tokens=2048, max_tokens=256)
        assert longest <= width <= max(longest, 256)
        assert width * height <= 2048
        assert width < longest * 1.13 or width - longest < 2


def test_every_row_is_in_one_batch_and_the_longest_come_first():
    lengths = np.random.default_rng(0).integers(1, 100, 500)
    batches = list(sorted_batches(lengths, batch_tokens=512, max_tokens=128))
    rows = np.concatenate([rows for rows, _, _ in batches])
    assert sorted(rows.tolist()) == list(range(500))
    assert (np.diff(lengths[rows]) <= 0).all()
    for chosen, width, height in batches:
        assert lengths[chosen].max() <= width
        assert len(chosen) <= height
        assert width * height <= 512
    assert list(sorted_batches(np.zeros(0, np.int64), 512, 128)) == []
