"""Vectors of any number of sentences, computed in shards that survive a kill and that processes share."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from bertrelay.compute.engine import LOCAL_ENGINE, Engine
from bertrelay.data.shards import Compute, Filled, Shards, Span, locked_output
from bertrelay.data.vectors import (
    DTYPES,
    ReadBlock,
    Stored,
    check_space,
    open_vectors,
    quantized,
    stored_columns,
    write_block,
    write_vectors,
)
from bertrelay.device import default_device
from bertrelay.files import read_json, refuse_symlink, write_json
from bertrelay.fingerprint import fingerprint
from bertrelay.inference.encode import BLOCK_SENTENCES, EncodingOptions, check_finite, encode_blocks
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.graph import GraphNetwork
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, check_shared, on_main, wait_for_all
from bertrelay.progress import Bar

AnyBlock = TypeVar("AnyBlock")

UNUSED_CONFIG = {"transformers_version", "_name_or_path", "dtype", "architectures"}
"""Keys of a network's config that its vectors do not depend on."""

SMALLEST_SHARD = 2_048  # sentences; fewer would leave too few of like length for one batch
MOST_SHARDS = 64
MANIFEST = ".manifest.json"  # beside a file of vectors


def fill_vectors(
    encoder: SentenceEncoder,
    read_block: ReadBlock,
    rows: int,
    path: Path,
    key: str,
    *,
    process_group: ProcessGroup = SINGLE_PROCESS,
    engine: Engine = LOCAL_ENGINE,
    description: str = "encoding",
    place: Callable[[int], str] = lambda row: f"sentence {row + 1:,}",
    **options: Unpack[EncodingOptions],
) -> int:
    """Sees that `path`, a `.npy` file, has the vectors of `rows` sentences: row i for sentence i, resumable.

    A manifest beside it describes what the vectors are of; another call with the same one computes nothing.

    read_block: (first, end) -> the sentences of these rows; called in this process from one thread, in rising order
        but for what a lost worker had.
    key: what decides the vectors besides prompt and precision, such as digests of model and text.
    process_group: each of several processes computes its share; all return when the file is whole.
    engine: in place of several processes a cluster, to whose workers the sentences are sent.
    place: what an error calls the sentence of a row.
    Returns how many vectors were missing. Raises RequestError when the processes do not share the folder of `path`,
    and WorkError for a vector that is not finite.
    """
    check_shared(path.parent, process_group)
    kept = path.with_name(path.name + MANIFEST)
    with engine.connected(), locked_output(path, process_group, wait=True):
        given = encoder, read_block, rows, path, key, process_group, options, description, place, kept
        return fill_file(*given, engine=engine).size


