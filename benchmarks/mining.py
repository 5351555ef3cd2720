"""Bitext mining on Tatoeba pairs hidden among sentences without a partner, beside brute force in float64.

Claim: `mine` finds the pairs with the F1 that margin scoring of the whole matrix in float64 gives; its approximate way
is within 0.01 of it.

    python -m benchmarks.mining --data DIR --model MODEL [--languages deu fra] [--seed 0]

Of each language's thousand pairs 700 keep both sides, 150 lose their English and 150 the other side; all English of the
other languages' files is added, what is equal to a sentence already there left out; both sides are shuffled. Brute
force is written here on its own: all cosines, all margins, all pairs sorted, best first, one to one. F1 is the best
over all thresholds on this very data, for all three alike, so it says nothing about a threshold for other data.

The last lines time the search for neighbours alone, on drawn vectors, all with all and through graphs: all with all is
the quicker way for a long time yet.
"""

import sys
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import MINILM, add_data, machine, require
from bertrelay.data.vectors import open_vectors
from bertrelay.encoder import SentenceEncoder
from students.bitext import VECTORS, mine_files
from students.neighbours import neighbours_both_ways
from students.parallel.pairs import clean
from students.settings import NEIGHBOURS, Method

TATOEBA = Path("parallel", "tatoeba")
PAIRED, SOURCE_ONLY = 700, 150
WITHIN = 0.01
METHODS: tuple[Method, ...] = ("exact", "approximate")


class Hidden(NamedTuple):
    """Two shuffled sides of distinct sentences, and the true pairs as rows of both."""

    source: list[str]
    target: list[str]
    pairs: list[tuple[int, int]]


def lines(path: Path) -> list[str]:
    return [clean(line) for line in path.read_text(encoding="utf-8").splitlines()]


def hide(folder: Path, language: str, seed: int) -> Hidden:
    other, english = (lines(folder / f"tatoeba.{language}-eng.{side}") for side in (language, "eng"))
    files = sorted(folder.glob("tatoeba.*-eng.eng"))
    strange = dict.fromkeys(line for path in files for line in lines(path))
    generator = np.random.default_rng(seed)
    rows = generator.permutation(len(english))
    sources = rows[: PAIRED + SOURCE_ONLY]
    targets = np.concatenate([rows[:PAIRED], rows[PAIRED + SOURCE_ONLY :]])
    both = [
        [other[row] for row in sources],
        [english[row] for row in targets] + [line for line in strange if line not in set(english)],
    ]
    orders = [generator.permutation(len(side)) for side in both]
    source, target = ([side[row] for row in order] for side, order in zip(both, orders, strict=True))
    places = [np.argsort(order)[:PAIRED].tolist() for order in orders]  # where the paired ones, which came first, went
    return Hidden(source, target, list(zip(*places, strict=True)))


def brute_force(source: NDArray[np.float32], target: NDArray[np.float32], k: int) -> list[tuple[float, int, int]]:
    """All margins in float64, taken best first, one to one."""
    unit = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in map(np.float64, (source, target))]
    cosines = unit[0] @ unit[1].T  # (n, m)
    near = [np.sort(side, axis=1)[:, -k:].mean(axis=1) for side in (cosines, cosines.T)]
    margins = cosines / ((near[0][:, None] + near[1]) / 2)
    taken, free = [], [np.ones(len(side), bool) for side in unit]
    for place in np.argsort(-margins, axis=None, kind="stable").tolist():
        row, column = divmod(place, len(target))
        if free[0][row] and free[1][column]:
            free[0][row] = free[1][column] = False
            taken.append((float(margins[row, column]), row, column))
    return taken


def best_f1(found: list[tuple[float, int, int]], pairs: list[tuple[int, int]]) -> float:
    """Over every threshold: of found pairs best first, with so many true ones among the first so many."""
    true = set(pairs)
    right = np.cumsum([(source, target) in true for _, source, target in found])
    return float(np.max(2 * right / (np.arange(1, len(found) + 1) + len(true))))


