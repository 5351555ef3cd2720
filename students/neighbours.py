"""The nearest of many unit vectors, through FAISS: exactly, by a graph (HNSW) whose building survives a kill, or among
vectors of fewer bits, whose best are compared again in float32.

Similarity is the inner product, which of unit vectors is the cosine. Vectors may be memory-mapped.
"""

import copy
import hashlib
import json
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertrelay.compute.work import Work, whole_span
from bertrelay.data.shards import ShardFiles, Span, even_spans
from bertrelay.data.vectors import Vectors, not_finite_row, quantized, stored_columns
from bertrelay.errors import RequestError, WorkError
from bertrelay.evaluation.similarity import DIGITS, ROUNDING
from bertrelay.files import atomic_write
from bertrelay.fingerprint import fingerprint
from bertrelay.inference.run_model import fill_shards
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.progress import Bar, log, progress
from students.equal_vectors import AnyVectors, distinct, equal_rows
from students.equal_vectors import Rows as Rows
from students.search_settings import EXACT_PAIRS, Hnsw, Method

Find = Callable[[Vectors, int], tuple[Vectors, Rows]]
"""Queries (n, dim) and k to similarities and rows, both (n, k)."""
Codes = Literal["int8", "binary"]
Scores = NDArray[np.float64]


class Neighbours(NamedTuple):
    """The k nearest rows, best first: cosines and row numbers, both (n, k)."""

    cosines: NDArray[np.float64]
    rows: Rows


NeighbourRows = NDArray[np.int32]
"""Row numbers of the neighbours found for each row, (n, k + spare); -1 where the graph leads to fewer."""

GRAPH_BLOCK = 4096
QUERY_BLOCK = 4096
RESCORE_BLOCK = 1024
EXACT_BLOCK = 65_536
SPARE = 4  # neighbours found beyond k, from among which float64 chooses
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


# Bidirectional k-NN


def bidirectional_knn(
    source: Vectors,
    target: Vectors,
    k: int,
    method: Method = "auto",
    folder: Path | None = None,
    key: str = "",
) -> tuple[Neighbours, Neighbours]:
    """Of each source its `k` nearest targets, and of each target its `k` nearest sources; all where there are fewer.

    source, target: unit vectors, float32 (n, dim) and (m, dim), which may be memory-mapped files.
    method: as in `MineSettings`.
    folder: for what is found; killed and called again with the same `key`, which identifies the vectors, it resumes.
    Raises RequestError for vectors that cannot be compared.
    """
    if source.ndim != 2 or target.ndim != 2 or source.shape[1] != target.shape[1] or 0 in (len(source), len(target)):
        raise RequestError(
            "mine: expected vectors of source and target, (n, dim) and (m, dim), with the same dim and at least one of "
            f"each, found {source.shape} and {target.shape}. Encode both with one model"
        )
    for name, vectors in (("source", source), ("target", target)):
        row = not_finite_row(vectors)
        if row is not None:
            raise RequestError(
                f"mine: expected finite vectors, found another one for distinct {name} sentence {row + 1:,}. Check the "
                "model, or try precision fp32"
            )
    exact = method == "exact" or (method == "auto" and len(source) * len(target) <= EXACT_PAIRS)
    why = "" if method == "approximate" else f", as they make more than {EXACT_PAIRS:,} pairs"
    how = "exactly, all with all" if exact else f"through a graph{why}; the method exact compares all with all"
    log(f"comparing {len(source):,} with {len(target):,} sentences {how}")
    key = fingerprint({"vectors": key, "k": k, "exact": exact, "shapes": [source.shape, target.shape]})
    both = []
    for name, queries, corpus in (("forward", source, target), ("backward", target, source)):
        rows = _nearest_rows(queries, corpus, k + SPARE, exact, folder and folder / name, f"{name} {key}")
        both.append(_rescore(rows, queries, corpus, k))
    return both[0], both[1]


def exact_knn(source: Vectors, target: Vectors, k: int) -> tuple[Neighbours, Neighbours]:
    """As `bidirectional_knn`, of vectors in memory: all with all."""
    forward, backward = (
        _rescore(exact_neighbours(queries, corpus, k + SPARE)[1].astype(np.int32), queries, corpus, k)
        for queries, corpus in ((source, target), (target, source))
    )
    return forward, backward


