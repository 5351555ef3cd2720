"""The file that vectors are asked for in, `.npy` or Parquet: checked first, held by one process, whole or not there."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from bertrelay.errors import RequestError
from bertrelay.files import sync_folder, whole_file
from bertrelay.ledger import forget
from bertrelay.sentence_files import ReadBlock
from bertrelay.vectors import not_written, open_vectors

SUFFIXES = (".npy", ".parquet")
ROWS_AT_ONCE = 8_192


def check_output(output: Path, source: str | None = None, suffixes: Sequence[str] = SUFFIXES) -> None:
    """Raises RequestError for an output of no known kind, in no folder, or that is the `source` itself."""
    if output.suffix not in suffixes:
        raise RequestError(f"output: expected a file that ends in {' or '.join(suffixes)}, found {output}")
    if not output.parent.is_dir():
        raise RequestError(f"output: there is no folder {output.parent} to write {output.name} into; make it first")
    if output.is_dir():
        raise RequestError(f"output: expected a file, found the folder {output}; name a file in it")
    if source and output.exists() and Path(source).exists() and output.samefile(source):
        raise RequestError(f"output: {output} is the input itself; name another file")


def filling_of(output: Path) -> Path:
    """Where the vectors stand until `output` is written: a `.npy` file beside it, which a kill leaves there."""
    return output.with_name(output.name + ".partial")


@contextmanager
def held(output: Path) -> Iterator[None]:
    """Keeps `output` to this process; the system lets go of it even when the process is killed.

    Raises RequestError when another process writes it, or nobody may.
    """
    lock = FileLock(output.with_name(output.name + ".lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise RequestError(f"output: another process is writing {output}; wait for it, or name another file") from error
    except OSError as error:
        raise not_written(output, error) from error
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


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
