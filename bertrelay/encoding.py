"""Many sentences to vectors: a list in memory, or a file of any size written in blocks that survive a kill.

The next block is tokenized while the model computes this one; in a block equal sentences are computed once, and
sentences of like length stand together, so that little of a batch is padding.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError, WorkError
from bertrelay.fingerprint import fingerprint
from bertrelay.hardware import autocast, resolve_precision
from bertrelay.ledger import forget, open_ledger
from bertrelay.progress import Bar, progress
from bertrelay.records import Table, read
from bertrelay.stage import World
from bertrelay.vectors import create_vectors, not_written, open_vectors, write_rows

BLOCK_SENTENCES = 8_192
CPU_BATCH_TOKENS = 2_048  # as much as stays in the caches; more is slower
GPU_BATCH_TOKENS = 65_536
NO_MATTER = {"transformers_version", "_name_or_path", "dtype", "architectures"}
"""What a network's config says and its vectors do not depend on."""

Vectors = NDArray[np.float32]


def encode(
    encoder: SentenceEncoder,
    sentences: Sequence[str],
    *,
    precision: str = "auto",
    batch_tokens: int | None = None,
    prompt_name: str | None = None,
    progress: bool = False,
) -> Vectors:
    """Vectors of `sentences`, float32 (n, dim), row i for sentence i; equal sentences are computed once.

    batch_tokens: the most tokens in a batch, padding included; chosen by the device when not given.
    prompt_name: which of the model's prompts stands before each sentence; without one, the model's default.
    Raises RequestError when `sentences` is one string, or holds something that is none.
    """
    _check_are_sentences(sentences)
    sentences = list(sentences)
    distinct, row_of = _distinct(sentences)
    vectors = np.empty((len(distinct), encoder.dim), np.float32)
    blocks = (distinct[start : start + BLOCK_SENTENCES] for start in range(0, len(distinct), BLOCK_SENTENCES))
    with _bar("encoding", len(distinct), shown=progress) as bar:
        start = 0
        for block in encode_blocks(encoder, blocks, precision, batch_tokens, prompt_name, bar):
            vectors[start : start + len(block)] = block
            start += len(block)
    return vectors if len(distinct) == len(sentences) else vectors[row_of]


def _check_are_sentences(sentences: Sequence[str]) -> None:
    if isinstance(sentences, str | bytes):
        raise RequestError("encode: expected a list of sentences, found one string; write [sentence]")
    odd = next(
        ((place, type(text).__name__) for place, text in enumerate(sentences) if not isinstance(text, str)), None
    )
    if odd is not None:
        raise RequestError(f"encode: expected text, found {odd[1]} at position {odd[0]}")


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
) -> Iterator[Vectors]:
    """For each block of sentences its vectors, float32 (n, dim); `blocks` is read from another thread, one ahead."""
    precision, prompt, bar = resolve_precision(precision), encoder.prompts.text(prompt_name), bar or Bar()
    batch_tokens = batch_tokens or (CPU_BATCH_TOKENS if encoder.device.type == "cpu" else GPU_BATCH_TOKENS)
    tokenized = (_tokenize(encoder, prompt, sentences) for sentences in blocks)
    with ThreadPoolExecutor(1, "tokenizer") as ahead:
        waiting = ahead.submit(next, tokenized, None)
        while (block := waiting.result()) is not None:
            waiting = ahead.submit(next, tokenized, None)
            with _computing(encoder, precision):
                vectors = _compute(encoder, block, batch_tokens, bar)
            yield vectors


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


@contextmanager
def _computing(encoder: SentenceEncoder, precision: str) -> Iterator[None]:
    """Without gradients or dropout, in `precision`. One autocast for many batches casts each weight once."""
    was_training = encoder.training
    encoder.eval()
    try:
        with torch.inference_mode(), autocast(encoder.device, precision):
            yield
    finally:
        encoder.train(was_training)


def _compute(encoder: SentenceEncoder, block: _Tokens, batch_tokens: int, bar: Bar) -> Vectors:
    order = np.argsort(-block.lengths, kind="stable")  # longest first: if memory is short, it shows at once
    parts = []
    for rows in _batches(order, block.lengths, batch_tokens):
        ids, mask = _padded(block, rows, encoder.pad_id)
        parts.append(encoder(ids.to(encoder.device), mask.to(encoder.device)))  # (batch, dim)
        bar.advance(len(rows))
    bar.advance(len(block.row_of) - len(order))
    sorted_vectors = torch.cat(parts).cpu().numpy()  # (distinct, dim); the only wait for a GPU
    vectors = np.empty_like(sorted_vectors)
    vectors[order] = sorted_vectors
    return vectors[block.row_of]  # (sentences, dim)


