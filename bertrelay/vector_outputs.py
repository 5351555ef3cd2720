"""The file that vectors are asked for in, `.npy` or Parquet, whole or not there."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bertrelay.files import sync_folder, whole_file
from bertrelay.ledger import forget
from bertrelay.outputs import not_written
from bertrelay.sentence_files import ReadBlock
from bertrelay.vectors import open_vectors

SUFFIXES = (".npy", ".parquet")
ROWS_AT_ONCE = 8_192


def filling_of(output: Path) -> Path:
    """Where the vectors stand until `output` is written: a `.npy` file beside it, which a kill leaves there."""
    return output.with_name(output.name + ".partial")


def finish(output: Path, read_block: ReadBlock) -> None:
    """Turns the filled vectors into `output`. They stay until it stands there whole, so that a kill loses none."""
    filling = filling_of(output)
    try:
        if output.suffix == ".parquet":
            _write_parquet(filling, output, read_block)
            filling.unlink()
        else:
            filling.replace(output)
            sync_folder(output.parent)
        forget(filling)
    except OSError as error:
        raise not_written(output, error) from error


def _write_parquet(filling: Path, output: Path, read_block: ReadBlock) -> None:
    """Columns `text` and `vector`, a row group for every block."""
    vectors = open_vectors(filling)
    rows, dim = vectors.shape
    schema = pa.schema({"text": pa.string(), "vector": pa.list_(pa.float32(), dim)})
    with whole_file(output) as writing, pq.ParquetWriter(writing, schema, use_dictionary=["text"]) as writer:
        for first in range(0, rows, ROWS_AT_ONCE):
            end = min(first + ROWS_AT_ONCE, rows)
            column = pa.FixedSizeListArray.from_arrays(pa.array(vectors[first:end].reshape(-1)), dim)
            writer.write_table(pa.table([pa.array(read_block(first, end), pa.string()), column], schema))


def shape_of(output: Path) -> tuple[int, int]:
    """Sentences and dimensions of a finished file."""
    if output.suffix == ".npy":
        sentences, dim = open_vectors(output).shape
        return sentences, dim
    file = pq.ParquetFile(output)
    return file.metadata.num_rows, file.schema_arrow.field("vector").type.list_size
