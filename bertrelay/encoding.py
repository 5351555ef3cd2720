"""Many sentences to vectors, in memory or block by block.

The next block is tokenized while the model computes this one; in a block equal sentences are computed once, and
sentences of like length share a batch, so that little of it is padding.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple, Protocol, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertrelay.cpu_kernels import Packed, pack, using
from bertrelay.data.sentences import texts_of
from bertrelay.data.vectors import Vectors, not_finite_row
from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import WorkError, check_count
from bertrelay.hardware import autocast, resolve_precision
from bertrelay.progress import Bar
from bertrelay.progress import progress as progress_of

BLOCK_SENTENCES = 8_192


class EncodingOptions(TypedDict, total=False):
    """How sentences are encoded.

    prompt_name: which of the model's prompts precedes each sentence; without one, the model's default.
    prompt: a text in place of one of these.
    precision: of the computation: `bf16`, `fp32`, or `auto`, which is bf16 where the device computes in it.
    batch_tokens: the most tokens in a batch, padding included; chosen by the device when not given.
    batch_size: the most sentences in a batch; as many as `batch_tokens` allow when not given.
    """

    prompt_name: str | None
    prompt: str | None
    precision: str
    batch_tokens: int | None
    batch_size: int | None


def encode(
    encoder: SentenceEncoder,
    sentences: str | Iterable[str],
    *,
    progress: bool = False,
    **options: Unpack[EncodingOptions],
) -> Vectors:
    """Vectors of `sentences`, float32 (n, dim), row i for sentence i; of one string its vector, (dim,).

    sentences: a string, or any iterable of strings, which is read through; equal ones are computed once.
    options: see `EncodingOptions`.
    Raises RequestError for anything but sentences, such as a mapping or a data frame.
    """
    if isinstance(sentences, str):
        one: Vectors = encode(encoder, [sentences], **options)[0]
        return one
    sentences = texts_of(sentences, "encode")
    distinct, row_of = _distinct(sentences)
    blocks = (distinct[start : start + BLOCK_SENTENCES] for start in range(0, len(distinct), BLOCK_SENTENCES))
    vectors, start = np.empty((len(distinct), encoder.dim), np.float32), 0
    with progress_of("encoding", len(distinct), "sentences", shown=progress) as bar:
        for block in encode_blocks(encoder, blocks, bar, **options):
            vectors[start : start + len(block)] = block
            start += len(block)
    return vectors if len(distinct) == len(sentences) else vectors[row_of]


def _distinct(sentences: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """The distinct sentences in order of first appearance, and for each sentence its place among them."""
    place: dict[str, int] = {}
    row_of = np.fromiter((place.setdefault(sentence, len(place)) for sentence in sentences), np.int64, len(sentences))
    return list(place), row_of


def encode_blocks(
    encoder: SentenceEncoder,
    blocks: Iterable[Sequence[str]],
    bar: Bar | None = None,
    *,
    prompt_name: str | None = None,
    prompt: str | None = None,
    precision: str = "auto",
    batch_tokens: int | None = None,
    batch_size: int | None = None,
) -> Iterator[Vectors]:
    """For each block of sentences its vectors, float32 (n, dim); `blocks` is read from another thread, one ahead."""
    precision = resolve_precision(precision, encoder.device)
    check_count("batch_size", batch_size)
    bar = bar or Bar()
    text_before = encoder.prompts.text(prompt_name) if prompt is None else prompt
    batch_tokens = best_batch_tokens(encoder.device, batch_tokens)
    tokenized = (_tokenize(encoder, text_before, sentences) for sentences in blocks)
    packed: Packed = {}
    with ThreadPoolExecutor(1, "tokenizer") as ahead:
        waiting = ahead.submit(next, tokenized, None)
        while (block := waiting.result()) is not None:
            waiting = ahead.submit(next, tokenized, None)
            packed = packed or pack_for(len(block.ids), encoder.backbone, precision, batch_tokens)
            with computing(encoder, precision), using(packed):
                vectors = _compute(encoder, block, batch_tokens, bar, batch_size)
            yield vectors


def check_finite(encoder: SentenceEncoder, vectors: Vectors, place: Callable[[int], str], first: int = 0) -> None:
    """Raises WorkError, naming the model and the sentence, unless all `vectors` (n, dim) of `encoder` are finite.

    place: what to call the sentence of a row; `first` is the row of the first vector.
    """
    row = not_finite_row(vectors)
    if row is not None:
        model = encoder.backbone.name_or_path or "the model"
        raise WorkError(
            f"{model} gives a vector that is not finite for {place(first + row)}. Check the model, or try precision "
            "fp32"
        )


class _Tokens(NamedTuple):
    """The tokens of a block's distinct sentences, end to end, and for each sentence of the block its place there."""

    ids: NDArray[np.int64]  # (all tokens,)
    starts: NDArray[np.int64]  # (distinct,)
    lengths: NDArray[np.int64]  # (distinct,)
    row_of: NDArray[np.int64]  # (sentences,)