def _batches(order: NDArray[np.int64], lengths: NDArray[np.int64], batch_tokens: int) -> Iterator[NDArray[np.int64]]:
    start = 0
    while start < len(order):
        count = max(1, batch_tokens // int(lengths[order[start]]))
        yield order[start : start + count]
        start += count


def _padded(block: _Tokens, rows: NDArray[np.int64], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask of the sentences `rows`, both (batch, tokens)."""
    places = np.arange(block.lengths[rows].max())  # (tokens,)
    mask = places < block.lengths[rows, None]  # (batch, tokens)
    ids = np.full(mask.shape, pad_id, np.int64)
    ids[mask] = block.ids[(block.starts[rows, None] + places)[mask]]
    return torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))


def fill_vectors(
    encoder: SentenceEncoder,
    read_block: Callable[[int, int], list[str]],
    rows: int,
    path: Path,
    key: str,
    *,
    precision: str = "auto",
    batch_tokens: int | None = None,
    world: World = World(),  # noqa: B008  (frozen)
    description: str = "encoding",
) -> None:
    """Fills the vector file at `path` (`bertrelay.vectors`): row i for sentence i, block by block, resumable.

    read_block: (first, end) -> the sentences of these rows; asked in rising order, from one thread.
    key: what decides the vectors besides precision, such as digests of model and text; another one begins again.
    world: process r of w fills the blocks r::w, and returns when *its* blocks are on the disk.
    """
    precision = resolve_precision(precision)
    holds = {"key": key, "precision": precision, "rows": rows, "dim": encoder.dim, "block": BLOCK_SENTENCES}
    blocks = -(-rows // BLOCK_SENTENCES)
    ledger = open_ledger(path, holds, blocks, lambda: create_vectors(path, rows, encoder.dim))
    spans = {block: _span(block, rows) for block in range(world.rank, blocks, world.size)}
    left = [block for block in ledger.waiting() if block in spans]
    texts = (read_block(spans[block].start, spans[block].stop) for block in left)
    total = sum(map(len, spans.values()))
    done = total - sum(len(spans[block]) for block in left)
    with progress(description, total, "sentences", done) as bar:
        computed = encode_blocks(encoder, texts, precision, batch_tokens, None, bar)
        for block, vectors in zip(left, computed, strict=True):
            write_rows(path, spans[block].start, vectors)
            ledger.mark(block)


def _span(block: int, rows: int) -> range:
    """The rows of a block."""
    return range(block * BLOCK_SENTENCES, min((block + 1) * BLOCK_SENTENCES, rows))


def encode_file(
    encoder: SentenceEncoder,
    table: Table,
    output: Path,
    *,
    precision: str = "auto",
    batch_tokens: int | None = None,
    world: World = World(),  # noqa: B008  (frozen)
) -> int:
    """Writes the vector of each record of `table`, row i for record i, as `.npy` or `.parquet` (columns text, vector).

    Killed and called again, it goes on at the first block that is not done. Returns the number of rows.
    Several processes need torch.distributed, by which they wait for one another before the file is finished.
    """
    if output.suffix not in (".npy", ".parquet"):
        raise RequestError(f"encode: expected an output that ends in .npy or .parquet, found {output}")
    rows, source = _survey(table)
    key = fingerprint({"model": encoder_digest(encoder), "source": source})
    filling = output.with_name(output.name + ".partial")
    read_block = _block_reader(table)
    fill_vectors(encoder, read_block, rows, filling, key, precision=precision, batch_tokens=batch_tokens, world=world)
    _wait_for_all()
    if world.is_main:
        _finish(filling, output, table, rows)
    _wait_for_all()
    return rows


def encoder_digest(encoder: SentenceEncoder) -> str:
    """sha256 of all that decides an encoder's vectors: weights, tokenizer, pooling, what comes after, prompts."""
    digest = hashlib.sha256()
    for name, weight in sorted(encoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().numpy().data)
    digest.update(encoder.tokenizer.backend_tokenizer.to_str().encode())
    network = {name: value for name, value in encoder.backbone.config.to_dict().items() if name not in NO_MATTER}
    return fingerprint({"weights": digest.hexdigest(), "network": network, "layout": repr(encoder.layout)})


def _texts(table: Table) -> Iterator[str]:
    for record in read(table, [0] if table.path and table.file_format == "lines" else ["text"]):
        if len(record.values) != 1 or not isinstance(record.values[0], str):
            raise RequestError(
                f"encode: expected one column of text, found {len(record.values)} columns and "
                f"{type(record.values[0]).__name__} at {record.file}, line {record.line:,}"
            )
        yield record.values[0]


def _survey(table: Table) -> tuple[int, str]:
    """How many sentences `table` holds, and the sha256 of them."""
    rows, digest = 0, hashlib.sha256()
    for text in _texts(table):
        data = text.encode()
        rows += 1
        digest.update(len(data).to_bytes(8))
        digest.update(data)
    return rows, digest.hexdigest()


def _block_reader(table: Table) -> Callable[[int, int], list[str]]:
    """Reads blocks of `table` in rising order in one pass, stepping over those that nobody asks for."""
    texts, place = _texts(table), 0

    def read_block(first: int, end: int) -> list[str]:
        nonlocal place
        deque(islice(texts, first - place), maxlen=0)
        block, place = list(islice(texts, end - first)), end
        if len(block) != end - first:
            raise WorkError(f"encode: {table.name} became shorter while it was read; run again")
        return block

    return read_block


def _wait_for_all() -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()


def _finish(filling: Path, output: Path, table: Table, rows: int) -> None:
    """Turns the filled vectors into the file that was asked for."""
    try:
        if output.suffix == ".parquet":
            _write_parquet(filling, output, table, rows)
            filling.unlink()
        else:
            filling.replace(output)
        forget(filling)
    except OSError as error:
        raise not_written(output, error) from error


def _write_parquet(filling: Path, output: Path, table: Table, rows: int) -> None:
    vectors, read_block = open_vectors(filling), _block_reader(table)
    dim = vectors.shape[1]
    schema = pa.schema({"text": pa.string(), "vector": pa.list_(pa.float32(), dim)})
    writing = output.with_name(output.name + ".writing")
    with pq.ParquetWriter(writing, schema) as writer:
        for first in range(0, rows, BLOCK_SENTENCES):
            end = min(first + BLOCK_SENTENCES, rows)
            column = pa.FixedSizeListArray.from_arrays(pa.array(vectors[first:end].reshape(-1)), dim)
            writer.write_table(pa.table([pa.array(read_block(first, end), pa.string()), column], schema))
    writing.replace(output)
