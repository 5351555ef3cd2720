"""The nearest neighbours of two sides in one another, both ways at once, saved so that a kill costs little.

Exact: every product of a block of sources with a block of targets serves its rows and its columns. So all with all is
computed once for both directions, and as choosing costs far less than the products, this takes little more than half
the time of two searches. It needs no FAISS, and runs where the model runs, on a GPU too.

Neighbours are gathered by float32 cosines, some more of them than are asked for, and the best of these chosen by their
float64 cosines. So rounding changes no score, and no neighbour unless more than the spare ones lie within it.
"""

import os
import time
import zipfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bertrelay.errors import RequestError
from bertrelay.files import sync_folder
from bertrelay.fingerprint import fingerprint
from bertrelay.progress import progress, say
from bertrelay.similarity import DIGITS, Vectors
from bertrelay.vectors import not_written
from students.margin import Neighbours
from students.mining_settings import EXACT_PAIRS, Method
from students.nearest import Nearest
from students.neighbours import approximate_neighbours, build_hnsw
from students.search_settings import Hnsw

SOURCES, TARGETS = 4096, 2048  # of one product, which takes 32 MB
ASKED_AT_ONCE = 4096  # of a graph
CHOSEN_AT_ONCE = 1024
SPARE = 4  # neighbours gathered beyond k, from among which float64 chooses
SECONDS_BETWEEN_SAVES = 20.0
CPU = torch.device("cpu")


def neighbours_both_ways(
    source: Vectors,
    target: Vectors,
    k: int,
    method: Method = "auto",
    device: torch.device = CPU,
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
    _check(source, target, k)
    exact = is_exact(method, len(source), len(target))
    say(f"comparing {len(source):,} with {len(target):,} sentences {_told(exact, method)}")
    key = fingerprint({"vectors": key, "k": k, "exact": exact, "shapes": [source.shape, target.shape]})
    gathering = _open(folder, key, len(source), len(target), k + SPARE)
    if exact:
        _compare_all(source, target, gathering, device)
    else:
        _ask_graph("target", target, source, gathering.forward, gathering, done_before=0)
        _ask_graph("source", source, target, gathering.backward, gathering, done_before=len(source))
    return _choose(gathering.forward, source, target, k), _choose(gathering.backward, target, source, k)


def is_exact(method: Method, sources: int, targets: int) -> bool:
    """Whether `method` compares all with all, for so many."""
    return method == "exact" or (method == "auto" and sources * targets <= EXACT_PAIRS)


def _check(source: Vectors, target: Vectors, k: int) -> None:
    if k < 1:
        raise RequestError(f"k: expected 1 or more, found {k}")
    if source.ndim != 2 or target.ndim != 2 or source.shape[1] != target.shape[1] or 0 in (len(source), len(target)):
        raise RequestError(
            "mine: expected vectors of both sides, (n, dim) and (m, dim), with the same dim and at least one of each, "
            f"found {source.shape} and {target.shape}. Encode both sides with one model"
        )
    for name, vectors in (("source", source), ("target", target)):
        for start in range(0, len(vectors), CHOSEN_AT_ONCE):
            odd = np.flatnonzero(~np.isfinite(vectors[start : start + CHOSEN_AT_ONCE]).all(axis=1))
            if len(odd):
                raise RequestError(
                    f"mine: expected finite vectors, found another one for distinct {name} sentence "
                    f"{start + odd[0] + 1:,}. Check the model, or try precision fp32"
                )


def _told(exact: bool, method: Method) -> str:
    if exact:
        return "exactly, all with all"
    why = "" if method == "approximate" else f", as they make more than {EXACT_PAIRS:,} pairs"
    return f"approximately, through FAISS{why}; the method exact compares all with all"


@dataclass
class Gathering:
    """What is found so far in both directions, and the file it is saved in now and then.

    done: sources that went through; of graphs, targets too, which follow them.
    """

    path: Path | None
    key: str
    forward: Nearest
    backward: Nearest
    done: int = 0
    saved: float = field(default_factory=time.monotonic)

    def advance(self, count: int, last: bool) -> None:
        """Counts `count` more as done, and saves when it is time or this was the last of a direction."""
        self.done += count
        if self.path is not None and (last or time.monotonic() - self.saved >= SECONDS_BETWEEN_SAVES):
            _save(self, self.path)
            self.saved = time.monotonic()


def _open(folder: Path | None, key: str, sources: int, targets: int, keep: int) -> Gathering:
    """What is saved in `folder` under the same `key`, or nothing yet."""
    path = folder and folder / "neighbours.npz"
    if path is not None and path.is_file():
        saved = _read(path, key)
        if saved is not None:
            return saved
        say(f"{path} is damaged, or of other sentences, another k or another method; comparing begins again")
    forward, backward = Nearest.none(sources, min(keep, targets)), Nearest.none(targets, min(keep, sources))
    return Gathering(path, key, forward, backward)


def _read(path: Path, key: str) -> Gathering | None:
    with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile), path.open("rb") as file:
        saved = np.load(file)
        if saved["key"] == key:
            forward = Nearest(saved["forward_cosines"], saved["forward_rows"])
            backward = Nearest(saved["backward_cosines"], saved["backward_rows"])
            return Gathering(path, key, forward, backward, int(saved["done"]))
    return None


