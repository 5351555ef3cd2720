"""The vectors of a Parquet dataset of any size, written as one: on this machine or in an object store."""

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Unpack

import pyarrow as pa

from bertrelay.data.datasets import ROW, DatasetShards, Location, ParquetInput, is_lance
from bertrelay.data.lance import key_of, unfinished, write_lance
from bertrelay.data.shards import Compute, Span
from bertrelay.data.vectors import DTYPES, Stored, quantized, stored_columns
from bertrelay.distributed import SINGLE_PROCESS, ProcessGroup, on_main
from bertrelay.encode_files import EncodedFile
from bertrelay.encode_shards import encoder_digest
from bertrelay.encoder import SentenceEncoder, as_encoder
from bertrelay.encoding import EncodingOptions, check_finite, encode_blocks
from bertrelay.engine import LOCAL, Engine
from bertrelay.errors import RequestError, check_choice
from bertrelay.fingerprint import fingerprint
from bertrelay.hardware import default_device
from bertrelay.progress import Bar


def encode_dataset(
    model: SentenceEncoder | str | Path,
    source: str,
    output: str,
    *,
    column: str = "text",
    keep: Sequence[str] = (),
    cache: Path | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
    engine: Engine | str = LOCAL,
    vectors: Stored = "float32",
    overwrite: bool = False,
    **options: Unpack[EncodingOptions],
) -> EncodedFile:
    """Writes the vector of each text of the Parquet files of `source` to the dataset `output`, with `row` and `keep`.

    source, output: folders, or addresses that pyarrow or fsspec opens, such as `s3://bucket/folder`. A shard has row
        groups of one file, 100,000 rows or a few more; processes and workers read those of their own shards alone.
        An output whose name ends in `.lance` is a dataset of Lance, which LanceDB opens.
    overwrite: replace a finished dataset of another model or input, which is an error otherwise.
    Killed and called again it resumes at the first shard that is missing. Other arguments are those of `encode_file`.
    Raises as `encode_file` does, and for a store that refuses.
    """
    check_choice("vectors", vectors, tuple(DTYPES))
    where = Engine.of(engine, process_group)
    inputs = on_main(lambda: ParquetInput(source, column, keep), process_group)
    encoder = as_encoder(model, cache)
    width = stored_columns(encoder.dim, vectors)
    vector = pa.field("vector", pa.list_(pa.from_numpy_dtype(DTYPES[vectors]), width))
    schema = pa.schema([pa.field(ROW, pa.int64()), *inputs.schema, vector])
    with where.connected():
        precision = where.precision(options.get("precision", "auto"), encoder.device, process_group)
        options = {**options, "precision": precision}
        manifest: dict[str, object] = {
            "model": encoder_digest(encoder),
            "source": inputs.digest,
            "precision": precision,
        }
        prompt_name, prompt = options.get("prompt_name"), options.get("prompt")
        manifest |= {"prompt": encoder.prompts.text(prompt_name) if prompt is None else prompt, "vectors": vectors}
        as_lance, key, rate = is_lance(output), fingerprint(manifest), None
        shards = DatasetShards(unfinished(output) if as_lance else output, inputs.spans, schema, process_group, where)

        def is_done() -> bool:
            return _is_written(output, key, overwrite) if as_lance else shards.is_finished(manifest)

        if on_main(is_done, process_group):  # a finished output is not written, so it is not locked
            return EncodedFile(inputs.rows, encoder.dim, None)
        with shards.locked():
            if not on_main(lambda: shards.is_finished(manifest), process_group):
                shards.begin(manifest, overwrite or as_lance)
                start = partial(_start, encoder, inputs, vectors, options, is_sent=not where.is_local)
                rate = shards.fill(start, "encoding", "sentences").rate
                on_main(shards.finish, process_group)
            if as_lance:
                on_main(lambda: _move_to_lance(Location(shards.location), output, key), process_group)
    return EncodedFile(inputs.rows, encoder.dim, rate)


def _is_written(output: str, key: str, overwrite: bool) -> bool:
    """Whether the Lance dataset of this key is there. Raises RequestError for one of another, unless `overwrite`."""
    there, rows = key_of(output), Location(unfinished(output))
    if there not in (None, key) and not overwrite:
        raise RequestError(f"{output} is a finished dataset of another model or input; overwrite it, or name another")
    if there == key and rows.names():  # the call that wrote it was killed before it removed them
        _remove(rows)
    return there == key


def _remove(rows: Location) -> None:
    with rows.errors("removed"):
        rows.filesystem.delete_dir(rows.path())


def _move_to_lance(rows: Location, output: str, key: str) -> None:
    """Writes the finished shards to the Lance dataset `output`, then removes them."""
    write_lance(rows, output, key)
    _remove(rows)


def _start(
    encoder: SentenceEncoder, inputs: ParquetInput, stored: Stored, options: EncodingOptions, *, is_sent: bool
) -> Compute:
    """What gives the tables of shards. is_sent: whether another process did so, where devices may be others."""
    if is_sent:
        encoder.to(default_device())

    def compute(spans: Sequence[Span], bar: Bar) -> Iterator[Iterator[pa.Table]]:
        ahead: deque[tuple[int, pa.Table]] = deque()  # the blocks that are being encoded

        def texts() -> Iterator[list[str]]:
            for span in spans:
                for block in inputs.blocks(span):
                    ahead.append((span.first, block))
                    yield block[inputs.text].to_pylist()

        def tables() -> Iterator[tuple[int, pa.Table]]:
            for vectors in encode_blocks(encoder, texts(), bar, **options):
                first, block = ahead.popleft()
                check_finite(encoder, vectors, lambda row: f"row {row:,}", block[ROW][0].as_py())
                numbers = quantized(vectors, stored)
                column = pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), numbers.shape[1])
                yield first, block.append_column("vector", column)

        for _, group in groupby(tables(), lambda each: each[0]):
            yield (table for _, table in group)

    return compute
