"""The vectors of a Parquet dataset of any size, written as one: on this machine or in an object store."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Unpack

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bertrelay.cache import Cache
from bertrelay.checks import check_choice
from bertrelay.compute.engine import LOCAL, Engine
from bertrelay.data.parquet import ROW, ParquetInput, check_outside
from bertrelay.data.shards import Compute, Span
from bertrelay.data.vectors import DTYPES, Stored, stored_columns
from bertrelay.device import default_device
from bertrelay.inference.batches import computed_precision
from bertrelay.inference.dataset_output import fill_dataset
from bertrelay.inference.encode import EncodingOptions
from bertrelay.inference.encode_files import EncodedFile
from bertrelay.inference.encode_shards import encoder_digest, on_cpu, prompt_before, stored_blocks
from bertrelay.inputs import unchanged_inputs
from bertrelay.model.encoder import SentenceEncoder, open_encoder
from bertrelay.model.graph import GraphNetwork
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, on_main
from bertrelay.progress import Bar


@unchanged_inputs()
def encode_dataset(
    model: SentenceEncoder | str | Path,
    source: str | Path,
    output: str | Path,
    *,
    column: str = "text",
    keep: Sequence[str] = (),
    cache: Cache | None = None,
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
    check_outside(output, source)
    inputs = on_main(lambda: ParquetInput(source, [column], keep, ["vector"]), process_group)
    encoder = open_encoder(model, cache)
    width = stored_columns(encoder.dim, vectors)
    vector = pa.field("vector", pa.list_(pa.from_numpy_dtype(DTYPES[vectors]), width))
    with where.connected():
        precision = where.precision(options.get("precision"), encoder.device, process_group)
        options = {**options, "precision": precision}
        manifest: dict[str, object] = {
            "model": encoder_digest(encoder),
            "source": inputs.digest,
            "precision": precision,
            "prompt": prompt_before(encoder, options),
            "vectors": vectors,
        }
        given = encoder if where.is_local else on_cpu(encoder)
        written = fill_dataset(
            output,
            inputs.spans,
            [*inputs.schema, vector],
            manifest,
            partial(_start, given, inputs, vectors, options, is_sent=not where.is_local),
            description="encoding",
            unit="sentences",
            process_group=process_group,
            engine=where,
            overwrite=overwrite,
        )
    return EncodedFile(
        written.rows, encoder.dim, written.rows_per_second, computed_precision(encoder.backbone, precision)
    )


def _start(
    encoder: SentenceEncoder, inputs: ParquetInput, stored: Stored, options: EncodingOptions, *, is_sent: bool
) -> Compute:
    """What gives the tables of shards. is_sent: whether another process did so, where devices may be others."""
    if is_sent and not isinstance(encoder.backbone, GraphNetwork):
        encoder.to(default_device())

    def compute(spans: Sequence[Span], bar: Bar) -> Iterator[Iterator[pa.Table]]:
        blocks = (
            (block, block[ROW][0].as_py(), block[inputs.texts[0]].to_pylist())
            for span in spans
            for block in inputs.blocks(span)
        )
        encoded = stored_blocks(encoder, blocks, lambda row: f"row {row:,}", stored, options, bar)
        return (_of_shard(span, encoded) for span in spans)

    return compute


def _of_shard(span: Span, encoded: Iterator[tuple[pa.Table, NDArray[np.generic]]]) -> Iterator[pa.Table]:
    """The tables of a shard; asks for none of the next, whose text may be unusable when this one is complete."""
    rows = 0
    while rows < span.size:
        block, vectors = next(encoded)
        rows += len(block)
        yield _with_vectors(block, vectors)


def _with_vectors(block: pa.Table, vectors: NDArray[np.generic]) -> pa.Table:
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    return block.append_column("vector", column)