def compare(language: str, hidden: Hidden, encoder: SentenceEncoder, folder: Path) -> bool:
    """Prints F1 and seconds of each way; whether they are as claimed."""
    for name, side in (("source.txt", hidden.source), ("target.txt", hidden.target)):
        (folder / name).write_text("".join(f"{line}\n" for line in side), encoding="utf-8")
    (folder / "gold.tsv").write_text("".join(f"{s + 1}\t{t + 1}\n" for s, t in hidden.pairs))
    source, target, gold, work = (folder / name for name in ("source.txt", "target.txt", "gold.tsv", "work"))
    mine_files(encoder, source, target, folder / "warm.tsv", work=work)  # encodes, for all that follow
    began = time.perf_counter()
    exact = mine_files(encoder, source, target, folder / "exact.tsv", gold=gold, method="exact", work=work)
    between = time.perf_counter()
    approximate = mine_files(encoder, source, target, folder / "hnsw.tsv", gold=gold, method="approximate", work=work)
    ended = time.perf_counter()
    found = brute_force(open_vectors(work / VECTORS[0]), open_vectors(work / VECTORS[1]), NEIGHBOURS)
    whole = best_f1(found, hidden.pairs)
    print(
        f"{language}: {len(hidden.source):,} × {len(hidden.target):,} sentences, {len(hidden.pairs)} pairs\n"
        f"    brute force, float64  F1 {whole:.4f}  {time.perf_counter() - ended:6.2f} s\n"
        f"    mine, exact           F1 {exact.f1:.4f}  {between - began:6.2f} s  threshold {exact.threshold:.4f}  "
        f"precision {exact.precision:.4f}  recall {exact.recall:.4f}\n"
        f"    mine, approximate     F1 {approximate.f1:.4f}  {ended - between:6.2f} s",
        flush=True,
    )
    assert exact.f1 is not None and approximate.f1 is not None  # there is gold
    return abs(exact.f1 - whole) < 1e-9 and abs(approximate.f1 - whole) <= WITHIN


def drawn(count: int, dim: int, seed: int) -> NDArray[np.float32]:
    """Unit vectors around as many centres as a tenth of them, so that some are nearer than others."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(max(1, count // 10), dim))
    vectors = centres[generator.integers(0, len(centres), count)] + generator.normal(size=(count, dim))
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def time_search(count: int, dim: int) -> None:
    source, target = drawn(count, dim, 1), drawn(count, dim, 2)
    print(f"neighbours of {count:,} and {count:,} drawn vectors of {dim} dimensions, both ways")
    for method in METHODS:
        began, cpu = time.perf_counter(), time.process_time()
        neighbours_both_ways(source, target, NEIGHBOURS, method)
        print(
            f"    {method:11} {time.perf_counter() - began:6.2f} s, {time.process_time() - cpu:6.2f} s of the processor"
        )


def main() -> int:
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_data(parser)
    parser.add_argument("--model", default=MINILM, help=f"a multilingual student (default {MINILM}, which is English)")
    parser.add_argument("--languages", nargs="+", default=["deu", "fra"], metavar="XXX", help="of Tatoeba's files")
    parser.add_argument("--seed", type=int, default=0, help="of what is hidden where")
    parser.add_argument("--vectors", type=int, default=10_000, help="of each side, to time the search; 0 for none")
    given = parser.parse_args()
    require(parser, given.data, *(str(TATOEBA / f"tatoeba.{language}-eng.eng") for language in given.languages))
    print(machine())
    encoder = SentenceEncoder.load(given.model)
    as_claimed = True
    for language in given.languages:
        with tempfile.TemporaryDirectory() as folder:
            hidden = hide(given.data / TATOEBA, language, given.seed)
            as_claimed &= compare(language, hidden, encoder, Path(folder))
    if given.vectors:
        time_search(given.vectors, encoder.dim)
    print(f"as claimed: {'yes' if as_claimed else 'no'}")
    return 0 if as_claimed else 1


if __name__ == "__main__":
    sys.exit(main())
