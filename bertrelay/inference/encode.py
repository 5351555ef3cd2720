"""Many sentences to vectors, in memory or block by block.

The next block is tokenized while the model computes this one; in a block equal sentences are computed once, and
sentences of like length share a batch, so that little of it is padding.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, cycle
from typing import NamedTuple, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from bertrelay.checks import check_count, list_texts
from bertrelay.data.tokens import pad_rows
from bertrelay.data.vectors import Vectors, check_finite_rows
from bertrelay.device import resolve_precision, to_device
from bertrelay.inference.batches import computed, padded_rows, sorted_batches
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.progress import Bar
from bertrelay.progress import progress as progress_of

BLOCK_SENTENCES = 8_192
BLOCKS_OF_REPLICAS = (
    4  # for each of several devices, so that the batches of a block are many and all have about as many
)


class EncodingOptions(TypedDict, total=False):
    """How sentences are encoded.

    prompt_name: which of the model's prompts precedes each sentence; without one, the model's default.
    prompt: a text in place of one of these.
    precision: of the computation: `bf16`, `fp16`, `tf32`, `fp32`, or `auto`, the default, which is bf16 where the
        device computes in it.
    batch_tokens: the most tokens in a batch, padding included; chosen by the device when not given.
    batch_size: the most sentences in a batch; as many as `batch_tokens` allow when not given.
    """

    prompt_name: str | None
    prompt: str | None
    precision: str | None
    batch_tokens: int | None
    batch_size: int | None


def encode(
    encoder: SentenceEncoder,
    sentences: str | Iterable[str],
    *,
    progress: bool = False,
    replicas: Sequence[SentenceEncoder] = (),
    **options: Unpack[EncodingOptions],
) -> Vectors:
    """Vectors of `sentences`, float32 (n, dim), row i for sentence i; of one string its vector, (dim,).

    sentences: a string, or any iterable of strings, which is read through; equal ones are computed once.
    replicas: of the encoder on several devices, which compute in its place.
    options: see `EncodingOptions`.
    Raises RequestError for anything but sentences, such as a mapping or a data frame.
    """
    if isinstance(sentences, str):
        one: Vectors = encode(encoder, [sentences], replicas=replicas, **options)[0]
        return one
    sentences = list_texts(sentences, "encode")
    distinct, row_of = _distinct(sentences)
    size = BLOCK_SENTENCES * (BLOCKS_OF_REPLICAS * len(replicas) or 1)
    blocks = (distinct[start : start + size] for start in range(0, len(distinct), size))
    vectors, start = np.empty((len(distinct), encoder.dim), np.float32), 0
    with progress_of("encoding", len(distinct), "sentences", shown=progress) as bar:
        for block in encode_blocks(encoder, blocks, bar, replicas=replicas, **options):
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
    precision: str | None = None,
    batch_tokens: int | None = None,
    batch_size: int | None = None,
    replicas: Sequence[SentenceEncoder] = (),
) -> Iterator[Vectors]:
    """For each block of sentences its vectors, float32 (n, dim); `blocks` is read from another thread, one ahead."""
    if replicas:
        encoder = replicas[0]
    check_count("batch_size", batch_size)
    bar = bar or Bar()
    text_before = encoder.text_before(prompt_name, prompt)
    tokenized = (_tokenize(encoder, text_before, sentences) for sentences in blocks)
    prompt_tokens = encoder.prompt_tokens(text_before)

    def compute(block: _Tokens, batch_tokens: int) -> Vectors:
        return _compute(replicas or [encoder], block, batch_tokens, bar, batch_size, prompt_tokens)

    resolved = resolve_precision(precision, encoder.device)
    return computed(encoder, tokenized, lambda block: len(block.ids), compute, resolved, batch_tokens)


def check_finite(encoder: SentenceEncoder, vectors: Vectors, place: Callable[[int], str], first: int = 0) -> None:
    """Raises WorkError, naming the model and the sentence, unless all `vectors` (n, dim) of `encoder` are finite.

    place: what to call the sentence of a row; `first` is the row of the first vector.
    """
    check_finite_rows(vectors, encoder.backbone.name_or_path, lambda row: place(first + row))


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


def _compute(
    replicas: Sequence[SentenceEncoder],
    block: _Tokens,
    batch_tokens: int,
    bar: Bar,
    batch_size: int | None,
    prompt_tokens: int,
) -> Vectors:
    """The vectors of a block. Batches go to the replicas in turn: a GPU is given its next one before it is done."""
    if not len(block.row_of):
        return np.empty((0, replicas[0].dim), np.float32)
    max_tokens, pad_id = replicas[0].max_tokens, replicas[0].pad_id
    batches = sorted_batches(block.lengths, batch_tokens, max_tokens, batch_size)
    parts, orders = list[torch.Tensor](), list[NDArray[np.int64]]()
    for replica, (rows, width, height) in zip(cycle(replicas), batches, strict=False):
        filled = padded_rows(rows, height)
        ids, mask = pad_rows(block.ids, block.starts[filled], block.lengths[filled], width, pad_id)
        inputs = (to_device(torch.from_numpy(each.astype(np.int64)), replica.device) for each in (ids, mask))
        vectors = replica(*inputs, prompt_tokens)  # (height, dim)
        parts.append(vectors[: len(rows)])
        orders.append(rows)
        bar.advance(len(rows))
    used = range(min(len(replicas), len(parts)))
    order = np.concatenate([rows for turn in used for rows in orders[turn :: len(replicas)]])
    bar.advance(len(block.row_of) - len(order))
    on_host = [torch.cat(parts[turn :: len(replicas)]).cpu() for turn in used]  # one wait for each GPU
    sorted_vectors = torch.cat(on_host).numpy()
    distinct = np.empty_like(sorted_vectors)  # (distinct, dim)
    distinct[order] = sorted_vectors
    return distinct[block.row_of]  # (sentences, dim)
