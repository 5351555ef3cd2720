"""The vectors of many sentences, written to a file of any size in blocks that survive a kill."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from bertrelay.encoder import SentenceEncoder
from bertrelay.encoding import BLOCK_SENTENCES, encode_blocks
from bertrelay.errors import RequestError, WorkError
from bertrelay.fingerprint import fingerprint
from bertrelay.hardware import resolve_precision
from bertrelay.ledger import forget, open_ledger
from bertrelay.progress import progress
from bertrelay.records import Table, read
from bertrelay.stage import World
from bertrelay.vectors import create_vectors, not_written, open_vectors, write_rows

NO_MATTER = {"transformers_version", "_name_or_path", "dtype", "architectures"}
"""What a network's config says and its vectors do not depend on."""


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
