"""The nearest of many unit vectors, through FAISS: exactly, or by a graph (HNSW) whose building survives a kill.

Similarity is the inner product, which of unit vectors is the cosine. Vectors may be memory-mapped.
"""

import hashlib
import json
import math
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.vectors import not_finite_row
from bertrelay.errors import RequestError, check_choice, check_count, shown
from bertrelay.evaluation.similarity import DIGITS, ROUNDING, Vectors
from bertrelay.files import atomic_write
from bertrelay.fingerprint import fingerprint
from bertrelay.progress import log, progress
from students.settings import EXACT_PAIRS, Hnsw, Method

Rows = NDArray[np.int64]


class Neighbours(NamedTuple):
    """The k nearest rows of the other side, best first: cosines and row numbers, both (n, k)."""

    cosines: NDArray[np.float64]
    rows: Rows


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
    found: tuple[Vectors, Rows] = index.search(np.ascontiguousarray(queries, np.float32), k, params=parameters)
    return found


def recall(index: Any, vectors: Vectors, ef_search: int, k: int = 10) -> NDArray[np.float64]:
    """The share of the exact `k` nearest that `index` finds, for each of up to a thousand of its own `vectors`.

    A vector is no neighbour of itself, and one as near as the k-th counts, whichever of equals it is. Empty where
    there is one vector alone.
    """
    k = min(k, len(vectors) - 1)
    queried = np.unique(np.linspace(0, len(vectors) - 1, min(len(vectors), RECALL_QUERIES)).astype(np.int64))
    if k == 0:
        return np.empty(0)
    exact, _ = _without_self(*exact_neighbours(vectors[queried], vectors, k + 1), queried)
    found, _ = _without_self(*approximate_neighbours(index, vectors[queried], k + 1, ef_search), queried)
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
        vectors), it resumes from there. The caller removes it. With one thread the same vectors give the same graph,
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
        log(f"{path} is damaged or of another index; the graph is built again")
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
    with atomic_write(path) as building, building.open("w+b") as file:
        write(file)


QUERY_BLOCK = 4096
RESCORE_BLOCK = 1024
SPARE = 4  # neighbours found beyond k, from among which float64 chooses
SECONDS_BETWEEN_SAVES = 20.0