def _save(gathering: Gathering, path: Path) -> None:
    building = path.with_name(path.name + ".building")
    try:
        with building.open("wb") as file:
            np.savez(
                file,
                key=np.array(gathering.key),
                done=np.array(gathering.done),
                forward_cosines=gathering.forward.cosines,
                forward_rows=gathering.forward.rows,
                backward_cosines=gathering.backward.cosines,
                backward_rows=gathering.backward.rows,
            )
            file.flush()
            os.fsync(file.fileno())
        building.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        building.unlink(missing_ok=True)
        raise not_written(path, error) from error


def _compare_all(source: Vectors, target: Vectors, gathering: Gathering, device: torch.device) -> None:
    """Every block of sources with every block of targets; blocks of sources that are done are left out."""
    with progress("comparing", len(source) * len(target), "pairs", gathering.done * len(target)) as bar:
        for first in range(gathering.done, len(source), SOURCES):
            block = torch.tensor(source[first : first + SOURCES], device=device)  # (sources, dim)
            for start in range(0, len(target), TARGETS):
                cosines = block @ torch.tensor(target[start : start + TARGETS], device=device).T  # (sources, targets)
                gathering.forward.offer(cosines, 0, first, start)
                gathering.backward.offer(cosines, 1, start, first)
                bar.advance(cosines.numel())
            gathering.advance(len(block), last=first + SOURCES >= len(source))


def _ask_graph(
    name: str, corpus: Vectors, queries: Vectors, nearest: Nearest, gathering: Gathering, done_before: int
) -> None:
    """Asks a graph of `corpus` with every one of `queries`; where all are done, it is not built."""
    done = gathering.done - done_before
    if done >= len(queries):
        return
    hnsw = Hnsw()
    checkpoint = gathering.path and gathering.path.with_name(f"{name}.graph")
    graph = build_hnsw(corpus, hnsw, checkpoint, f"{name} {gathering.key}")
    with progress("asking the graph", len(queries), "sentences", done) as bar:
        for first in range(done, len(queries), ASKED_AT_ONCE):
            asked = slice(first, first + ASKED_AT_ONCE)
            nearest.cosines[asked], nearest.rows[asked] = approximate_neighbours(
                graph, queries[asked], nearest.rows.shape[1], hnsw.ef_search
            )
            count = min(ASKED_AT_ONCE, len(queries) - first)
            bar.advance(count)
            gathering.advance(count, last=first + count == len(queries))
    if checkpoint:
        checkpoint.unlink(missing_ok=True)


def _choose(nearest: Nearest, own: Vectors, other: Vectors, k: int) -> Neighbours:
    """The `k` best by float64 cosines, of equals the lower row."""
    # A graph may lead to fewer than were asked for: the best one stands again in the empty places, or, where there is
    # none, row 0, which has the cosine that it has.
    rows = np.where(nearest.rows < 0, nearest.rows[:, :1], nearest.rows).clip(0).astype(np.int64)  # (n, keep)
    cosines = np.empty(rows.shape)
    for start in range(0, len(rows), CHOSEN_AT_ONCE):
        block = slice(start, start + CHOSEN_AT_ONCE)
        cosines[block] = np.einsum("nd,nkd->nk", _unit64(own[block]), _unit64(other[rows[block]]))
    cosines = cosines.round(DIGITS)
    best = np.lexsort((rows, -cosines))[:, :k]  # (n, k)
    return Neighbours(np.take_along_axis(cosines, best, 1), np.take_along_axis(rows, best, 1))


def _unit64(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """In float64 at length one, which float32 vectors have but for rounding; a zero vector stays zero."""
    exact = vectors.astype(np.float64)
    lengths = np.linalg.norm(exact, axis=-1, keepdims=True)
    return exact / np.where(lengths > 0, lengths, 1)
