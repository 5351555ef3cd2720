"""Vectors on disk: `.npy` files of any size, written in blocks and read memory-mapped, and Parquet.

Their numbers are float32, or quantized to fewer bits. Files are written with plain writes, not through a memory map:
a full disk is then an error that can be reported, where a memory map ends the process with a bus error.
"""

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from bertrelay.data.tables import BLOCK_ROWS
from bertrelay.errors import RequestError, WorkError
from bertrelay.files import atomic_write

Vectors = NDArray[np.float32]
ReadBlock = Callable[[int, int], list[str]]
"""(first, end) → the sentences of these rows; called in rising order, from one thread."""

SUFFIXES = (".npy", ".parquet")

Stored = Literal["float32", "int8", "binary"]
"""Storage of vectors: as they are, rounded to int8, or one bit of each dimension."""
FLOAT32 = np.dtype("<f4")
DTYPES: dict[Stored, np.dtype[np.generic]] = {
    "float32": FLOAT32,
    "int8": np.dtype(np.int8),
    "binary": np.dtype(np.uint8),
}
INT8_MAX = 127


def stored_columns(dim: int, stored: Stored) -> int:
    """The number of elements of a stored vector. Raises RequestError for bits that do not fill whole bytes."""
    if stored != "binary":
        return dim
    if dim % 8:
        raise RequestError(f"vectors: expected a multiple of 8 dimensions for binary, found {dim}; int8 takes any")
    return dim // 8


def quantized(vectors: Vectors, stored: Stored) -> NDArray[np.generic]:
    """Quantizes vectors (n, dim).

    int8: each vector times 127 / its largest absolute element, rounded: its direction, for cosines. `0.5 -1` becomes
        `64 -127`. Nothing depends on other vectors, and a zero vector stays zero.
    binary: 1 for each element above 0, packed eight to a byte, the first in the highest bit: uint8 (n, dim / 8), as
        `ubinary` of sentence-transformers and as FAISS reads them; the distance is the number of bits that differ.
    """
    if stored == "binary":
        return np.packbits(vectors > 0, axis=1)
    if stored == "int8":
        largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0)
        return np.rint(vectors * (INT8_MAX / np.where(largest > 0, largest, 1))).astype(np.int8)
    return vectors


def write_npy(
    path: Path, blocks: Iterable[NDArray[np.generic]], rows: int, dim: int, dtype: np.dtype[np.generic] = FLOAT32
) -> None:
    """Writes blocks of vectors, (n, dim) each, end to end as one `.npy` of shape (rows, dim).

    Allocates the disk space first. Raises OSError where it is lacking, WorkError unless the blocks have `rows` rows.
    """
    written = 0
    with path.open("wb") as file:
        npy.write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": (rows, dim)})
        file.flush()
        if hasattr(os, "posix_fallocate"):  # not on macOS
            os.posix_fallocate(file.fileno(), 0, file.tell() + rows * dim * dtype.itemsize)
        for block in blocks:
            written += len(block)
            file.write(np.ascontiguousarray(block, dtype).data)  # ndarray.tofile hides that a disk is full
    if written != rows:
        raise WorkError(f"{path}: expected {rows:,} vectors, found {written:,}; run the same command again")


def write_block(path: Path, vectors: NDArray[np.generic]) -> None:
    """Writes one block of vectors, (n, dim), as a `.npy` file."""
    rows, dim = vectors.shape
    write_npy(path, [vectors], rows, dim, vectors.dtype)


def write_array(path: Path, array: NDArray[np.generic]) -> None:
    """Writes a `.npy` file. `np.save` would hide a full disk behind another error."""
    with path.open("wb") as file:
        npy.write_array_header_1_0(file, npy.header_data_from_array_1_0(array))
        file.write(array.data)


