"""Overlapping windows over sequences of any length: how they are cut, and how a network reads them in batches.

Sequences (a sentence's subwords, an article's words) lie end to end in one array; a window is a range of one of them.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bertrelay.blocks import blocks_of
from bertrelay.checks import check_count
from bertrelay.inference.batches import fill_batch, sorted_batches
from bertrelay.model.heads import HeadNetwork

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Windows(NamedTuple):
    """Windows, those of a sequence in order; all arrays are (windows,).

    sequences: which sequence a window belongs to.
    starts, ends: where it begins and ends, counted over all sequences.
    owned_starts, owned_ends: the range in it that is more central here than in the windows before and after; every
        element is owned by exactly one window.
    """

    sequences: Integers
    starts: Integers
    ends: Integers
    owned_starts: Integers
    owned_ends: Integers

    @property
    def lengths(self) -> Integers:
        return self.ends - self.starts

    def filled(self, height: int) -> "Windows":
        """The windows and the last one repeated, (height,): what pads a batch."""
        return self.chosen(fill_batch(np.arange(len(self.starts)), height))

    def chosen(self, which: NDArray[np.integer] | slice) -> "Windows":
        return Windows(*(each[which] for each in self))


def cut_windows(
    lengths: NDArray[np.integer], size: int | NDArray[np.integer], overlap: int | NDArray[np.integer]
) -> Windows:
    """Windows of at most `size` elements over sequences of `lengths`, (sequences,); neighbours share `overlap` or more.

    size, overlap: one for all sequences, or one for each. A sequence that fits is one window, an empty one has none.
    In a longer one all windows have the whole size, and the last ends where the sequence does.
    Raises ValueError unless 0 ≤ overlap < size.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    sizes = np.broadcast_to(np.asarray(size, dtype=np.int64), lengths.shape)
    steps = sizes - overlap
    if (steps <= 0).any() or np.less(overlap, 0).any():
        raise ValueError(f"expected windows larger than their overlap of {overlap}, found {sizes.min(initial=0)}")
    counts = np.where(lengths > 0, 1 + np.maximum(0, -(-(lengths - sizes) // steps)), 0)  # (sequences,)
    sequences = np.repeat(np.arange(len(lengths)), counts)  # (windows,)
    number = np.arange(len(sequences)) - (np.cumsum(counts) - counts)[sequences]
    window_lengths = np.minimum(lengths, sizes)[sequences]
    offsets = np.minimum(number * steps[sequences], lengths[sequences] - window_lengths)
    starts = (np.cumsum(lengths) - lengths)[sequences] + offsets
    ends = starts + window_lengths
    # Two neighbours meet half-way between their middles; what is as near to both belongs to the first.
    owned_starts, owned_ends = starts.copy(), ends.copy()
    neighbours = sequences[1:] == sequences[:-1]
    middles = starts + ends - 1  # twice the place of the middle element
    boundaries = (middles[1:] + middles[:-1]) // 4 + 1
    owned_ends[:-1][neighbours] = boundaries[neighbours]
    owned_starts[1:][neighbours] = boundaries[neighbours]
    return Windows(sequences, starts, ends, owned_starts, owned_ends)


def ranges(starts: NDArray[np.integer], lengths: NDArray[np.integer]) -> Integers:
    """The numbers start, start + 1, … of each range, one range after the other."""
    before = np.cumsum(lengths) - lengths
    found: Integers = np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)
    return found


# Windows that a network reads


Item = TypeVar("Item")


def window_outputs(
    network: HeadNetwork,
    max_tokens: int,
    windows: Windows,
    lengths: Integers,
    batch: Callable[[Windows, int, int], dict[str, Tensor]],
    batch_tokens: int,
) -> Iterator[tuple[Windows, Tensor]]:
    """Windows of about one length and what the network gives for them; rows beyond them are padding.

    lengths: the tokens of each window, special ones among them and `max_tokens` at most, (windows,).
    batch: the inputs of the network for windows, with so many columns and rows.
    """
    for rows, width, height in sorted_batches(lengths, batch_tokens, max_tokens):
        chosen = windows.chosen(rows)
        inputs = batch(chosen, width, height)
        yield chosen, network(**{name: each.to(network.device) for name, each in inputs.items()})


def in_batches(items: Iterator[Item], batch_size: int | None) -> Iterator[Iterable[Item]]:
    """So many `items` at a time; all of them, as a stream, for None. Raises RequestError for fewer than one."""
    check_count("batch_size", batch_size)
    return iter([items]) if batch_size is None else blocks_of(items, batch_size)


def blocks(items: Iterable[Item], size: Callable[[Item], int], limit: int) -> Iterator[list[Item]]:
    """`items` in blocks that are closed as soon as their sizes, each at least 1, add up to `limit`."""
    block: list[Item] = []
    total = 0
    for item in items:
        block.append(item)
        total += max(1, size(item))
        if total >= limit:
            yield block
            block, total = [], 0
    if block:
        yield block
