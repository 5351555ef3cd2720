"""The nearest of many unit vectors, through FAISS: exactly, or by a graph (HNSW) whose building survives a kill.

Similarity is the inner product, which of unit vectors is the cosine. Vectors may be memory-mapped.
"""

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import ROUNDING
from bertrelay.files import atomic_write, write_error
from bertrelay.fingerprint import fingerprint
from bertrelay.progress import log, progress
from students.searching.settings import Hnsw

Vectors = NDArray[np.float32]
Rows = NDArray[np.int64]

GRAPH_BLOCK = 4096
SECONDS_BETWEEN_CHECKPOINTS = 60.0
RECALL_QUERIES = 1000


def load_faiss() -> Any:
    """The module `faiss`; raises RequestError with what to install where it is missing."""
    try:
        import faiss
    except ImportError as error:
        raise RequestError(
            "search and mining need FAISS, which is not installed here: pip install 'bertrelay[search]'"
        ) from error
    return faiss


def exact_neighbours(queries: Vectors, corpus: Vectors, k: int) -> tuple[Vectors, Rows]:
    """The `k` rows of `corpus` (m, dim) most similar to each of `queries` (n, dim), best first.

    Returns similarities and rows, both (n, min(k, m)); equals stand in the order of their rows, and where more of them
    than fit share the last places, FAISS chooses. Unit vectors are assumed. The corpus is passed over once for some
    thousand queries, so it may be a memory-mapped file.
    """
    _check_dim(queries, corpus.shape[1])
    k = min(k, len(corpus))
    if k == 0 or len(queries) == 0:
        return np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
    faiss = load_faiss()
    similarities, rows = faiss.knn(queries, corpus, k, metric=faiss.METRIC_INNER_PRODUCT)
    order = np.lexsort((rows, -similarities))
    return np.take_along_axis(similarities, order, 1), np.take_along_axis(rows, order, 1)


def approximate_neighbours(index: Any, queries: Vectors, k: int, ef_search: int) -> tuple[Vectors, Rows]:
    """As `exact_neighbours`, by an index of `build_hnsw`; where the graph leads to fewer than `k`, the rest is row -1.

    ef_search: candidates kept on the way, raised to `k` where it is less.
    """
    _check_dim(queries, index.d)
    k = min(k, index.ntotal)
    parameters = load_faiss().SearchParametersHNSW(efSearch=max(ef_search, k))
    found: tuple[Vectors, Rows] = index.search(np.ascontiguousarray(queries, np.float32), k, params=parameters)
    return found


def recall(index: Any, vectors: Vectors, ef_search: int, k: int = 10) -> NDArray[np.float64]:
    """The share of the exact `k` nearest that `index` finds, for each of up to a thousand of its own `vectors`.

    A vector is no neighbour of itself, and one as near as the k-th counts, whichever of equals it is. Empty where
    there is one vector alone.
    """
    k = min(k, len(vectors) - 1)
    asked = np.unique(np.linspace(0, len(vectors) - 1, min(len(vectors), RECALL_QUERIES)).astype(np.int64))
    if k == 0:
        return np.empty(0)
    exact, _ = _without_self(*exact_neighbours(vectors[asked], vectors, k + 1), asked)
    found, _ = _without_self(*approximate_neighbours(index, vectors[asked], k + 1, ef_search), asked)
    return np.asarray((found >= exact[:, -1:] - ROUNDING).mean(axis=1))


def _without_self(similarities: Vectors, rows: Rows, own: Rows) -> tuple[Vectors, Rows]:
    """Each row of both without the query's own row, or without its last place where it was not found."""
    itself = rows == own[:, None]  # (n, k + 1)
    itself[~itself.any(axis=1), -1] = True
    shape = (len(own), -1)
    return similarities[~itself].reshape(shape), rows[~itself].reshape(shape)


def _check_dim(queries: Vectors, dim: int) -> None:
    if queries.ndim != 2 or queries.shape[1] != dim:
        raise RequestError(f"expected query vectors of shape (n, {dim}), found {queries.shape}: another model's?")


# The graph


