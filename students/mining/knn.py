"""Nearest neighbours of two sets of sentences in each other, and ratio margins of pairs."""

import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertrelay.compute.work import Work, whole_span
from bertrelay.data.shards import Span, even_spans
from bertrelay.data.vectors import Vectors, not_finite_row
from bertrelay.errors import RequestError, WorkError
from bertrelay.evaluation.similarity import DIGITS
from bertrelay.fingerprint import fingerprint
from bertrelay.inference.run_model import fill_shards
from bertrelay.progress import Bar, log, progress
from students.mining.settings import EXACT_PAIRS, Method
from students.searching.equal_vectors import Rows, distinct, equal_rows
from students.searching.faiss import (
    RESCORE_BLOCK,
    Approximate,
    Find,
    build_hnsw,
    exact_neighbours,
    open_faiss,
    write_index,
)
from students.searching.settings import Hnsw

Scores = NDArray[np.float64]


class Neighbours(NamedTuple):
    """The k nearest rows, best first: cosines and row numbers, both (n, k)."""

    cosines: NDArray[np.float64]
    rows: Rows


NeighbourRows = NDArray[np.int32]
"""Row numbers of the neighbours found for each row, (n, k + spare); -1 where the graph leads to fewer."""

QUERY_BLOCK = 4096
SPARE = 4  # neighbours found beyond k, from among which float64 chooses


def bidirectional_knn(
    source: Vectors,
    target: Vectors,
    k: int,
    method: Method = "auto",
    folder: Path | None = None,
    key: str = "",
) -> tuple[Neighbours, Neighbours]:
    """Finds the `k` nearest targets of each source, and the `k` nearest sources of each target; all if there are fewer.

    source, target: unit vectors, float32 (n, dim) and (m, dim), which may be memory-mapped files.
    method: as in `MineSettings`.
    folder: for the neighbours; killed and called again with the same `key`, which identifies the vectors, it resumes.
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
    reason = "" if method == "approximate" else f", as they make more than {EXACT_PAIRS:,} pairs"
    manner = "exactly, all with all" if exact else f"through a graph{reason}; the method exact compares all with all"
    log(f"comparing {len(source):,} with {len(target):,} sentences {manner}")
    key = fingerprint({"vectors": key, "k": k, "exact": exact, "shapes": [source.shape, target.shape]})
    neighbours = []
    for name, queries, corpus in (("forward", source, target), ("backward", target, source)):
        rows = _nearest_rows(queries, corpus, k + SPARE, exact, folder and folder / name, f"{name} {key}")
        neighbours.append(_rescore(rows, queries, corpus, k))
    return neighbours[0], neighbours[1]


def exact_knn(source: Vectors, target: Vectors, k: int) -> tuple[Neighbours, Neighbours]:
    """Compares all with all, as `bidirectional_knn` does, for vectors in memory."""
    forward, backward = (
        _rescore(exact_neighbours(queries, corpus, k + SPARE)[1].astype(np.int32), queries, corpus, k)
        for queries, corpus in ((source, target), (target, source))
    )
    return forward, backward


def ratio_margins(cosines: Scores, nearness: Scores) -> Scores:
    """Divides the cosines of pairs by their `nearness`: ratio margins (Artetxe & Schwenk 2019).

    nearness: of x and y the mean of cos(x, z) over the k nearest z of x, and that of y, averaged. Below zero the ratio
        would grow with the distance; a sentence near to nothing has no translation here, and its margin is 0.

    Example: cosine 0.9; the neighbours of x have 0.9 and 0.6, mean 0.75, those of y 0.9 and 0.5, mean 0.7. The
    nearness is 0.725 and the margin 1.24.
    """
    margins: Scores = np.divide(cosines, nearness, out=np.zeros_like(cosines), where=nearness > 0).round(DIGITS)
    return margins


def _nearest_rows(
    queries: Vectors, corpus: Vectors, top_k: int, exact: bool, output: Path | None, key: str
) -> NeighbourRows:
    """Finds the rows of `corpus` nearest to each of `queries`; with an `output`, in shards, from which it resumes."""
    spans = even_spans(len(queries), QUERY_BLOCK)

    def compute(missing: Iterable[Span], bar: Bar) -> Iterator[NeighbourRows]:
        find: Callable[..., tuple[Vectors, Rows]] = partial(exact_neighbours, corpus=corpus)
        if not exact:
            find = _through_graph(corpus, output and _graph_file(output, key))
        for first, end, size in missing:
            yield find(queries[first:end], top_k=top_k)[1].astype(np.int32)
            bar.advance(size)

    if output is None:
        with progress("comparing", len(queries), "sentences") as bar:
            return np.concatenate(list(compute(spans, bar)))
    work = Work(whole_span, lambda: compute, "comparing", "sentences")
    shards = fill_shards(output, spans, {"key": key}, work, suffix=".npz", write=_write_rows)
    _graph_file(output, key).unlink(missing_ok=True)
    return np.concatenate([_read_rows(path) for path in shards.complete()])


def _through_graph(corpus: Vectors, path: Path | None) -> Find:
    """Searches a graph over the distinct vectors of `corpus`, which is written to `path`, or opened if it exists."""
    equal, hnsw = equal_rows(corpus), Hnsw()
    if path is None or not path.is_file():
        graph = build_hnsw(distinct(corpus, equal), hnsw)
        if path is not None:
            write_index(graph, path)
    else:
        graph = open_faiss(path, "hnsw")
    return partial(Approximate("hnsw", graph, corpus, equal).neighbours, candidates=hnsw.ef_search)


def _graph_file(output: Path, key: str) -> Path:
    return output.with_name(f"{output.name}.{fingerprint({'key': key})[:16]}.graph")


def _write_rows(path: Path, rows: NeighbourRows) -> None:
    with path.open("wb") as file:
        np.savez(file, rows=rows)  # which, unlike `np.save`, adds checksums


def _read_rows(path: Path) -> NeighbourRows:
    """Reads the rows of a shard. Removes a damaged file, and raises WorkError."""
    with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile), path.open("rb") as file:
        return np.asarray(np.load(file)["rows"])
    path.unlink()
    raise WorkError(f"{path}: expected neighbours, found a damaged file, now removed; run the same command again")


def _rescore(nearest: NeighbourRows, queries: Vectors, corpus: Vectors, k: int) -> Neighbours:
    """Takes the `k` best by float64 cosines, of equals the lower row."""
    # A graph may find fewer than k: the best one, or row 0 without any, is repeated, with its true cosine.
    rows = np.where(nearest < 0, nearest[:, :1], nearest).clip(0).astype(np.int64)  # (n, k + spare)
    cosines = np.empty(rows.shape)
    for start in range(0, len(rows), RESCORE_BLOCK):
        block = slice(start, start + RESCORE_BLOCK)
        cosines[block] = np.einsum("nd,nkd->nk", _unit64(queries[block]), _unit64(corpus[rows[block]]))
    cosines = cosines.round(DIGITS)
    best = np.lexsort((rows, -cosines))[:, :k]  # (n, k)
    return Neighbours(np.take_along_axis(cosines, best, 1), np.take_along_axis(rows, best, 1))


def _unit64(vectors: Vectors) -> NDArray[np.float64]:
    """Normalises in float64, as float32 vectors have length one only up to rounding; a zero vector stays zero."""
    exact = vectors.astype(np.float64)
    lengths = np.linalg.norm(exact, axis=-1, keepdims=True)
    return np.asarray(exact / np.where(lengths > 0, lengths, 1))
