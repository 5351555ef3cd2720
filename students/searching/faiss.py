"""Nearest neighbours among unit vectors, through FAISS: exact, by a graph (HNSW), or by codes of fewer bits.

Similarity is the inner product, which of unit vectors is the cosine. Vectors may be memory-mapped.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.arrow import Mask
from bertrelay.data.vectors import Vectors, quantized, stored_columns
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import ROUNDING
from bertrelay.files import atomic_write
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.progress import progress
from students.searching.equal_vectors import AnyVectors, DistinctVectors, EqualRows, Rows, distinct
from students.searching.settings import ApproximateKind, Hnsw

Find = Callable[[Vectors, int], tuple[Vectors, Rows]]
"""Queries (n, dim) and top_k to similarities and rows, both (n, top_k)."""
Codes = Literal["int8", "binary"]

GRAPH_BLOCK = 4096
RESCORE_BLOCK = 1024
EXACT_BLOCK = 65_536
"""Rows that FAISS compares in one call. Its products round by their position in a call, and which of equals it keeps
depends on the others of the call: blocks that begin at the same rows give the same result, in segments or not."""
FEW = 1024
"""Most rows of a block that are left out after a search of all of it."""
RECALL_QUERIES = 1000
RANGE_SAMPLE = 100_000


def load_faiss() -> Any:
    """Imports FAISS; raises RequestError with what to install where it is missing."""
    try:
        import faiss
    except ImportError as error:
        raise RequestError(
            "search and mining need FAISS, which is not installed here: pip install 'bertrelay[search]'"
        ) from error
    return faiss


def at_unit_length(encoder: SentenceEncoder) -> SentenceEncoder:
    """Copies an encoder, sharing its weights, with normalised vectors; a zero vector stays zero."""
    normalised = copy.copy(encoder)
    normalised.normalize = True
    return normalised


def exact_neighbours(
    queries: Vectors, corpus: AnyVectors, top_k: int, allowed: Mask | None = None
) -> tuple[Vectors, Rows]:
    """Finds the `top_k` rows of `corpus` (m, dim) most similar to each of `queries` (n, dim), best first.

    allowed: the rows that are compared, (m,); all without it.
    Returns similarities and rows, both (n, min(top_k, allowed rows)). Equal similarities are in the order of their
    rows; where more of them than fit share the last ranks, those of the first blocks are taken, and within a block
    FAISS chooses. The corpus is read once, block by block. Raises RequestError for queries of another dimension.
    """
    _check_dim(queries, corpus.shape[1])
    top_k = min(top_k, len(corpus) if allowed is None else int(allowed.sum()))
    if top_k == 0 or len(queries) == 0:
        return np.empty((len(queries), top_k), np.float32), np.empty((len(queries), top_k), np.int64)
    faiss = load_faiss()

    def block_neighbours(block: Vectors, count: int) -> tuple[Vectors, Rows]:
        similarities, rows = faiss.knn(queries, block, min(count, len(block)), metric=faiss.METRIC_INNER_PRODUCT)
        order = np.lexsort((rows, -similarities))
        return np.take_along_axis(similarities, order, 1), np.take_along_axis(rows, order, 1)

    def blocks() -> Iterator[tuple[int, tuple[Vectors, Rows]]]:
        for start in range(0, len(corpus), EXACT_BLOCK):
            block = slice(start, min(start + EXACT_BLOCK, len(corpus)))
            inside = np.ones(block.stop - start, bool) if allowed is None else allowed[block]
            excluded = int((~inside).sum())
            if excluded <= FEW:  # reading them too is faster than copying the others
                similarities, rows = block_neighbours(corpus[block], top_k + excluded)
                order = np.argsort(~inside[rows], axis=1, kind="stable")[:, : min(top_k, int(inside.sum()))]
                yield start, (np.take_along_axis(similarities, order, 1), np.take_along_axis(rows, order, 1))
            elif len(positions := np.flatnonzero(inside)):
                similarities, rows = block_neighbours(corpus[start + positions], top_k)
                yield start, (similarities, positions[rows])

    return merge(blocks(), top_k)


def merge(parts: Iterable[tuple[int, tuple[Vectors, Rows]]], top_k: int) -> tuple[Vectors, Rows]:
    """Merges the neighbours found in each part of a corpus into the `top_k` nearest of the whole, best first.

    parts: the first row of each part, in rising order, with similarities and rows in the part, both (n, at most top_k).
    Equal similarities are in the order of their rows; row -1 is no row, at similarity -inf.

    For example, [(0, ([[.9, .5]], [[7, 3]])), (10, ([[.9, .6]], [[0, 2]]))] and top_k = 3 become
    ([[.9, .9, .6]], [[7, 10, 12]]).
    """
    best: tuple[Vectors, Rows] | None = None
    for first, (similarities, rows) in parts:
        rows = np.where(rows < 0, rows, rows + first)
        if best is not None:
            similarities, rows = np.hstack([best[0], similarities]), np.hstack([best[1], rows])
            order = np.argsort(-similarities, axis=1, kind="stable")[:, :top_k]
            similarities, rows = np.take_along_axis(similarities, order, 1), np.take_along_axis(rows, order, 1)
        best = similarities, rows
    assert best is not None
    return best


def approximate_neighbours(
    graph: Any, queries: Vectors, top_k: int, candidates: int, allowed: Mask | None = None
) -> tuple[Vectors, Rows]:
    """Finds neighbours as `exact_neighbours` does, by a graph of `build_hnsw`; row -1 where it leads to fewer.

    candidates: the ef_search of HNSW, raised to `top_k` where it is less.
    """
    _check_dim(queries, graph.d)
    top_k = min(top_k, graph.ntotal)
    parameters = load_faiss().SearchParametersHNSW(efSearch=max(candidates, top_k), **_selector(allowed))
    nearest: tuple[Vectors, Rows] = graph.search(np.ascontiguousarray(queries, np.float32), top_k, params=parameters)
    return nearest


def _selector(allowed: Mask | None) -> dict[str, Any]:
    """The parameter of FAISS that selects the `allowed` vectors; none where all are."""
    return {} if allowed is None else {"sel": load_faiss().IDSelectorBitmap(np.packbits(allowed, bitorder="little"))}


def rescored_neighbours(
    codes: Any, vectors: AnyVectors, queries: Vectors, top_k: int, candidates: int, allowed: Mask | None = None
) -> tuple[Vectors, Rows]:
    """Finds neighbours as `exact_neighbours` does, among the `candidates` nearest by codes of `build_codes`.

    vectors: the float32 vectors of the codes, (m, dim), of which the candidates' are read.
    candidates: raised to `top_k` where it is less.
    """
    _check_dim(queries, codes.d)
    top_k = min(top_k, codes.ntotal)
    is_binary = isinstance(codes, load_faiss().IndexBinary)
    query_codes = quantized(queries, "binary") if is_binary else np.ascontiguousarray(queries, np.float32)
    parameters = load_faiss().SearchParameters(**_selector(allowed))
    nearest = codes.search(query_codes, min(max(candidates, top_k), codes.ntotal), params=parameters)
    rows = np.sort(nearest[1], axis=1)  # (n, candidates); -1 where fewer are allowed
    similarities = np.empty(rows.shape, np.float32)
    for start in range(0, len(rows), RESCORE_BLOCK):
        block = slice(start, start + RESCORE_BLOCK)
        similarities[block] = np.einsum("nd,nkd->nk", queries[block], vectors[rows[block]])
    similarities[rows < 0] = -np.inf
    best = np.argsort(-similarities, axis=1, kind="stable")[:, :top_k]
    return np.take_along_axis(similarities, best, 1), np.take_along_axis(rows, best, 1)


def _check_dim(queries: Vectors, dim: int) -> None:
    if queries.ndim != 2 or queries.shape[1] != dim:
        raise RequestError(f"expected query vectors of shape (n, {dim}), found {queries.shape}: another model's?")


@dataclass(frozen=True)
class Approximate:
    """A FAISS structure over the distinct ones of `vectors` (n, dim): a graph, or codes of fewer bits.

    structure: None for vectors that are compared exactly, until an index is built over them.
    equal: the rows of equal vectors; None where all are distinct.
    """

    kind: ApproximateKind
    structure: Any
    vectors: Vectors
    equal: EqualRows | None

    @property
    def distinct(self) -> Vectors | DistinctVectors:
        return distinct(self.vectors, self.equal)

    def neighbours(
        self, queries: Vectors, top_k: int, candidates: int, allowed: Mask | None = None
    ) -> tuple[Vectors, Rows]:
        """Finds the `top_k` nearest of the `allowed` rows: of each distinct vector all its rows, in their order."""
        equal = self.equal
        if equal is not None and allowed is not None:
            equal = equal.among(allowed)
            allowed = np.diff(equal.starts) > 0
        nearest = self.distinct_neighbours(queries, top_k, candidates, allowed)
        return nearest if equal is None else equal.spread(*nearest, top_k)

    def distinct_neighbours(
        self, queries: Vectors, top_k: int, candidates: int, allowed: Mask | None = None
    ) -> tuple[Vectors, Rows]:
        """Finds the `top_k` nearest of the `distinct` vectors, by their numbers."""
        if self.structure is None:
            return exact_neighbours(queries, self.distinct, top_k, allowed)
        if self.kind == "hnsw":
            return approximate_neighbours(self.structure, queries, top_k, candidates, allowed)
        return rescored_neighbours(self.structure, self.distinct, queries, top_k, candidates, allowed)


def recall(find: Find, vectors: AnyVectors) -> NDArray[np.float64]:
    """Computes the fraction of the exact ten nearest that `find` finds, for up to a thousand of the `vectors`.

    A vector is no neighbour of itself, and one as near as the tenth counts, whichever of equals it is. Empty where
    there is only one vector. vectors: distinct ones, or queries that repeat hide what the others do not find.
    """
    top_k = min(10, len(vectors) - 1)
    query_rows = _even_rows(len(vectors), RECALL_QUERIES)
    if top_k == 0:
        return np.empty(0)
    queries = vectors[query_rows]
    exact, _ = _without_self(*exact_neighbours(queries, vectors, top_k + 1), query_rows)
    approximate, _ = _without_self(*find(queries, top_k + 1), query_rows)
    return np.asarray((approximate >= exact[:, -1:] - ROUNDING).mean(axis=1))


def _without_self(similarities: Vectors, rows: Rows, query_rows: Rows) -> tuple[Vectors, Rows]:
    """Leaves out of each row the query itself, or the last neighbour where the query was not found."""
    itself = rows == query_rows[:, None]  # (n, top_k + 1)
    itself[~itself.any(axis=1), -1] = True
    shape = (len(query_rows), -1)
    return similarities[~itself].reshape(shape), rows[~itself].reshape(shape)


def build_structure(kind: ApproximateKind, vectors: AnyVectors, hnsw: Hnsw) -> Any:
    """Builds the FAISS index of a kind over distinct unit vectors (n, dim)."""
    return build_hnsw(vectors, hnsw) if kind == "hnsw" else build_codes(vectors, kind)


def build_codes(vectors: AnyVectors, stored: Codes) -> Any:
    """Builds a FAISS index of unit vectors (n, dim) in memory, without their float32: of 8 bits a dimension, or signs.

    int8: FAISS's scalar quantizer, whose steps divide the range that each dimension has in a sample.
    """
    faiss, dim = load_faiss(), vectors.shape[1]
    if stored == "binary":
        codes = faiss.IndexBinaryFlat(8 * stored_columns(dim, stored))
    else:
        codes = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
        codes.train(np.ascontiguousarray(vectors[_even_rows(len(vectors), RANGE_SAMPLE)]))
    _add_blocks(codes, vectors, stored)
    return codes


def build_hnsw(vectors: AnyVectors, hnsw: Hnsw) -> Any:
    """Builds a FAISS index that walks a graph over `vectors` (n, dim), of which it keeps a copy in memory.

    vectors: distinct ones; thousands of equal ones would leave no links to others.
    With one thread the same vectors give the same graph; with more, the order in which threads take their turns
    changes some links.
    """
    faiss = load_faiss()
    graph = faiss.IndexHNSWFlat(vectors.shape[1], hnsw.links, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = hnsw.ef_construction
    _add_blocks(graph, vectors, "graph")
    return graph


def _add_blocks(index: Any, vectors: AnyVectors, name: str) -> None:
    """Adds `vectors` (n, dim) to a FAISS index block by block; a binary one gets their signs."""
    is_binary = isinstance(index, load_faiss().IndexBinary)
    with progress(name, len(vectors), "vectors") as bar:
        for start in range(0, len(vectors), GRAPH_BLOCK):
            block = vectors[start : start + GRAPH_BLOCK]
            index.add(quantized(block, "binary") if is_binary else block)
            bar.advance(len(block))


def _even_rows(count: int, most: int) -> Rows:
    """Selects at most `most` of `count` rows, at even distances, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def write_index(index: Any, path: Path) -> None:
    """Writes a FAISS index as FAISS itself reads it, whole or not at all."""
    faiss = load_faiss()
    write = faiss.write_index_binary if isinstance(index, faiss.IndexBinary) else faiss.write_index
    with atomic_write(path) as building, building.open("wb") as file:
        write(index, faiss.PyCallbackIOWriter(file.write))


def open_faiss(path: Path, kind: str) -> Any:
    """Opens the index of `write_index`. A graph is memory-mapped, so that only what a query touches is read.

    Raises RequestError when it cannot be read.
    """
    faiss = load_faiss()
    try:
        if kind == "binary":
            return faiss.read_index_binary(str(path))
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if kind == "hnsw" else 0)
    except RuntimeError as error:
        raise RequestError(f"expected an index of FAISS, found something else or half of one in {path}") from error
