"""Many sentences to vectors, in memory or block by block.

The next block is tokenized while the model computes this one; in a block equal sentences are computed once, and
sentences of like length share a batch, so that little of it is padding.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bertrelay.cpu_kernels import Packed, using
from bertrelay.data.sentences import texts_of
from bertrelay.data.vectors import Vectors, not_finite_row
from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import WorkError, check_count
from bertrelay.hardware import resolve_precision
from bertrelay.inference import best_batch_tokens, computing, pack_for, padded, sorted_batches
from bertrelay.progress import Bar, progress

BLOCK_SENTENCES = 8_192


def encode(
    encoder: SentenceEncoder,
    sentences: str | Iterable[str],
    *,
    precision: str = "auto",
    batch_tokens: int | None = None,
    prompt_name: str | None = None,
    prompt: str | None = None,
    batch_size: int | None = None,
    progress: bool = False,
) -> Vectors:
    """Vectors of `sentences`, float32 (n, dim), row i for sentence i; of one string its vector, (dim,).

    sentences: a string, or any iterable of strings, which is read through; equal ones are computed once.
    batch_tokens: the most tokens in a batch, padding included; chosen by the device when not given.
    batch_size: the most sentences in a batch; as many as `batch_tokens` allow when not given.
    prompt_name: which of the model's prompts precedes each sentence; without one, the model's default.
    prompt: a text in place of one of these.
    Raises RequestError for anything but sentences, such as a mapping or a data frame.
    """
    if isinstance(sentences, str):
        one: Vectors = encode(encoder, [sentences], precision=precision, prompt_name=prompt_name, prompt=prompt)[0]
        return one
    sentences = texts_of(sentences, "encode")
    distinct, row_of = _distinct(sentences)
    vectors = np.empty((len(distinct), encoder.dim), np.float32)
    blocks = (distinct[start : start + BLOCK_SENTENCES] for start in range(0, len(distinct), BLOCK_SENTENCES))
    with _bar("encoding", len(distinct), shown=progress) as bar:
        start = 0
        for block in encode_blocks(encoder, blocks, precision, batch_tokens, prompt_name, bar, prompt, batch_size):
            vectors[start : start + len(block)] = block
            start += len(block)
    return vectors if len(distinct) == len(sentences) else vectors[row_of]


@contextmanager
def _bar(description: str, total: int, shown: bool, done: int = 0) -> Iterator[Bar]:
    if not shown:
        yield Bar()
    else:
        with progress(description, total, "sentences", done) as bar:
            yield bar


def _distinct(sentences: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """The distinct sentences in order of first appearance, and for each sentence its place among them."""
    place: dict[str, int] = {}
    row_of = np.fromiter((place.setdefault(sentence, len(place)) for sentence in sentences), np.int64, len(sentences))
    return list(place), row_of


def encode_blocks(
    encoder: SentenceEncoder,
    blocks: Iterable[Sequence[str]],
    precision: str = "auto",
    batch_tokens: int | None = None,
    prompt_name: str | None = None,
    bar: Bar | None = None,
    prompt: str | None = None,
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
        ids, mask = _padded(block, rows, width, height, encoder.pad_id)
        vectors = encoder(ids.to(encoder.device), mask.to(encoder.device))  # (height, dim)
        parts.append(vectors[: len(rows)])
        orders.append(rows)
        bar.advance(len(rows))
    order = np.concatenate(orders)
    bar.advance(len(block.row_of) - len(order))
    sorted_vectors = torch.cat(parts).cpu().numpy()  # (distinct, dim); the only wait for a GPU
    distinct = np.empty_like(sorted_vectors)
    distinct[order] = sorted_vectors
    return distinct[block.row_of]  # (sentences, dim)


def _padded(
    block: _Tokens, rows: NDArray[np.int64], width: int, height: int, pad_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask of the sentences `rows`, both (height, width); rows beyond them repeat the last one."""
    rows = np.pad(rows, (0, height - len(rows)), mode="edge")
    ids, mask = padded(block.ids, block.starts[rows], block.lengths[rows], width, pad_id)
    return torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))