def build_hnsw(vectors: Vectors, hnsw: Hnsw, checkpoint: Path | None = None, key: str = "") -> Any:
    """A FAISS index that walks a graph over `vectors` (n, dim), of which it holds a copy in memory.

    checkpoint: a file written every minute or so; killed and called again with the same `key` (which stands for the
        vectors), it goes on from there. The caller removes it. With one thread the same vectors give the same graph,
        stopped on the way or not; with more, the order in which threads take their turns changes some links.
    """
    faiss = load_faiss()
    key = fingerprint({"vectors": key, "shape": vectors.shape, **hnsw.model_dump(exclude={"ef_search"})})
    index = (_resumed(checkpoint, key, vectors) if checkpoint else None) or _empty(vectors.shape[1], hnsw)
    saved = time.monotonic()
    with progress("graph", len(vectors), "vectors", index.ntotal) as bar:
        for start in range(index.ntotal, len(vectors), GRAPH_BLOCK):
            block = vectors[start : start + GRAPH_BLOCK]
            index.hnsw.rng = faiss.RandomGenerator(start)  # levels are drawn alike whether or not it was stopped before
            index.add(block)
            bar.advance(len(block))
            is_time = time.monotonic() - saved >= SECONDS_BETWEEN_CHECKPOINTS or index.ntotal == len(vectors)
            if checkpoint and is_time:
                _save_checkpoint(index, checkpoint, key)
                saved = time.monotonic()
    return index


def write_index(index: Any, path: Path) -> None:
    """Writes a FAISS index as FAISS itself reads it, vectors included, in one step."""
    faiss = load_faiss()
    _write_whole(path, lambda file: faiss.write_index(index, faiss.PyCallbackIOWriter(file.write)))


def open_hnsw(path: Path) -> Any:
    """The index of `write_index`, memory-mapped: only what a query touches is read.

    Raises RequestError when it cannot be read.
    """
    faiss = load_faiss()
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise RequestError(f"expected an index of FAISS, found something else or half of one in {path}") from error


def _empty(dim: int, hnsw: Hnsw) -> Any:
    faiss = load_faiss()
    index = faiss.IndexHNSWFlat(dim, hnsw.links, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = hnsw.ef_construction
    return index


def _save_checkpoint(index: Any, path: Path, key: str) -> None:
    """Writes the graph without its vectors, under a line that says what it is of and its sha256."""
    faiss = load_faiss()

    def write(file: Any) -> None:
        unknown = _head(key, "0" * 64)
        file.write(unknown)
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write), faiss.IO_FLAG_SKIP_STORAGE)
        file.seek(len(unknown))
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        file.write(_head(key, digest))

    _write_whole(path, write)


def _resumed(path: Path, key: str, vectors: Vectors) -> Any | None:
    """The graph of the checkpoint at `path` with its vectors again, or None where there is none of this `key`."""
    if not path.is_file():
        return None
    index = _read_checkpoint(path, key)
    if index is None:
        log(f"{path} is damaged or of another index; the graph is begun again")
        return None
    storage = load_faiss().IndexFlatIP(index.d)
    for start in range(0, index.ntotal, GRAPH_BLOCK):
        storage.add(vectors[start : min(start + GRAPH_BLOCK, index.ntotal)])
    index.storage, index.own_fields = storage, True
    storage.this.disown()  # the index frees it
    return index


def _read_checkpoint(path: Path, key: str) -> Any | None:
    faiss = load_faiss()
    with path.open("rb") as file:
        head = file.readline()
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if head != _head(key, digest):
            return None
        file.seek(len(head))
        return faiss.read_index(faiss.PyCallbackIOReader(file.read))


def _head(key: str, digest: str) -> bytes:
    return json.dumps({"graph": key, "sha256": digest}).encode() + b"\n"


def _write_whole(path: Path, write: Callable[[Any], object]) -> None:
    """Lets `write` fill a file that takes the name `path` when it is on the disk."""
    try:
        with atomic_write(path) as building, building.open("w+b") as file:
            write(file)
    except OSError as error:
        raise write_error(path, error) from error
