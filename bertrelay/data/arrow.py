"""Arrow files that are memory-mapped: sentences read by block or row, and columns of digests that stand for texts."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

DIGEST = pa.binary(16)
SENTENCE_SCHEMA = pa.schema({"sentence": pa.string()})

Mask = NDArray[np.bool_]


class Sentences:
    """Sentences of an Arrow file, its first column, mapped into memory and read block by block."""

    def __init__(self, path: Path) -> None:
        self._path, self._column = path, open_arrow(path).column(0)

    def __reduce__(self) -> tuple[type["Sentences"], tuple[Path]]:
        return Sentences, (self._path,)  # another process maps the file too

    def __len__(self) -> int:
        return len(self._column)

    def read(self, start: int, stop: int) -> list[str]:
        """Sentences `start` to `stop`, the last one not included."""
        sentences: list[str] = self._column.slice(start, max(stop - start, 0)).to_pylist()
        return sentences

    def select(self, mask: Mask) -> Iterator[dict[str, pa.Array]]:
        """Yields the sentences of `mask`, (sentences,), in blocks for `write_arrow` with SENTENCE_SCHEMA."""
        table = open_arrow(self._path)
        return select_rows(table, mask, {"sentence": table.column_names[0]})

    def lengths(self) -> NDArray[np.int32]:
        """Bytes of each sentence, (sentences,)."""
        lengths: NDArray[np.int32] = pc.binary_length(self._column).to_numpy()
        return lengths

    def at(self, rows: NDArray[np.integer]) -> list[str]:
        """The sentences of `rows`, (rows,), one by one: `take` would copy the whole column, and fail above 2 GiB."""
        return [self._column[row].as_py() for row in rows.tolist()]


def open_arrow(path: Path) -> pa.Table:
    """The table of an Arrow file, whose columns stay on disk."""
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def write_arrow(path: Path, schema: pa.Schema, blocks: Iterable[Mapping[str, Any]]) -> None:
    """Writes blocks of columns, name to values, as a file for `open_arrow`."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for block in blocks:
            writer.write_batch(pa.RecordBatch.from_pydict(block, schema))


def mask_of(rows: NDArray[np.integer], length: int) -> Mask:
    """True at `rows`, (length,)."""
    mask = np.zeros(length, bool)
    mask[rows] = True
    return mask


def select_rows(table: pa.Table, mask: Mask, columns: Mapping[str, str]) -> Iterator[dict[str, pa.Array]]:
    """Yields the rows of `mask`, (rows,), in blocks for `write_arrow`.

    columns: the new name of a column to its name in `table`.
    """
    start = 0
    for batch in table.to_batches():
        batch_mask = pa.array(mask[start : start + len(batch)])
        yield {new: batch.column(name).filter(batch_mask) for new, name in columns.items()}
        start += len(batch)


def text_digest(text: str, key: bytes = b"") -> bytes:
    """128 bits that identify a text; with another `key` others."""
    return hashlib.blake2b(text.encode(), digest_size=DIGEST.byte_width, key=key).digest()


def text_digests(texts: Iterable[str]) -> pa.Array:
    """The digests of `texts` as a column of `DIGEST`."""
    digests = bytearray()  # and no list of millions of small objects
    for text in texts:
        digests += text_digest(text)
    count = len(digests) // DIGEST.byte_width
    return pa.FixedSizeBinaryArray.from_buffers(DIGEST, count, [None, pa.py_buffer(digests)])


def number_distinct(digests: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Numbers equal digests alike, in the order of first appearance: `b a b c` gives `0 1 0 2` and `0 1 3`.

    Returns the number of each digest, (digests,), and the position at which each number first appears, (distinct,).
    """
    numbers = digests.dictionary_encode().indices.to_numpy()
    return numbers, np.unique(numbers, return_index=True)[1]
