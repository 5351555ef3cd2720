"""Bitext mining on Tatoeba pairs hidden among sentences without a partner, beside brute force in float64.

Claim: `mine` finds the pairs with the F1 that margin scoring of the whole matrix in float64 gives; its approximate
method is within 0.01 of it.

    python -m benchmarks.mining --data DIR --model MODEL [--languages deu fra] [--seed 0]

Of each language's thousand pairs 700 keep both sentences, 150 lose their English and 150 the other one; all English of
the other languages' files is added, without duplicates, and both files are shuffled. Brute force is written here on its
own: all cosines, all margins, all pairs sorted, best first, one to one. F1 is the best over all thresholds on this
data.
"""

from argparse import Namespace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Claim, main
from benchmarks.machine import MINILM
from bertrelay.data.sentences import clean
from bertrelay.data.vectors import open_vectors
from bertrelay.model.encoder import SentenceEncoder
from students.mining.bitext import VECTORS, mine_files
from students.mining.settings import NEIGHBOURS

TATOEBA = Path("parallel", "tatoeba")
PAIRED, SOURCE_ONLY, WITHIN = 700, 150, 0.01


class Hidden(NamedTuple):
    """Shuffled distinct sentences of two languages, and the true pairs as rows of both."""

    source: list[str]
    target: list[str]
    pairs: list[tuple[int, int]]


def lines(path: Path) -> list[str]:
    return [clean(line) for line in path.read_text(encoding="utf-8").splitlines()]


def hide(folder: Path, language: str, seed: int) -> Hidden:
    other, english = (lines(folder / f"tatoeba.{language}-eng.{code}") for code in (language, "eng"))
    distractors = dict.fromkeys(line for path in sorted(folder.glob("tatoeba.*-eng.eng")) for line in lines(path))
    generator = np.random.default_rng(seed)
    rows = generator.permutation(len(english))
    targets = np.concatenate([rows[:PAIRED], rows[PAIRED + SOURCE_ONLY :]])
    both = [
        [other[row] for row in rows[: PAIRED + SOURCE_ONLY]],
        [english[row] for row in targets] + [line for line in distractors if line not in set(english)],
    ]
    orders = [generator.permutation(len(sentences)) for sentences in both]
    source, target = ([found[row] for row in order] for found, order in zip(both, orders, strict=True))
    places = [np.argsort(order)[:PAIRED].tolist() for order in orders]  # where the paired ones, which came first, went
    return Hidden(source, target, list(zip(*places, strict=True)))


def brute_force(source: NDArray[np.float32], target: NDArray[np.float32], k: int) -> list[tuple[float, int, int]]:
    """All margins in float64, taken best first, one to one."""
    unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in map(np.float64, (source, target))]
    cosines = unit[0] @ unit[1].T  # (n, m)
    near = [np.sort(each, axis=1)[:, -k:].mean(axis=1) for each in (cosines, cosines.T)]
    margins = cosines / ((near[0][:, None] + near[1]) / 2)
    taken, free = [], [np.ones(len(each), bool) for each in unit]
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


def compare(language: str, hidden: Hidden, encoder: SentenceEncoder, folder: Path) -> list[Claim]:
    for name, sentences in (("source.txt", hidden.source), ("target.txt", hidden.target)):
        (folder / name).write_text("".join(f"{line}\n" for line in sentences), encoding="utf-8")
    (folder / "gold.tsv").write_text("".join(f"{s + 1}\t{t + 1}\n" for s, t in hidden.pairs))
    source, target, gold, work = (folder / name for name in ("source.txt", "target.txt", "gold.tsv", "work"))
    mined = (
        mine_files(encoder, source, target, folder / f"{method}.tsv", gold=gold, method=method, work=work)
        for method in ("exact", "approximate")
    )
    exact, near = (cast(float, each.f1) for each in mined)
    of_source, of_target = (open_vectors(work / name) for name in VECTORS)
    whole = best_f1(brute_force(of_source, of_target, NEIGHBOURS), hidden.pairs)
    counts = f"{len(hidden.source):,} × {len(hidden.target):,} sentences, {len(hidden.pairs)} pairs"
    print(f"{language}: {counts}, F1 of brute force {whole:.4f}", flush=True)
    return [
        Claim(f"{language}, exact: that F1", f"{exact:.4f}", abs(exact - whole) < 1e-9),
        Claim(f"{language}, approximate: within {WITHIN}", f"{near:.4f}", abs(near - whole) <= WITHIN),
    ]


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    encoder = SentenceEncoder.load(options.model)
    claims: list[Claim] = []
    for language in options.languages:
        (folder := options.scratch / language).mkdir()
        claims += compare(language, hide(options.data / TATOEBA, language, options.seed), encoder, folder)
    return claims, {}


if __name__ == "__main__":
    main(measure, __doc__, str(TATOEBA), model=MINILM, languages=["deu", "fra"], seed=0)
