"""Batches of any network for inference: few shapes, packed weights, precision."""

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertrelay.checks import check_count
from bertrelay.device import ComputePrecision, autocast
from bertrelay.inference.kernels import Packed, pack, use_packed
from bertrelay.memory import release_memory

WIDTH_BITS, HEIGHT_BITS = 5, 3  # a batch of 32 to 63 tokens has an even number; 8 to 15 rows become 8, 10, 12, 14 or 16


def batch_shape(longest: int, rows: int, batch_tokens: int, max_tokens: int) -> tuple[int, int]:
    """Gives tokens and rows of the next batch, padding included, when its longest row has `longest` tokens.

    Both are rounded up a little, so that few shapes occur: oneDNN compiles kernels for each shape and keeps them.
    11 tokens, 100 rows left and 2,048 tokens a batch give (11, 112).
    """
    width = max(longest, min(round_up(longest, WIDTH_BITS), max_tokens))
    full = max(1, batch_tokens // width)
    return width, min(full, round_up(rows, HEIGHT_BITS))


def sorted_batches(
    lengths: NDArray[np.integer], batch_tokens: int, max_tokens: int, most_rows: int | None = None
) -> Iterator[tuple[NDArray[np.int64], int, int]]:
    """Yields (rows, width, height) of batches of like length, longest first: if memory is short, it shows at once.

    lengths: tokens of each row. A batch may have fewer rows than its height; the others are padding.
    """
    order, start = np.argsort(-lengths.astype(np.int64), kind="stable"), 0
    while start < len(order):
        width, height = batch_shape(int(lengths[order[start]]), len(order) - start, batch_tokens, max_tokens)
        height = min(height, most_rows or height)
        yield order[start : start + height], width, height
        start += height


def fill_batch(rows: NDArray[np.int64], height: int) -> NDArray[np.int64]:
    """Fills a batch up to its height by repeating its last row, (height,)."""
    return np.pad(rows, (0, height - len(rows)), mode="edge")


def round_up(number: int, bits: int) -> int:
    """Rounds up to a number of at most `bits` binary digits before its zeros: 37 with 3 bits is 40, 101000."""
    step = 1 << max(0, number.bit_length() - bits)
    return -(-number // step) * step


CPU_BATCH_TOKENS = 2_048  # as much as stays in the caches; more is slower
GPU_BATCH_TOKENS = 65_536


class Network(Protocol):
    """A module that knows its device, and the network in it that takes most of the time."""

    training: bool

    @property
    def device(self) -> torch.device: ...

    @property
    def backbone(self) -> Any: ...

    def train(self, mode: bool = True) -> object: ...


def best_batch_tokens(device: torch.device, requested: int | None = None) -> int:
    """Gives the number of tokens, padding included, that a device computes best at once, or the `requested` number.

    Raises RequestError for fewer than one.
    """
    check_count("batch_tokens", requested)
    return requested or (CPU_BATCH_TOKENS if device.type == "cpu" else GPU_BATCH_TOKENS)


def pack_for(tokens: int, network: nn.Module, precision: ComputePrecision, batch_tokens: int) -> Packed:
    """Packs the weights of `network` for so many tokens; none for a single batch, where it costs more than it saves."""
    is_packed = precision == ComputePrecision.BF16 and tokens > batch_tokens and own_precision(network) is None
    return pack(network) if is_packed else {}


def own_precision(network: nn.Module) -> str | None:
    """Names the type in which a network computes whatever is requested; None for one that takes any precision.

    A graph names its own in `own_precision`; a network that was converted, by `half()` for example, has the type of
    its weights.
    """
    named: str | None = getattr(network, "own_precision", None)
    weights = next(network.parameters(), None)
    if named is None and weights is not None and weights.dtype != torch.float32:
        return str(weights.dtype).removeprefix("torch.")
    return named


def computed_precision(network: nn.Module, precision: ComputePrecision) -> str:
    """Names the precision in which `network` computes when `precision` is requested: its own, if it has one."""
    return own_precision(network) or precision


@contextmanager
def inference_mode(network: Network, precision: ComputePrecision) -> Iterator[None]:
    """Computes without gradients and dropout, in `precision`, or in the network's own (`own_precision`).

    Several threads may compute with one network, but not in training mode: the first thread to finish restores it.
    """
    was_training = network.training
    network.train(False)
    precision = ComputePrecision.FP32 if own_precision(network.backbone) else precision
    try:
        with torch.inference_mode(), autocast(network.device, precision):
            yield
    finally:
        network.train(was_training)


Block = TypeVar("Block")
Result = TypeVar("Result")
END: Any = object()  # of items, any of which may be None


def compute_blocks(
    network: Network,
    blocks: Iterable[Block],
    count_tokens: Callable[[Block], int],
    compute: Callable[[Block, int], Result],
    precision: ComputePrecision,
    batch_tokens: int | None = None,
) -> Iterator[Result]:
    """Yields compute(block, batch_tokens) for each block; another thread makes the next block meanwhile.

    count_tokens: block -> how many tokens of it the network reads.
    """
    batch_tokens = best_batch_tokens(network.device, batch_tokens)
    packed: Packed = {}
    for block in prefetch(iter(blocks)):
        packed = packed or pack_for(count_tokens(block), network.backbone, precision, batch_tokens)
        with inference_mode(network, precision), use_packed(packed):
            result = compute(block, batch_tokens)
        yield result
        release_memory()


def prefetch(items: Iterator[Block]) -> Generator[Block, None, None]:
    """Yields the same items; another thread makes the next item while the caller works on this one."""
    with ThreadPoolExecutor(1, "ahead") as other:
        waiting = other.submit(next, items, END)
        while (item := waiting.result()) is not END:
            waiting = other.submit(next, items, END)
            yield item
