"""Windows against windows cut by hand, and streams in blocks."""

from itertools import islice

import numpy as np
import pytest

from bertrelay.inference.batches import prefetch
from domain.text.windows import blocks, cut_windows


def by_hand(length, size, overlap):
    """Windows one after the other; the one that reaches the end is moved back until it is full."""
    windows = []
    start = 0
    while length and (not windows or windows[-1][1] < length):
        end = min(start + size, length)
        windows.append((max(0, end - size), end))
        start += size - overlap
    return windows


def owner_by_hand(position, windows):
    """The first of the windows whose nearer border is farthest from the position."""
    space = [min(position - start, end - 1 - position) if start <= position < end else -1 for start, end in windows]
    return space.index(max(space))


def test_windows_and_owners_of_many_sequences_are_those_of_a_search_over_each():
    generator = np.random.default_rng(0)
    sizes, lengths = generator.integers(1, 12, 300), generator.integers(0, 60, 300)
    overlaps = generator.integers(0, sizes)
    windows, begins = cut_windows(lengths, sizes, overlaps), np.cumsum(lengths) - lengths
    for sequence, case in enumerate(zip(lengths.tolist(), sizes.tolist(), overlaps.tolist(), strict=True)):
        expected = by_hand(*case)
        starts, ends, *owned = (
            column - begins[sequence] for column in windows.chosen(windows.sequences == sequence)[1:]
        )
        assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == expected
        owners = [window for window, (first, end) in enumerate(zip(*owned, strict=True)) for _ in range(first, end)]
        assert owners == [owner_by_hand(position, expected) for position in range(case[0])]


@pytest.mark.parametrize("overlap", [-1, 8, 9])
def test_an_overlap_of_a_whole_window_is_refused(overlap):
    with pytest.raises(ValueError, match="larger than their overlap"):
        cut_windows(np.array([20]), 8, overlap)


def test_blocks_are_closed_as_soon_as_they_are_full():
    texts = ["four", "six si", "", "", "twelve twelv", "a"]
    assert list(blocks(texts, len, 10)) == [["four", "six si"], ["", "", "twelve twelv"], ["a"]]
    assert list(blocks([], len, 10)) == []


def test_prefetched_items_come_in_order_and_at_most_one_ahead():
    assert list(prefetch(iter([1, None, 2]))) == [1, None, 2]
    made = []

    def making():
        for number in range(1, 50):
            made.append(number)
            yield number

        raise ValueError("no more")

    ahead = prefetch(making())
    for number in islice(ahead, 49):
        assert made[:number] == list(range(1, number + 1))
        assert len(made) <= number + 1
    with pytest.raises(ValueError, match="no more"):
        next(ahead)
