"""The nearest of many unit vectors, through FAISS: exactly, by a graph (HNSW) whose building survives a kill, or among
vectors of fewer bits, whose best are compared again in float32.

Similarity is the inner product, which of unit vectors is the cosine. Vectors may be memory-mapped.
"""

import copy
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.vectors import Vectors, quantized, stored_columns
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import ROUNDING
from bertrelay.files import atomic_write
from bertrelay.fingerprint import fingerprint
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.progress import log, progress
from students.searching.equal_vectors import AnyVectors, Rows
from students.searching.settings import Hnsw

Find = Callable[[Vectors, int], tuple[Vectors, Rows]]
"""Queries (n, dim) and k to similarities and rows, both (n, k)."""
Codes = Literal["int8", "binary"]

GRAPH_BLOCK = 4096
RESCORE_BLOCK = 1024
EXACT_BLOCK = 65_536
SECONDS_BETWEEN_CHECKPOINTS = 60.0
RECALL_QUERIES = 1000
RANGE_SAMPLE = 100_000


def load_faiss() -> Any:
    """The module `faiss`; raises RequestError with what to install where it is missing."""
    try:
        import faiss
    except ImportError as error:
        raise RequestError(
            "search and mining need FAISS, which is not installed here: pip install 'bertrelay[search]'"
        ) from error
    return faiss


def at_unit_length(encoder: SentenceEncoder) -> SentenceEncoder:
    """The same encoder with its vectors normalised; a zero vector stays zero."""
    normalised = copy.copy(encoder)
    normalised.normalize = True
    return normalised


def exact_neighbours(queries: Vectors, corpus: Vectors, k: int) -> tuple[Vectors, Rows]:
    """The `k` rows of `corpus` (m, dim) most similar to each of `queries` (n, dim), best first.

    Returns similarities and rows, both (n, min(k, m)); equals are in the order of their rows, and where more of them
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
    nearest: tuple[Vectors, Rows] = index.search(np.ascontiguousarray(queries, np.float32), k, params=parameters)
    return nearest


def rescored_neighbours(
    codes: Any, vectors: AnyVectors, queries: Vectors, k: int, candidates: int
) -> tuple[Vectors, Rows]:
    """As `exact_neighbours`, of the `candidates` that are nearest by an index of `build_codes`; `k` where it is less.

    vectors: what the index is of, (m, dim); the candidates' own are read.
    """
    _check_dim(queries, codes.d)
    k = min(k, codes.ntotal)
    is_binary = isinstance(codes, load_faiss().IndexBinary)
    asked = quantized(queries, "binary") if is_binary else np.ascontiguousarray(queries, np.float32)
    rows = np.sort(codes.search(asked, min(max(candidates, k), codes.ntotal))[1], axis=1)  # (n, candidates)
    similarities = np.empty(rows.shape, np.float32)
    for start in range(0, len(rows), RESCORE_BLOCK):
        block = slice(start, start + RESCORE_BLOCK)
        similarities[block] = np.einsum("nd,nkd->nk", queries[block], vectors[rows[block]])
    best = np.argsort(-similarities, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(similarities, best, 1), np.take_along_axis(rows, best, 1)


def recall(find: Find, vectors: AnyVectors, k: int = 10) -> NDArray[np.float64]:
    """The share of the exact `k` nearest that `find` finds, for each of up to a thousand of the `vectors` themselves.

    A vector is no neighbour of itself, and one as near as the k-th counts, whichever of equals it is. Empty where
    there is one vector alone. vectors: distinct ones, or queries that repeat hide what the others do not find.
    """
    k = min(k, len(vectors) - 1)
    queried = np.unique(np.linspace(0, len(vectors) - 1, min(len(vectors), RECALL_QUERIES)).astype(np.int64))
    if k == 0:
        return np.empty(0)
    queries = vectors[queried]
    exact, _ = _without_self(*_exact_in_blocks(queries, vectors, k + 1), queried)
    approximate, _ = _without_self(*find(queries, k + 1), queried)
    return np.asarray((approximate >= exact[:, -1:] - ROUNDING).mean(axis=1))


def _exact_in_blocks(queries: Vectors, vectors: AnyVectors, k: int) -> tuple[Vectors, Rows]:
    """As `exact_neighbours`, of vectors that are read block by block."""
    if isinstance(vectors, np.ndarray):
        return exact_neighbours(queries, vectors, k)
    best: tuple[Vectors, Rows] = np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
    for start in range(0, len(vectors), EXACT_BLOCK):
        found, rows = exact_neighbours(queries, vectors[start : start + EXACT_BLOCK], k)
        similarities, rows = np.hstack([best[0], found]), np.hstack([best[1], rows + start])
        order = np.argsort(-similarities, axis=1, kind="stable")[:, :k]
        best = np.take_along_axis(similarities, order, 1), np.take_along_axis(rows, order, 1)
    return best


def _without_self(similarities: Vectors, rows: Rows, own: Rows) -> tuple[Vectors, Rows]:
    """Each row of both without the query's own row, or without its last place where it was not found."""
    itself = rows == own[:, None]  # (n, k + 1)
    itself[~itself.any(axis=1), -1] = True
    shape = (len(own), -1)
    return similarities[~itself].reshape(shape), rows[~itself].reshape(shape)


