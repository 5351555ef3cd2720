"""Vectors on disk: float32 `.npy` files, written by rows in place and read memory-mapped, of any size.

Rows are written with plain writes and not through a memory map: a full disk is then an error that can be told,
where a memory map ends the process with a bus error.
"""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.lib import format as npy
from numpy.typing import NDArray

from bertrelay.data.sentences import ReadBlock
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, sync_folder, write_error
from bertrelay.ledger import forget

FLOAT_BYTES = 4
CHECKED_AT_ONCE = 4096


def create_vectors(path: Path, rows: int, dim: int) -> None:
    """Makes a file of `rows` zero vectors of `dim` dimensions, and takes the disk space for it at once.

    Raises WorkError when there is no space, and RequestError when the folder may not be written.
    """
    try:
        with path.open("wb") as file:
            npy.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)})
            file.flush()
            _take_space(path, file.fileno(), file.tell() + rows * dim * FLOAT_BYTES)
            os.fsync(file.fileno())
    except OSError as error:
        raise write_error(path, error) from error


def _take_space(path: Path, descriptor: int, size: int) -> None:
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:  # macOS
            os.ftruncate(descriptor, size)
    except OSError:
        path.unlink()  # what was taken before the disk was full is given back
        raise


def open_vectors(path: Path) -> NDArray[np.float32]:
    """The vectors of `path`, float32 (rows, dim), memory-mapped and read-only; only what is touched is read.

    Raises RequestError when the file is not there, not float32 vectors, or shorter than its header says.
    """
    rows, dim, start = _read_header(path)
    expected, found = start + rows * dim * FLOAT_BYTES, path.stat().st_size
    if found < expected:
        raise RequestError(
            f"vectors: expected {expected:,} bytes for {rows:,} vectors of {dim} dimensions, "
            f"found {found:,} in {path}; the file is cut off: delete it and make it again"
        )
    if rows * dim == 0:  # nothing to map
        return np.zeros((rows, dim), np.float32)
    return np.memmap(path, np.float32, "r", offset=start, shape=(rows, dim))


def write_rows(path: Path, first_row: int, vectors: NDArray[np.float32]) -> None:
    """Writes `vectors` (n, dim) from row `first_row` on, and returns when they are on the disk.

    Raises WorkError when the disk is full.
    """
    rows, dim, start = _read_header(path)
    if vectors.shape[1:] != (dim,) or first_row + len(vectors) > rows:
        raise ValueError(f"{vectors.shape} vectors at row {first_row} do not fit ({rows}, {dim})")
    try:
        with path.open("r+b") as file:
            file.seek(start + first_row * dim * FLOAT_BYTES)
            file.write(np.ascontiguousarray(vectors, dtype="<f4").data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise write_error(path, error) from error


def not_finite_row(vectors: NDArray[np.floating]) -> int | None:
    """The first row of `vectors` (n, dim) that holds a NaN or an infinity; None where all are finite."""
    for start in range(0, len(vectors), CHECKED_AT_ONCE):
        odd = np.flatnonzero(~np.isfinite(vectors[start : start + CHECKED_AT_ONCE]).all(axis=1))
        if len(odd):
            return start + int(odd[0])
    return None


def _read_header(path: Path) -> tuple[int, int, int]:
    """Rows, dimensions, and the byte where the first vector begins."""
    try:
        with path.open("rb") as file:
            npy.read_magic(file)
            shape, by_column, dtype = npy.read_array_header_1_0(file)
            start = file.tell()
    except FileNotFoundError as error:
        raise RequestError(f"vectors: expected a .npy file, found none at {path}") from error
    except (OSError, ValueError, SyntaxError) as error:
        raise RequestError(f"vectors: expected a .npy file, found something else in {path}") from error
    if len(shape) != 2 or by_column or dtype != np.dtype("<f4"):
        raise RequestError(f"vectors: expected float32 vectors by rows, found {dtype} of shape {shape} in {path}")
    return int(shape[0]), int(shape[1]), start


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
        raise write_error(output, error) from error


def _write_parquet(filling: Path, output: Path, read_block: ReadBlock) -> None:
    """Columns `text` and `vector`, a row group for every block."""
    vectors = open_vectors(filling)
    rows, dim = vectors.shape
    schema = pa.schema({"text": pa.string(), "vector": pa.list_(pa.float32(), dim)})
    with atomic_write(output) as writing, pq.ParquetWriter(writing, schema, use_dictionary=["text"]) as writer:
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