def write_vectors(
    output: Path,
    blocks: Iterable[NDArray[np.generic]],
    rows: int,
    dim: int,
    read_block: ReadBlock,
    dtype: np.dtype[np.generic] = FLOAT32,
) -> None:
    """Writes blocks of vectors to `output` atomically: `.npy`, or `.parquet` with columns text and vector.

    read_block: (first, end) → the texts of these rows, read only for Parquet.
    """
    with atomic_write(output) as building:
        if output.suffix == ".npy":
            write_npy(building, blocks, rows, dim, dtype)
            return
        if output.suffix != ".parquet":
            raise RequestError(f"output: expected a .npy or .parquet file, found {output}")
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema, first = pa.schema({"text": pa.string(), "vector": pa.list_(pa.from_numpy_dtype(dtype), dim)}), 0
        with pq.ParquetWriter(building, schema, use_dictionary=["text"]) as writer:
            for block in blocks:  # one row group
                texts = read_block(first, first + len(block))
                vectors = pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), dim)
                writer.write_table(pa.table([pa.array(texts, pa.string()), vectors], schema))
                first += len(block)


def check_space(folder: Path, size: int) -> None:
    """Raises WorkError if the disk of `folder` has less than `size` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise WorkError(
            f"{folder}: expected {_in_units(size)} of free disk space, found {_in_units(free)}; free space or choose "
            "another place, then run again"
        )


def open_vectors(path: Path, dtype: np.dtype[np.generic] = FLOAT32) -> NDArray[Any]:
    """Opens the vectors of `path`, (rows, dim), memory-mapped and read-only.

    Raises RequestError for a file that does not exist, has another dtype, or is shorter than its header states.
    """
    try:
        vectors: NDArray[Any] = npy.open_memmap(path, mode="r")
    except FileNotFoundError as error:
        raise RequestError(f"vectors: expected a .npy file, found none at {path}") from error
    except (OSError, ValueError, SyntaxError) as error:
        raise RequestError(
            f"vectors: expected a .npy file, found something else or one that is cut off in {path}; make it again"
        ) from error
    if vectors.ndim != 2 or vectors.dtype != dtype or not vectors.flags.c_contiguous:
        raise RequestError(
            f"vectors: expected {dtype} vectors by rows, found {vectors.dtype} of shape {vectors.shape} in {path}"
        )
    return vectors


def vector_shape(output: Path, stored: Stored = "float32") -> tuple[int, int]:
    """Rows and dimensions of a finished `.npy` or Parquet file."""
    if output.suffix == ".npy":
        rows, columns = open_vectors(output, DTYPES[stored]).shape
    else:
        import pyarrow.parquet as pq

        file = pq.ParquetFile(output)
        rows, columns = file.metadata.num_rows, file.schema_arrow.field("vector").type.list_size
    return rows, columns * 8 if stored == "binary" else columns


def not_finite_row(vectors: NDArray[np.floating]) -> int | None:
    """The first row of `vectors` (n, dim) that has a NaN or an infinity; None where all are finite."""
    for start in range(0, len(vectors), BLOCK_ROWS):
        is_finite = np.isfinite(vectors[start : start + BLOCK_ROWS]).all(axis=1)
        if not is_finite.all():
            return start + int(np.flatnonzero(~is_finite)[0])
    return None


def check_finite_rows(
    values: NDArray[np.floating], model: str | None, name_row: Callable[[int], str], kind: str = "a vector"
) -> None:
    """Raises WorkError for a row of `values`, (n, dim), with a NaN or an infinity.

    model: its name, where it has one. name_row: row → the input it was computed from, for the error.
    kind: the row in words, `a score`.
    """
    if (row := not_finite_row(values)) is not None:
        raise WorkError(
            f"{model or 'the model'} gives {kind} that is not finite for {name_row(row)}. Check the model, or try "
            "precision fp32"
        )


def _in_units(size: int) -> str:
    """Formats a number of bytes: `1.5 GB`, `20.0 kB`."""
    unit, name = next(
        ((unit, name) for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if size >= unit), (1, "B")
    )
    return f"{size / unit:,.1f} {name}"