def _tokenize(encoder: SentenceEncoder, prompt: str, sentences: Sequence[str]) -> _Tokens:
    distinct, row_of = _distinct(sentences)
    ids = encoder.tokenize([prompt + sentence for sentence in distinct] if prompt else distinct)
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    flat = np.fromiter(chain.from_iterable(ids), np.int64, int(lengths.sum()))
    return _Tokens(flat, np.cumsum(lengths) - lengths, lengths, row_of)


def _compute(encoder: SentenceEncoder, block: _Tokens, batch_tokens: int, bar: Bar, batch_size: int | None) -> Vectors:
    parts, orders = list[torch.Tensor](), [np.zeros(0, np.int64)]
    for rows, width, height in sorted_batches(block.lengths, batch_tokens, encoder.max_tokens, batch_size):
        filled = np.pad(rows, (0, height - len(rows)), mode="edge")  # (height,): the last row repeated
        ids, mask = padded(block.ids, block.starts[filled], block.lengths[filled], width, encoder.pad_id)
        inputs = (torch.from_numpy(each.astype(np.int64)).to(encoder.device) for each in (ids, mask))
        vectors = encoder(*inputs)  # (height, dim)
        parts.append(vectors[: len(rows)])
        orders.append(rows)
        bar.advance(len(rows))
    order = np.concatenate(orders)
    bar.advance(len(block.row_of) - len(order))
    sorted_vectors = torch.cat(parts).cpu().numpy()  # (distinct, dim); the only wait for a GPU
    distinct = np.empty_like(sorted_vectors)
    distinct[order] = sorted_vectors
    return distinct[block.row_of]  # (sentences, dim)


# Batches of any network

WIDTH_BITS, HEIGHT_BITS = 5, 3  # a batch of 32 to 63 tokens has an even number; 8 to 15 rows become 8, 10, 12, 14 or 16


def batch_shape(longest: int, rows: int, batch_tokens: int, max_tokens: int) -> tuple[int, int]:
    """Tokens and rows of the next batch, padding included, when its longest row has `longest` tokens.

    Both are rounded up a little, so that few shapes occur: oneDNN compiles kernels for each and keeps them.
    """
    width = max(longest, min(_rounded_up(longest, WIDTH_BITS), max_tokens))
    full = max(1, batch_tokens // width)
    return width, min(full, _rounded_up(rows, HEIGHT_BITS))


def sorted_batches(
    lengths: NDArray[np.integer], batch_tokens: int, max_tokens: int, most_rows: int | None = None
) -> Iterator[tuple[NDArray[np.int64], int, int]]:
    """(rows, width, height) of each batch of rows of `lengths`; longest first: if memory is short, it shows at once.

    A batch may have fewer rows than its height; the others are padding.
    """
    order, start = np.argsort(-lengths.astype(np.int64), kind="stable"), 0
    while start < len(order):
        width, height = batch_shape(int(lengths[order[start]]), len(order) - start, batch_tokens, max_tokens)
        height = min(height, most_rows or height)
        yield order[start : start + height], width, height
        start += height


def _rounded_up(number: int, bits: int) -> int:
    """The next number that has no more than `bits` binary digits before its zeros."""
    step = 1 << max(0, number.bit_length() - bits)
    return -(-number // step) * step


def padded(
    ids: NDArray[np.integer], starts: NDArray[np.integer], lengths: NDArray[np.integer], width: int, pad_id: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The runs of `ids` from `starts` on, (rows,), padded, and their mask, both (rows, width)."""
    places = np.arange(width)  # (width,)
    mask = places < lengths[:, None]  # (rows, width)
    rows = np.full(mask.shape, pad_id, np.int64)
    rows[mask] = ids[(starts[:, None] + places)[mask]]
    return rows, mask


CPU_BATCH_TOKENS = 2_048  # as much as stays in the caches; more is slower
GPU_BATCH_TOKENS = 65_536


class Network(Protocol):
    """A module that knows its device."""

    training: bool

    @property
    def device(self) -> torch.device: ...

    def train(self, mode: bool = True) -> object: ...


def best_batch_tokens(device: torch.device, requested: int | None = None) -> int:
    """As many tokens, padding included, as the device computes best at once, or the `requested` number.

    Raises RequestError for fewer than one.
    """
    check_count("batch_tokens", requested)
    return requested or (CPU_BATCH_TOKENS if device.type == "cpu" else GPU_BATCH_TOKENS)


def pack_for(tokens: int, network: nn.Module, precision: str, batch_tokens: int) -> Packed:
    """The weights of `network` laid out for so many tokens; none for one batch, where it costs more than it saves."""
    return pack(network) if precision == "bf16" and tokens > batch_tokens else {}


@contextmanager
def computing(network: Network, precision: str) -> Iterator[None]:
    """Without gradients or dropout, in `precision`, bf16 or fp32.

    Threads may do so with one network, unless it is in training mode: to that the first to end brings it back.
    """
    was_training = network.training
    network.train(False)
    try:
        with torch.inference_mode(), autocast(network.device, precision):
            yield
    finally:
        network.train(was_training)
