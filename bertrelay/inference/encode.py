"""Encodes many sentences, in memory or block by block, with any encoder that tokenizes and computes batches.

The next block is tokenized while the network computes this one. In a block equal sentences are computed once, and
sentences of like length share a batch, so that little of it is padding.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

import bertrelay.progress
from bertrelay.checks import check_count, list_texts
from bertrelay.data.tables import BLOCK_SENTENCES
from bertrelay.data.tokens import pad_rows
from bertrelay.data.vectors import Vectors, check_finite_rows
from bertrelay.device import resolve_precision, to_device
from bertrelay.inference.batches import Network, compute_blocks, fill_batch, sorted_batches
from bertrelay.progress import Bar


class Encodes(Network, Protocol):
    """An encoder as `encode` needs it; `bertrelay.SentenceEncoder` is one.

    dim: of its vectors. max_tokens: the longest input, special tokens included. pad_id: of padding.
    """

    max_tokens: int
    pad_id: int

    @property
    def dim(self) -> int: ...

    def text_before(self, prompt_name: str | None = None, prompt: str | None = None) -> str:
        """Gives the text that precedes each sentence."""

    def prompt_tokens(self, prompt: str) -> int:
        """Counts the first tokens that the pooling leaves out of sentences after `prompt`."""

    def tokenize(self, sentences: Sequence[str]) -> list[list[int]]:
        """Gives the ids of each sentence, special tokens included, cut to `max_tokens`."""

    def __call__(self, *inputs: Any) -> Any:
        """Computes the vectors of a batch: ids and mask (batch, tokens), prompt_tokens -> float32 (batch, dim)."""


class EncodingOptions(TypedDict, total=False):
    """Options of encoding.

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
    encoder: Encodes,
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
    sentences = list_texts(sentences, "encode")
    distinct, row_of = _distinct(sentences)
    blocks = (distinct[start : start + BLOCK_SENTENCES] for start in range(0, len(distinct), BLOCK_SENTENCES))
    vectors, start = np.empty((len(distinct), encoder.dim), np.float32), 0
    with bertrelay.progress.progress("encoding", len(distinct), "sentences", shown=progress) as bar:
        for block in encode_blocks(encoder, blocks, bar, **options):
            vectors[start : start + len(block)] = block
            start += len(block)
    return vectors if len(distinct) == len(sentences) else vectors[row_of]


def _distinct(sentences: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Lists the distinct sentences in order of first appearance, and the row among them of each sentence.

    ["b", "a", "b"] -> ["b", "a"], [0, 1, 0]
    """
    rows: dict[str, int] = {}
    row_of = np.fromiter((rows.setdefault(sentence, len(rows)) for sentence in sentences), np.int64, len(sentences))
    return list(rows), row_of


def encode_blocks(
    encoder: Encodes,
    blocks: Iterable[Sequence[str]],
    bar: Bar | None = None,
    *,
    prompt_name: str | None = None,
    prompt: str | None = None,
    precision: str | None = None,
    batch_tokens: int | None = None,
    batch_size: int | None = None,
) -> Iterator[Vectors]:
    """Yields the vectors of each block of sentences, float32 (n, dim); another thread reads `blocks`, one ahead."""
    check_count("batch_size", batch_size)
    bar = bar or Bar()
    text_before = encoder.text_before(prompt_name, prompt)
    tokenized = (_tokenize(encoder, text_before, sentences) for sentences in blocks)
    prompt_tokens = encoder.prompt_tokens(text_before)
    compute = partial(compute_block, encoder, bar=bar, batch_size=batch_size, prompt_tokens=prompt_tokens)
    resolved = resolve_precision(precision, encoder.device)
    return compute_blocks(encoder, tokenized, lambda block: len(block.ids), compute, resolved, batch_tokens)


def check_finite(encoder: Encodes, vectors: Vectors, name_row: Callable[[int], str], first: int = 0) -> None:
    """Raises WorkError, naming the model and the sentence, unless all `vectors` (n, dim) of `encoder` are finite.

    name_row: names the sentence of a row in the error; `first` is the row of the first vector.
    """
    check_finite_rows(vectors, getattr(encoder.backbone, "name_or_path", None), lambda row: name_row(first + row))


class TokenBlock(NamedTuple):
    """The tokens of a block's distinct sentences, end to end, and the row among these of each sentence of the block."""

    ids: NDArray[np.int64]  # (all tokens,)
    starts: NDArray[np.int64]  # (distinct,)
    lengths: NDArray[np.int64]  # (distinct,)
    row_of: NDArray[np.int64]  # (sentences,)

    @classmethod
    def of_rows(cls, ids: Sequence[Sequence[int]], row_of: NDArray[np.int64] | None = None) -> "TokenBlock":
        """Makes the block of tokenized sentences; without `row_of` each is a sentence of the block."""
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        flat = np.fromiter(chain.from_iterable(ids), np.int64, int(lengths.sum()))
        row_of = np.arange(len(ids)) if row_of is None else row_of
        return cls(flat, np.cumsum(lengths) - lengths, lengths, row_of)


def _tokenize(encoder: Encodes, prompt: str, sentences: Sequence[str]) -> TokenBlock:
    distinct, row_of = _distinct(sentences)
    ids = encoder.tokenize([prompt + sentence for sentence in distinct] if prompt else distinct)
    return TokenBlock.of_rows(ids, row_of)


def compute_block(
    encoder: Encodes,
    block: TokenBlock,
    batch_tokens: int,
    bar: Bar | None = None,
    batch_size: int | None = None,
    prompt_tokens: int = 0,
) -> Vectors:
    """Computes the vectors of a block, (sentences, dim). A GPU is given its next batch before it is done with this."""
    if not len(block.row_of):
        return np.empty((0, encoder.dim), np.float32)
    bar = bar or Bar()
    computed_vectors, order = list[torch.Tensor](), list[NDArray[np.int64]]()
    for rows, width, height in sorted_batches(block.lengths, batch_tokens, encoder.max_tokens, batch_size):
        filled = fill_batch(rows, height)
        ids, mask = pad_rows(block.ids, block.starts[filled], block.lengths[filled], width, encoder.pad_id)
        inputs = (to_device(torch.from_numpy(array.astype(np.int64)), encoder.device) for array in (ids, mask))
        vectors = encoder(*inputs, prompt_tokens)  # (height, dim)
        computed_vectors.append(vectors[: len(rows)])
        order.append(rows)
        bar.advance(len(rows))
    bar.advance(len(block.row_of) - len(block.lengths))
    distinct = np.empty((len(block.lengths), encoder.dim), np.float32)
    distinct[np.concatenate(order)] = torch.cat(computed_vectors).cpu().numpy()  # one wait for the device
    return distinct[block.row_of]  # (sentences, dim)