def ratio_margins(cosines: Scores, nearness: Scores) -> Scores:
    """Ratio margins of pairs (Artetxe & Schwenk 2019), each its cosine over its `nearness`.

    nearness: of x and y the mean of cos(x, z) over the k nearest z of x, and that of y, averaged. Below zero the ratio
        would grow with the distance; a sentence that is near to nothing has no translation here, and its margin is 0.
    """
    margins: Scores = np.divide(cosines, nearness, out=np.zeros_like(cosines), where=nearness > 0).round(DIGITS)
    return margins


def forget_neighbours(folder: Path) -> None:
    """Removes what `bidirectional_knn` keeps in `folder`."""
    for path in (folder / "forward", folder / "backward"):
        ShardFiles(path, []).remove()
        _checkpoint(path).unlink(missing_ok=True)


def _nearest_rows(
    queries: Vectors, corpus: Vectors, keep: int, exact: bool, output: Path | None, key: str
) -> NeighbourRows:
    """The rows of `corpus` nearest to each of `queries`; with an `output`, kept in shards that another call resumes."""
    spans = even_spans(len(queries), QUERY_BLOCK)

    def compute(missing: Iterable[Span], bar: Bar) -> Iterator[NeighbourRows]:
        find: Callable[..., tuple[Vectors, Rows]] = partial(exact_neighbours, corpus=corpus)
        if not exact:
            find = _through_graph(corpus, output and _checkpoint(output), key)
        for first, end, size in missing:
            yield find(queries[first:end], k=keep)[1].astype(np.int32)
            bar.advance(size)

    if output is None:
        with progress("comparing", len(queries), "sentences") as bar:
            return np.concatenate(list(compute(spans, bar)))
    work = Work(whole_span, lambda: compute, "comparing", "sentences")
    shards = fill_shards(output, spans, {"key": key}, work, suffix=".npz", write=_write_rows)
    _checkpoint(output).unlink(missing_ok=True)
    return np.concatenate([_read_rows(path) for path in shards.complete()])


def _through_graph(corpus: Vectors, checkpoint: Path | None, key: str) -> Find:
    """Search of a graph over the distinct vectors of `corpus`, which gives all their rows."""
    equal, ef_search = equal_rows(corpus), Hnsw().ef_search
    graph = build_hnsw(distinct(corpus, equal), Hnsw(), checkpoint, key)

    def find(queries: Vectors, k: int) -> tuple[Vectors, Rows]:
        nearest = approximate_neighbours(graph, queries, k, ef_search)
        return nearest if equal is None else equal.spread(*nearest, k)

    return find


def _checkpoint(output: Path) -> Path:
    return output.with_name(f"{output.name}.graph")


def _write_rows(path: Path, rows: NeighbourRows) -> None:
    with path.open("wb") as file:
        np.savez(file, rows=rows)  # which, unlike `np.save`, adds checksums


def _read_rows(path: Path) -> NeighbourRows:
    """The rows of a shard. Removes a damaged one, and raises WorkError."""
    with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile), path.open("rb") as file:
        return np.asarray(np.load(file)["rows"])
    path.unlink()
    raise WorkError(f"{path}: expected neighbours, found a damaged file, now removed; run the same command again")


def _rescore(nearest: NeighbourRows, own: Vectors, other: Vectors, k: int) -> Neighbours:
    """The `k` best by float64 cosines, of equals the lower row."""
    # A graph may find fewer than k: the best one is repeated in the empty places, or, where there is
    # none, row 0, which has the cosine that it has.
    rows = np.where(nearest < 0, nearest[:, :1], nearest).clip(0).astype(np.int64)  # (n, keep)
    cosines = np.empty(rows.shape)
    for start in range(0, len(rows), RESCORE_BLOCK):
        block = slice(start, start + RESCORE_BLOCK)
        cosines[block] = np.einsum("nd,nkd->nk", _unit64(own[block]), _unit64(other[rows[block]]))
    cosines = cosines.round(DIGITS)
    best = np.lexsort((rows, -cosines))[:, :k]  # (n, k)
    return Neighbours(np.take_along_axis(cosines, best, 1), np.take_along_axis(rows, best, 1))


def _unit64(vectors: Vectors) -> NDArray[np.float64]:
    """In float64 at length one, which float32 vectors have but for rounding; a zero vector stays zero."""
    exact = vectors.astype(np.float64)
    lengths = np.linalg.norm(exact, axis=-1, keepdims=True)
    return np.asarray(exact / np.where(lengths > 0, lengths, 1))