NeighbourRows = NDArray[np.int32]
"""Row numbers of the neighbours found for each row, (n, k + spare); -1 where there is none yet, or none was found."""


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
    folder: for checkpoints; killed and called again with the same `key`, which stands for the
        vectors, it resumes from there.
    Raises RequestError for vectors that cannot be compared.
    """
    check_options(k, method)
    _check(source, target)
    exact = method == "exact" or (method == "auto" and len(source) * len(target) <= EXACT_PAIRS)
    log(f"comparing {len(source):,} with {len(target):,} sentences {_describe(exact, method)}")
    key = fingerprint({"vectors": key, "k": k, "exact": exact, "shapes": [source.shape, target.shape]})
    search = _open(folder, key, len(source), len(target), k + SPARE)
    _find_neighbours(target, source, search.forward, search, exact, done_before=0)
    _find_neighbours(source, target, search.backward, search, exact, done_before=len(source))
    return _rescore(search.forward, source, target, k), _rescore(search.backward, target, source, k)


def check_options(k: int, method: Method, threshold: float | None = None) -> None:
    """Raises RequestError for no neighbours, a method that there is not, and a threshold that is no number."""
    check_count("k", k)
    check_choice("method", method, get_args(Method))
    if threshold is not None and not (isinstance(threshold, Real) and math.isfinite(threshold)):
        raise RequestError(f"threshold: expected a number, 1.1 for example, found {shown(threshold)}")


def _check(source: Vectors, target: Vectors) -> None:
    if source.ndim != 2 or target.ndim != 2 or source.shape[1] != target.shape[1] or 0 in (len(source), len(target)):
        raise RequestError(
            "mine: expected vectors of both sides, (n, dim) and (m, dim), with the same dim and at least one of each, "
            f"found {source.shape} and {target.shape}. Encode both sides with one model"
        )
    for name, vectors in (("source", source), ("target", target)):
        row = not_finite_row(vectors)
        if row is not None:
            raise RequestError(
                f"mine: expected finite vectors, found another one for distinct {name} sentence {row + 1:,}. Check the "
                "model, or try precision fp32"
            )


def _describe(exact: bool, method: Method) -> str:
    if exact:
        return "exactly, all with all"
    why = "" if method == "approximate" else f", as they make more than {EXACT_PAIRS:,} pairs"
    return f"approximately, through a graph{why}; the method exact compares all with all"


@dataclass
class Search:
    """What is found so far in both directions, and the file it is saved in now and then.

    done: how many rows were queried: sources first, then targets.
    """

    path: Path | None
    key: str
    forward: NeighbourRows
    backward: NeighbourRows
    done: int = 0
    saved: float = field(default_factory=time.monotonic)

    def advance(self, count: int, last: bool) -> None:
        """Counts `count` more as done, and saves when it is time or this was the last of a direction."""
        self.done += count
        if self.path is not None and (last or time.monotonic() - self.saved >= SECONDS_BETWEEN_SAVES):
            _save(self, self.path)
            self.saved = time.monotonic()


def _open(folder: Path | None, key: str, sources: int, targets: int, keep: int) -> Search:
    """What is saved in `folder` under the same `key`, or nothing yet."""
    path = folder and folder / "neighbours.npz"
    if path is not None and path.is_file():
        saved = _read(path, key)
        if saved is not None:
            return saved
        log(f"{path} is damaged, or of other sentences, another k or another method; comparing begins again")
    forward = np.full((sources, min(keep, targets)), -1, np.int32)
    backward = np.full((targets, min(keep, sources)), -1, np.int32)
    return Search(path, key, forward, backward)


def _read(path: Path, key: str) -> Search | None:
    with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile), path.open("rb") as file:
        saved = np.load(file)
        if saved["key"] == key:
            return Search(path, key, saved["forward"], saved["backward"], int(saved["done"]))
    return None


def _save(search: Search, path: Path) -> None:
    key, done = np.array(search.key), np.array(search.done)
    with atomic_write(path) as building, building.open("wb") as file:
        np.savez(file, key=key, done=done, forward=search.forward, backward=search.backward)


def _find_neighbours(
    corpus: Vectors, queries: Vectors, found: NeighbourRows, search: Search, exact: bool, done_before: int
) -> None:
    """Fills `found` with the neighbours in `corpus` of those `queries` that are not done yet."""
    done = search.done - done_before
    if done >= len(queries):
        return
    checkpoint = search.path and search.path.with_name("neighbours.graph")
    find = (
        partial(exact_neighbours, corpus=corpus) if exact else _graph(corpus, checkpoint, f"{done_before} {search.key}")
    )
    with progress("comparing", len(queries), "sentences", done) as bar:
        for first in range(done, len(queries), QUERY_BLOCK):
            queried = queries[first : first + QUERY_BLOCK]
            _, found[first : first + len(queried)] = find(queried, k=found.shape[1])
            bar.advance(len(queried))
            search.advance(len(queried), last=first + len(queried) == len(queries))
    if checkpoint:
        checkpoint.unlink(missing_ok=True)


def _graph(corpus: Vectors, checkpoint: Path | None, key: str) -> Callable[..., tuple[Vectors, NDArray[np.int64]]]:
    hnsw = Hnsw()
    return partial(approximate_neighbours, build_hnsw(corpus, hnsw, checkpoint, key), ef_search=hnsw.ef_search)


def _rescore(found: NeighbourRows, own: Vectors, other: Vectors, k: int) -> Neighbours:
    """The `k` best by float64 cosines, of equals the lower row."""
    # A graph may find fewer than k: the best one is repeated in the empty places, or, where there is
    # none, row 0, which has the cosine that it has.
    rows = np.where(found < 0, found[:, :1], found).clip(0).astype(np.int64)  # (n, keep)
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