def _check_dim(queries: Vectors, dim: int) -> None:
    if queries.ndim != 2 or queries.shape[1] != dim:
        raise RequestError(f"expected query vectors of shape (n, {dim}), found {queries.shape}: another model's?")


# Vectors of fewer bits


def build_codes(vectors: AnyVectors, stored: Codes) -> Any:
    """A FAISS index of unit vectors (n, dim) in memory, without their float32: of 8 bits a dimension, or of signs.

    int8: FAISS's scalar quantizer, whose steps divide the range that each dimension has in a sample.
    """
    faiss, dim = load_faiss(), vectors.shape[1]
    if stored == "binary":
        codes = faiss.IndexBinaryFlat(8 * stored_columns(dim, stored))
    else:
        codes = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
        sample = np.unique(np.linspace(0, len(vectors) - 1, min(len(vectors), RANGE_SAMPLE)).astype(np.int64))
        codes.train(np.ascontiguousarray(vectors[sample]))
    with progress(stored, len(vectors), "vectors") as bar:
        for start in range(0, len(vectors), GRAPH_BLOCK):
            block = vectors[start : start + GRAPH_BLOCK]
            codes.add(quantized(block, "binary") if stored == "binary" else block)
            bar.advance(len(block))
    return codes


# The graph


def build_hnsw(vectors: AnyVectors, hnsw: Hnsw, checkpoint: Path | None = None, key: str = "") -> Any:
    """A FAISS index that walks a graph over `vectors` (n, dim), of which it keeps a copy in memory.

    vectors: distinct ones; thousands of equal ones would leave no links to others.
    checkpoint: a file written every minute or so; killed and called again with the same `key` (which identifies the
        vectors), it resumes from there. The caller removes it. With one thread the same vectors give the same graph,
        stopped on the way or not; with more, the order in which threads take their turns changes some links.
    """
    faiss = load_faiss()
    key = fingerprint({"vectors": key, "shape": vectors.shape, **hnsw.model_dump(exclude={"ef_search"})})
    index = _resumed(checkpoint, key, vectors) if checkpoint and checkpoint.is_file() else None
    if index is None:
        index = faiss.IndexHNSWFlat(vectors.shape[1], hnsw.links, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = hnsw.ef_construction
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
    """Writes a FAISS index as FAISS itself reads it, in one step."""
    faiss = load_faiss()
    write = faiss.write_index_binary if isinstance(index, faiss.IndexBinary) else faiss.write_index
    with atomic_write(path) as building, building.open("wb") as file:
        write(index, faiss.PyCallbackIOWriter(file.write))


def open_faiss(path: Path, kind: str) -> Any:
    """The index of `write_index`. A graph is memory-mapped, so only what a query touches is read.

    Raises RequestError when it cannot be read.
    """
    faiss = load_faiss()
    try:
        if kind == "binary":
            return faiss.read_index_binary(str(path))
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if kind == "hnsw" else 0)
    except RuntimeError as error:
        raise RequestError(f"expected an index of FAISS, found something else or half of one in {path}") from error


def _save_checkpoint(index: Any, path: Path, key: str) -> None:
    """Writes the graph without its vectors, under a line with its key and sha256."""
    faiss = load_faiss()
    with atomic_write(path) as building, building.open("w+b") as file:
        head_size = file.write(_head(key, "0" * 64))
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write), faiss.IO_FLAG_SKIP_STORAGE)
        file.seek(head_size)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        file.write(_head(key, digest))


def _resumed(path: Path, key: str, vectors: AnyVectors) -> Any | None:
    """The graph of the checkpoint at `path` with its vectors again, or None where it is damaged or of another key."""
    faiss = load_faiss()
    with path.open("rb") as file:
        head = file.readline()
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if head != _head(key, digest):
            log(f"{path} is damaged or of another index; the graph is built again")
            return None
        file.seek(len(head))
        index = faiss.read_index(faiss.PyCallbackIOReader(file.read))
    storage = faiss.IndexFlatIP(index.d)
    storage.add(vectors[: index.ntotal])
    index.storage, index.own_fields = storage, True
    storage.this.disown()  # the index frees it
    return index


def _head(key: str, digest: str) -> bytes:
    return json.dumps({"graph": key, "sha256": digest}).encode() + b"\n"


def nearest(
    kind: str, index: Any, vectors: AnyVectors, candidates: int, queries: Vectors, k: int
) -> tuple[Vectors, Rows]:
    """Similarities and rows of the distinct `vectors`, (n, k) both, by the graph or codes of an index.

    candidates: kept on the way.
    """
    if kind == "hnsw":
        return approximate_neighbours(index, queries, k, candidates)
    return rescored_neighbours(index, vectors, queries, k, candidates)
