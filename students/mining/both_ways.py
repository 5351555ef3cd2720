"""The nearest neighbours of two sides in one another, saved on the way so that a kill costs little.

FAISS finds them by float32 cosines, some more of them than are asked for, and the best of these are chosen by their
float64 cosines. So rounding changes no score, and no neighbour unless more than the spare ones lie within it.
"""

import math
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.vectors import not_finite_row
from bertrelay.errors import RequestError, check_choice, check_count, shown
from bertrelay.evaluation.similarity import DIGITS, Vectors
from bertrelay.files import atomic_write, write_error
from bertrelay.fingerprint import fingerprint
from bertrelay.progress import log, progress
from students.mining.margin import Neighbours
from students.mining.settings import EXACT_PAIRS, Method
from students.searching.neighbours import approximate_neighbours, build_hnsw, exact_neighbours
from students.searching.settings import Hnsw

ASKED_AT_ONCE = 4096
CHOSEN_AT_ONCE = 1024
SPARE = 4  # neighbours found beyond k, from among which float64 chooses
SECONDS_BETWEEN_SAVES = 20.0

Found = NDArray[np.int32]
"""Row numbers of the neighbours found for each row, (n, k + spare); -1 where there is none yet, or none was found."""


def neighbours_both_ways(
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
    folder: where what is found is saved meanwhile; killed and called again with the same `key`, which stands for the
        vectors, it goes on from there.
    Raises RequestError for vectors that cannot be compared.
    """
    check_how(k, method)
    _check(source, target)
    exact = method == "exact" or (method == "auto" and len(source) * len(target) <= EXACT_PAIRS)
    log(f"comparing {len(source):,} with {len(target):,} sentences {_told(exact, method)}")
    key = fingerprint({"vectors": key, "k": k, "exact": exact, "shapes": [source.shape, target.shape]})
    search = _open(folder, key, len(source), len(target), k + SPARE)
    _ask(target, source, search.forward, search, exact, done_before=0)
    _ask(source, target, search.backward, search, exact, done_before=len(source))
    return _choose(search.forward, source, target, k), _choose(search.backward, target, source, k)


def check_how(k: int, method: Method, threshold: float | None = None) -> None:
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


def _told(exact: bool, method: Method) -> str:
    if exact:
        return "exactly, all with all"
    why = "" if method == "approximate" else f", as they make more than {EXACT_PAIRS:,} pairs"
    return f"approximately, through a graph{why}; the method exact compares all with all"


@dataclass
class Search:
    """What is found so far in both directions, and the file it is saved in now and then.

    done: sources that were asked with, and targets, which follow them.
    """

    path: Path | None
    key: str
    forward: Found
    backward: Found
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
    try:
        with atomic_write(path) as building, building.open("wb") as file:
            np.savez(file, key=key, done=done, forward=search.forward, backward=search.backward)
    except OSError as error:
        raise write_error(path, error) from error


def _ask(corpus: Vectors, queries: Vectors, found: Found, search: Search, exact: bool, done_before: int) -> None:
    """Fills `found` with the neighbours in `corpus` of those `queries` that were not asked with yet."""
    done = search.done - done_before
    if done >= len(queries):
        return
    checkpoint = search.path and search.path.with_name("neighbours.graph")
    find = (
        partial(exact_neighbours, corpus=corpus) if exact else _graph(corpus, checkpoint, f"{done_before} {search.key}")
    )
    with progress("comparing", len(queries), "sentences", done) as bar:
        for first in range(done, len(queries), ASKED_AT_ONCE):
            asked = queries[first : first + ASKED_AT_ONCE]
            _, found[first : first + len(asked)] = find(asked, k=found.shape[1])
            bar.advance(len(asked))
            search.advance(len(asked), last=first + len(asked) == len(queries))
    if checkpoint:
        checkpoint.unlink(missing_ok=True)


def _graph(corpus: Vectors, checkpoint: Path | None, key: str) -> Callable[..., tuple[Vectors, NDArray[np.int64]]]:
    hnsw = Hnsw()
    return partial(approximate_neighbours, build_hnsw(corpus, hnsw, checkpoint, key), ef_search=hnsw.ef_search)


def _choose(found: Found, own: Vectors, other: Vectors, k: int) -> Neighbours:
    """The `k` best by float64 cosines, of equals the lower row."""
    # A graph may lead to fewer than were asked for: the best one stands again in the empty places, or, where there is
    # none, row 0, which has the cosine that it has.
    rows = np.where(found < 0, found[:, :1], found).clip(0).astype(np.int64)  # (n, keep)
    cosines = np.empty(rows.shape)
    for start in range(0, len(rows), CHOSEN_AT_ONCE):
        block = slice(start, start + CHOSEN_AT_ONCE)
        cosines[block] = np.einsum("nd,nkd->nk", _unit64(own[block]), _unit64(other[rows[block]]))
    cosines = cosines.round(DIGITS)
    best = np.lexsort((rows, -cosines))[:, :k]  # (n, k)
    return Neighbours(np.take_along_axis(cosines, best, 1), np.take_along_axis(rows, best, 1))


def _unit64(vectors: Vectors) -> NDArray[np.float64]:
    """In float64 at length one, which float32 vectors have but for rounding; a zero vector stays zero."""
    exact = vectors.astype(np.float64)
    lengths = np.linalg.norm(exact, axis=-1, keepdims=True)
    return np.asarray(exact / np.where(lengths > 0, lengths, 1))