def forget_manifest(path: Path) -> None:
    """Removes what `fill_vectors` keeps beside `path`, when the vectors are of use without it."""
    for suffix in (MANIFEST, ".lock"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    Shards(path, []).remove()


def fill_file(
    encoder: SentenceEncoder,
    read_block: ReadBlock,
    rows: int,
    output: Path,
    key: str,
    process_group: ProcessGroup,
    options: EncodingOptions,
    description: str = "encoding",
    place: Callable[[int], str] = lambda row: f"sentence {row + 1:,}",
    kept: Path | None = None,
    texts: ReadBlock | None = None,
    stored: Stored = "float32",
    engine: Engine = LOCAL_ENGINE,
) -> Filled:
    """Fills shards and writes `output` of them. The next texts are tokenized while the model computes.

    kept: where the manifest stays, so that an output of the same one is left as it is. texts: of a Parquet file.
    """
    dtype, columns = DTYPES[stored], stored_columns(encoder.dim, stored)
    size = min(BLOCK_SENTENCES, max(SMALLEST_SHARD, -(-rows // MOST_SHARDS)))
    spans = [Span(first, min(first + size, rows), min(size, rows - first)) for first in range(0, rows, size)]
    shards = Shards(output, spans, process_group, suffix=".npy", write=write_block, engine=engine)
    precision = engine.precision(options.get("precision"), encoder.device, process_group)
    options = {**options, "precision": precision}
    manifest = {"key": key, "precision": precision, "rows": rows, "dim": encoder.dim, "block": size}
    if options.get("prompt_name") is not None or options.get("prompt") is not None:
        manifest["prompt"] = prompt_before(encoder, options)
    if stored != "float32":
        manifest["vectors"] = stored
    if kept and on_main(lambda: output.is_file() and read_json(kept) == manifest, process_group):
        return Filled(0, 0.0)
    if kept and process_group.is_main:
        refuse_symlink(output)
        kept.unlink(missing_ok=True)
        output.unlink(missing_ok=True)  # of another model or input
    shards.begin(manifest)

    if process_group.is_main:
        missing = sum(spans[number].size for number in shards.missing())
        check_space(shards.folder, (rows + missing) * columns * dtype.itemsize)
    given = encoder if engine.is_local else on_cpu(encoder)
    start = partial(_start, given, place, stored, options, is_sent=not engine.is_local)

    def read(span: Span) -> tuple[int, Sequence[str]]:
        return span.first, read_block(span.first, span.end)

    filled = shards.fill(start, description, "sentences", read)
    if process_group.is_main:
        blocks = (open_vectors(path, dtype) for path in shards.complete())
        write_vectors(output, blocks, rows, columns, texts or read_block, dtype)
        if kept:
            write_json(kept, manifest)
        shards.remove()
    wait_for_all(process_group)
    return filled


def on_cpu(encoder: SentenceEncoder) -> SentenceEncoder:
    """The encoder as it is sent to workers, which may have no accelerator; the one of the caller stays where it is."""
    return encoder if encoder.device.type == "cpu" else deepcopy(encoder).to("cpu")


def prompt_before(encoder: SentenceEncoder, options: EncodingOptions) -> str:
    """The text that precedes each sentence."""
    return encoder.text_before(options.get("prompt_name"), options.get("prompt"))


def stored_blocks(
    encoder: SentenceEncoder,
    blocks: Iterable[tuple[AnyBlock, int, Sequence[str]]],
    place: Callable[[int], str],
    stored: Stored,
    options: EncodingOptions,
    bar: Bar,
) -> Iterator[tuple[AnyBlock, NDArray[np.generic]]]:
    """Of each block of sentences, which comes with the number of its first row, the vectors as they are stored.

    place: what an error calls the sentence of a row. Raises WorkError for a vector that is not finite.
    """
    waiting = deque[tuple[AnyBlock, int]]()  # the blocks that are read and not yet encoded

    def texts() -> Iterator[Sequence[str]]:
        for block, first, sentences in blocks:
            waiting.append((block, first))
            yield sentences

    for vectors in encode_blocks(encoder, texts(), bar, **options):
        block, first = waiting.popleft()
        check_finite(encoder, vectors, place, first)
        yield block, quantized(vectors, stored)


def _start(
    encoder: SentenceEncoder, place: Callable[[int], str], stored: Stored, options: EncodingOptions, *, is_sent: bool
) -> Compute:
    """What encodes blocks of sentences, each with its first row.

    is_sent: whether another process sent the encoder, where devices may be others.
    """
    if is_sent and not isinstance(encoder.backbone, GraphNetwork):
        encoder.to(default_device())

    def compute(blocks: Iterable[tuple[int, Sequence[str]]], bar: Bar) -> Iterator[NDArray[np.generic]]:
        numbered = ((first, first, sentences) for first, sentences in blocks)
        return (vectors for _, vectors in stored_blocks(encoder, numbered, place, stored, options, bar))

    return compute


def encoder_digest(encoder: SentenceEncoder) -> str:
    """sha256 of all that decides an encoder's vectors: weights, tokenizer, pooling, what comes after, prompts."""
    digest = hashlib.sha256()
    for name, weight in sorted(encoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)  # NumPy has no bfloat16
    digest.update(encoder.tokenizer.backend_tokenizer.to_str().encode())
    network = {name: value for name, value in encoder.backbone.config.to_dict().items() if name not in UNUSED_CONFIG}
    layout = replace(encoder.layout, similarity=None)  # how vectors are compared is not what they are
    cut = {} if encoder.truncate_dim is None else {"truncate_dim": encoder.truncate_dim}
    return fingerprint({"weights": digest.hexdigest(), "network": network, "layout": repr(layout), **cut})
