"""Batches of token ids: their shape, of which few occur, and rows of unlike lengths side by side."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

WIDTH_BITS, HEIGHT_BITS = 5, 3  # a batch of 32 to 63 tokens has an even number; 8 to 15 rows become 8, 10, 12, 14 or 16


def batch_shape(longest: int, rows: int, batch_tokens: int, max_tokens: int) -> tuple[int, int]:
    """Tokens and rows of the next batch, padding included, when its longest row has `longest` tokens.

    Both are rounded up a little, so that few shapes occur: oneDNN compiles kernels for each and keeps them.
    """
    width = max(longest, min(_rounded_up(longest, WIDTH_BITS), max_tokens))
    full = max(1, batch_tokens // width)
    return width, min(full, _rounded_up(rows, HEIGHT_BITS))


def sorted_batches(
    lengths: NDArray[np.integer], batch_tokens: int, max_tokens: int
) -> Iterator[tuple[NDArray[np.int64], int, int]]:
    """(rows, width, height) of each batch of rows of `lengths`; longest first: if memory is short, it shows at once.

    A batch may have fewer rows than its height; the others are padding.
    """
    order, start = np.argsort(-lengths.astype(np.int64), kind="stable"), 0
    while start < len(order):
        width, height = batch_shape(int(lengths[order[start]]), len(order) - start, batch_tokens, max_tokens)
        yield order[start : start + height], width, height
        start += height


def _rounded_up(number: int, bits: int) -> int:
    """The next number that has no more than `bits` binary digits before its zeros."""
    step = 1 << max(0, number.bit_length() - bits)
    return -(-number // step) * step


def padded(
    ids: NDArray[np.integer], starts: NDArray[np.integer], lengths: NDArray[np.integer], width: int, pad_id: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The stretches of `ids` that begin at `starts`, (rows,), and where they are no padding, both (rows, width)."""
    places = np.arange(width)  # (width,)
    mask = places < lengths[:, None]  # (rows, width)
    rows = np.full(mask.shape, pad_id, np.int64)
    rows[mask] = ids[(starts[:, None] + places)[mask]]
    return rows, mask
