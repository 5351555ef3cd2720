"""xsim: errors of finding translations by margin, for any two languages of n-way sets, as LASER defines it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.vectors import Vectors
from bertrelay.evaluation.encode import Encode
from bertrelay.evaluation.similarity import ROUNDING, is_among_nearest, pairwise, unit
from bertrelay.evaluation.statistics import Floats, with_interval
from bertrelay.stage import Metrics
from students.evaluate.settings import XsimPairs
from students.mining.knn import Neighbours, exact_knn, ratio_margins
from students.mining.settings import NEIGHBOURS
from students.parallel.pairs import Translations
from students.parallel.settings import ENGLISH

Rows = dict[tuple[str, int], str]
"""Sentences of a language by the English sentence they translate, and its number among equal ones."""


def xsim_metrics(name: str, pairs: Mapping[str, Translations], encode: Encode, directions: XsimPairs) -> Metrics:
    """`xsim_error/<name>/<source>/<target>` with 95 % intervals: the percentage of sentences that find another target.

    pairs: an n-way set. Sentences of two languages are translations of each other if they translate the same English.
    directions: as `xsim_pairs` of `EvaluateSettings`.
    """
    rows = rows_by_language(pairs)
    requested = requested_directions(list(rows), directions)
    metrics: Metrics = {}
    for one, other in combinations(rows, 2):
        both = [(one, other), (other, one)]
        keys = [key for key in rows[one] if key in rows[other]]
        if not keys or requested.isdisjoint(both):
            continue
        vectors = [unit(encode([rows[language][key] for key in keys])) for language in (one, other)]  # (keys, dim) each
        forward, backward = exact_knn(vectors[0], vectors[1], NEIGHBOURS)
        for direction, neighbours in zip(both, ((forward, backward), (backward, forward)), strict=True):
            if direction in requested:
                source, target = vectors if direction == both[0] else vectors[::-1]
                wrong = ~is_translation(best_by_margin(*neighbours), source, target)
                metrics |= with_interval(f"xsim_error/{name}/{'/'.join(direction)}", percentage, wrong)
    return metrics


def rows_by_language(pairs: Mapping[str, Translations]) -> dict[str, Rows]:
    """The sentences of each language, English first.

    German "Hallo", "Hi" for English "Hello", "Hello" give {"en": {("Hello", 0): "Hello", ("Hello", 1): "Hello"},
    "de": {("Hello", 0): "Hallo", ("Hello", 1): "Hi"}}.
    """
    english: Rows = {}
    rows: dict[str, Rows] = {ENGLISH: english}
    for language, sentences in pairs.items():
        times, others = Counter[str](), rows.setdefault(language, {})
        for source, other in zip(*sentences, strict=True):
            key = source, times[source]
            times[source] += 1
            english[key], others[key] = source, other
    return rows


def best_by_margin(forward: Neighbours, backward: Neighbours) -> NDArray[np.int64]:
    """The row of each source's neighbour with the highest ratio margin (Artetxe & Schwenk 2019), as in LASER's xsim.

    forward: the k nearest targets of each source. backward: the k nearest sources of each target.

    The margin is the cosine divided by the mean cosine of both sentences with their k neighbours. Example with k = 2: a
    source has the cosines .8 and .7 (mean .75) with two targets, whose own neighbours have a mean of .85 and of .6. Its
    margins are .8 / .8 = 1 and .7 / .675 = 1.04, so the second target is chosen.
    """
    near_source, near_target = forward.cosines.mean(axis=1), backward.cosines.mean(axis=1)
    margins = ratio_margins(forward.cosines, (near_source[:, None] + near_target[forward.rows]) / 2)  # (sources, k)
    return np.take_along_axis(forward.rows, margins.argmax(axis=1)[:, None], 1)[:, 0]


def is_translation(chosen: NDArray[np.int64], source: Vectors, target: Vectors) -> NDArray[np.bool_]:
    """True where row `chosen` (n,) of `target` is that of the source, or has the same vector, (n,).

    source, target: vectors of sentences that translate each other row by row, (n, dim) each.
    """
    is_same = (chosen == np.arange(len(chosen))) | (pairwise(target[chosen], target) >= 1 - ROUNDING)
    return np.asarray(is_same & is_among_nearest(source, target, top_k=NEIGHBOURS))


def percentage(hits: Floats) -> float:
    """The percentage of `hits` that are true."""
    return 100 * float(np.mean(hits))


def requested_directions(languages: Sequence[str], directions: XsimPairs) -> set[tuple[str, str]]:
    """The pairs of source and target among `languages`."""
    if not isinstance(directions, str):
        return {(source, target) for source, target in directions}
    return {pair for pair in permutations(languages, 2) if directions == "all" or ENGLISH in pair}
