import numpy as np

from bertrelay.inference.batches import batch_shape, padded, sorted_batches


def test_stretches_stand_in_rows_with_padding_behind_them():
    ids, mask = padded(np.arange(10, 20), np.array([7, 0, 4]), np.array([3, 1, 0]), width=4, pad_id=-1)
    assert ids.tolist() == [[17, 18, 19, -1], [10, -1, -1, -1], [-1, -1, -1, -1]]
    assert mask.sum(axis=1).tolist() == [3, 1, 0]


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
