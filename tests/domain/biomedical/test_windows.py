"""Windows beside windows cut by hand, and streams in blocks."""

from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest

from bertrelay.inference import one_ahead
from domain.biomedical.windows import Windows, blocks, cut_windows


def by_hand(length: int, size: int, overlap: int) -> list[tuple[int, int]]:
    """Windows one after the other, until one reaches the end; that one is moved back until it is full."""
    windows: list[tuple[int, int]] = []
    start = 0
    while length and (not windows or windows[-1][1] < length):
        end = min(start + size, length)
        windows.append((max(0, end - size), end))
        start += size - overlap
    return windows


def owner_by_hand(place: int, windows: list[tuple[int, int]]) -> int:
    """The window whose nearer border is farthest away; the first of those that are as good."""
    space = [min(place - start, end - 1 - place) if start <= place < end else -1 for start, end in windows]
    return space.index(max(space))


def cases() -> list[tuple[int, int, int]]:
    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 12, 300).tolist()
    return [(int(generator.integers(0, 60)), size, int(generator.integers(0, size))) for size in sizes]


def owners(windows: Windows) -> list[int]:
    return [
        n for n, (a, b) in enumerate(zip(windows.owned_starts, windows.owned_ends, strict=True)) for _ in range(a, b)
    ]


def test_windows_and_owners_are_those_of_a_search_over_all() -> None:
    for length, size, overlap in cases():
        found = cut_windows(np.array([length]), size, overlap)
        windows = by_hand(length, size, overlap)
        assert list(zip(found.starts.tolist(), found.ends.tolist(), strict=True)) == windows
        assert owners(found) == [owner_by_hand(place, windows) for place in range(length)]


def test_sequences_are_cut_as_if_each_were_alone() -> None:
    lengths, sizes = np.array([0, 7, 30, 0, 12, 1]), np.array([5, 7, 8, 4, 6, 9])
    overlaps = np.array([3, 3, 5, 0, 1, 4])
    together = cut_windows(lengths, sizes, overlaps)
    begins = np.cumsum(lengths) - lengths
    for sequence, (length, size, overlap) in enumerate(zip(lengths, sizes, overlaps, strict=True)):
        alone = cut_windows(np.array([length]), int(size), int(overlap))
        mine = together.chosen(together.sequences == sequence)
        for ours, theirs in zip(mine[1:], alone[1:], strict=True):
            np.testing.assert_array_equal(ours - begins[sequence], theirs)


@pytest.mark.parametrize("overlap", [-1, 8, 9])
def test_windows_that_would_not_move_on_are_refused(overlap: int) -> None:
    with pytest.raises(ValueError, match="larger than their overlap"):
        cut_windows(np.array([20]), 8, overlap)


def test_blocks_are_closed_as_soon_as_they_are_full() -> None:
    texts = ["four", "six si", "", "", "twelve twelv", "a"]
    assert list(blocks(texts, len, 10)) == [["four", "six si"], ["", "", "twelve twelv"], ["a"]]
    assert list(blocks([], len, 10)) == []


def test_what_is_made_ahead_comes_in_order_and_no_more_than_one_ahead() -> None:
    made: list[int] = []

    def making() -> Iterator[int]:
        for number in range(1, 50):
            made.append(number)
            yield number

        raise ValueError("no more")

    ahead = one_ahead(making())
    for number in islice(ahead, 49):
        assert made[:number] == list(range(1, number + 1))
        assert len(made) <= number + 1
    with pytest.raises(ValueError, match="no more"):
        next(ahead)
