"""Overlapping windows over sequences of any length, and the batches of windows that a network reads.

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

    sequences: the sequence of each window.
    starts, ends: its first element and the one after its last, counted over all sequences.
    owned_starts, owned_ends: the part of it that is more central in this window than in the one before and the one
        after. Every element is owned by exactly one window.
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
        """The windows, padded to `height` rows by repeating the last one."""
        return self.chosen(fill_batch(np.arange(len(self.starts)), height))

    def chosen(self, rows: NDArray[np.integer] | slice) -> "Windows":
        return Windows(*(column[rows] for column in self))


def cut_windows(
    lengths: NDArray[np.integer], size: int | NDArray[np.integer], overlap: int | NDArray[np.integer]
) -> Windows:
    """Windows of at most `size` elements over sequences of `lengths`, (sequences,); neighbours share `overlap` or more.

    size, overlap: one number, or one for each sequence.
    A sequence that fits is one window, an empty one has none. In a longer one all windows have the whole size, and the
    last one ends with the sequence: lengths [3, 10], size 6 and overlap 2 give the windows 0 to 3, 3 to 9 and 7 to 13,
    which own 0 to 3, 3 to 8 and 8 to 13.
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
    return Windows(sequences, starts, ends, *_owned_parts(sequences, starts, ends))


def _owned_parts(sequences: Integers, starts: Integers, ends: Integers) -> tuple[Integers, Integers]:
    """Start and end of the part that each window owns, (windows,).

    Two neighbours meet half-way between their middles; an element as near to both belongs to the first.
    """
    owned_starts, owned_ends = starts.copy(), ends.copy()
    are_neighbours = sequences[1:] == sequences[:-1]
    middles = starts + ends - 1  # twice the position of the middle element
    borders = ((middles[1:] + middles[:-1]) // 4 + 1)[are_neighbours]
    owned_ends[:-1][are_neighbours] = borders
    owned_starts[1:][are_neighbours] = borders
    return owned_starts, owned_ends


def ranges(starts: NDArray[np.integer], lengths: NDArray[np.integer]) -> Integers:
    """The numbers of each range, one range after the other: starts [5, 0] and lengths [2, 3] give [5, 6, 0, 1, 2]."""
    before = np.cumsum(lengths) - lengths
    numbers: Integers = np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)
    return numbers


Item = TypeVar("Item")


def window_outputs(
    network: HeadNetwork,
    max_tokens: int,
    windows: Windows,
    lengths: Integers,
    batch: Callable[[Windows, int, int], dict[str, Tensor]],
    batch_tokens: int,
) -> Iterator[tuple[Windows, Tensor]]:
    """Yields windows of about one length and the network's output for them; rows beyond them are padding.

    lengths: tokens of each window with special ones, at most `max_tokens`, (windows,).
    batch: makes the inputs of the network of windows, a width and a height.
    """
    for rows, width, height in sorted_batches(lengths, batch_tokens, max_tokens):
        chosen = windows.chosen(rows)
        inputs = batch(chosen, width, height)
        yield chosen, network(**{name: values.to(network.device) for name, values in inputs.items()})


def in_batches(items: Iterator[Item], batch_size: int | None) -> Iterator[Iterable[Item]]:
    """Splits `items` into batches; None makes one batch of all, as a stream. Raises RequestError for a size below 1."""
    check_count("batch_size", batch_size)
    return iter([items]) if batch_size is None else blocks_of(items, batch_size)


def blocks(items: Iterable[Item], size: Callable[[Item], int], limit: int) -> Iterator[list[Item]]:
    """Splits `items` into blocks; a block ends as soon as its sizes, each at least 1, add up to `limit`."""
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
