"""Nearness of a student's vectors to its teacher's: cosine, agreement of similarities, and squared error.

A student of multilingual distillation is to give each sentence the teacher's vector of its English (Reimers & Gurevych
2020). Retrieval alone does not show that it does: a student may find translations in a space of its own.
"""

from collections.abc import Mapping
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.vectors import Vectors
from bertrelay.errors import RequestError
from bertrelay.evaluation import statistics
from bertrelay.evaluation.encode import Encode
from bertrelay.evaluation.similarity import numbers, pairwise, unit
from bertrelay.evaluation.statistics import none_if_nan, ratio, weighted_spearman
from bertrelay.stage import Metrics
from students.evaluate.translation import english_of
from students.evaluate.verdicts import MEAN
from students.parallel.pairs import Translations
from students.parallel.settings import ENGLISH

PAIRS = 20_000
"""Pairs of sentences whose similarities are compared; more would move a correlation by less than 0.01."""
PAIRS_AT_ONCE = 1024  # few enough for a processor's cache


def nearness(student: Vectors, teacher: Vectors, *, with_intervals: bool = False, seed: int = 0) -> Metrics:
    """Compares the student's vectors (n, dim) of n sentences with the teacher's (n, dim), row by row.

    `cosine`: the mean cosine of row i with row i.
    `unrelated`: the mean cosine of row i of the student with row j of the teacher, of pairs that do not belong
        together: what `cosine` is without any relation.
    `agreement`: Spearman's correlation of the cosines of pairs of rows among the student's vectors with those of the
        same pairs among the teacher's, ties at their mean rank. It ignores rotations, and needs no equal dimensions.
    `error`: the mean squared distance of row i to row i, divided by the variance of the teacher's rows: 0 is the
        teacher, and 1 what its mean vector scores.

    The pairs are PAIRS that `seed` draws, or all of them where there are fewer. Where dimensions differ, only
    `agreement` is measured; a measure that is not defined is None.
    with_intervals: 95 % bootstrap intervals over the sentences, as `cosine_low` and `cosine_high`.
    Raises RequestError where the numbers of rows differ.
    """
    student, teacher = numbers(student), numbers(teacher)  # (n, dim) each
    if len(student) != len(teacher):
        raise RequestError(f"nearness: expected vectors of the same sentences, found {len(student)} and {len(teacher)}")
    first, second = drawn_pairs(len(student), seed)  # (pairs,) each
    directions = unit(student), unit(teacher)
    agreement = weighted_spearman(*(_pair_products(rows, rows, first, second) for rows in directions))
    is_one_size = student.shape == teacher.shape and len(student) > 0
    if is_one_size:
        cosines = np.minimum(pairwise(student, teacher), 1).astype(np.float64)  # (n,); rounding goes beyond
        unrelated = _pair_products(*directions, first, second)  # (pairs,)
        squares = ((student.astype(np.float64) - teacher) ** 2).sum(axis=1)  # (n,)
        deviations = ((teacher - teacher.mean(axis=0, dtype=np.float64)) ** 2).sum(axis=1)  # (n,)

    def metrics_of(weights: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        resamples = np.atleast_2d(weights)  # (resamples, n)
        measured = np.empty((4, len(resamples)))
        for column, counts in enumerate(resamples):
            pair_weights = counts[first] * counts[second]
            measured[1, column] = agreement(pair_weights)
            if is_one_size:
                measured[0, column] = ratio(counts @ cosines, counts.sum())
                measured[2, column] = ratio(counts @ squares, counts @ deviations)
                measured[3, column] = ratio(pair_weights @ unrelated, pair_weights.sum())
        measured = measured.reshape(4, *weights.shape[:-1])
        columns = dict(zip(("cosine", "agreement", "error", "unrelated"), measured, strict=True))
        return columns if is_one_size else {"agreement": columns["agreement"]}

    if with_intervals:
        return statistics.with_intervals(metrics_of, np.arange(len(student)))
    return {name: none_if_nan(value) for name, value in metrics_of(np.ones(len(student))).items()}


def drawn_pairs(rows: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Two different rows of each of PAIRS pairs that `seed` draws, (pairs,) each; of all pairs where there are fewer.

    Pairs are numbered by their first row: of 3 rows (0, 1), (0, 2), (1, 2) are the pairs 0, 1 and 2.
    """
    count = rows * (rows - 1) // 2
    numbers_of_pairs = np.arange(count)
    if count > PAIRS:
        numbers_of_pairs = np.sort(np.random.default_rng(seed).choice(count, PAIRS, replace=False))
    row = np.arange(rows)
    starts = row * (2 * rows - row - 1) // 2  # the number of the first pair of each row
    first = np.searchsorted(starts[:-1], numbers_of_pairs, side="right") - 1
    return first, numbers_of_pairs - starts[first] + first + 1


def nearness_metrics(
    pairs: Mapping[str, Translations],
    student: Encode,
    teacher: Encode,
    *,
    own_vectors: bool = False,
    with_intervals: bool = False,
    kind: str = "",
) -> Metrics:
    """`nearness/<measure>/<kind><language>`, of English and of every language, with the measures of `nearness`.

    `mean` in place of a language is the mean over all languages but English, where there are several.
    own_vectors: a translation is compared with the teacher's vector of itself, not with that of its English.
    """
    english = english_of(pairs)
    rows = {ENGLISH: (english, english)} if pairs else {}
    for language, sentences in pairs.items():
        rows[language] = sentences.other, sentences.other if own_vectors else sentences.english
    measured = {
        language: nearness(student(sentences), teacher(targets), with_intervals=with_intervals)
        for language, (sentences, targets) in rows.items()
    }
    metrics = {
        f"nearness/{name.removesuffix(end)}/{kind}{language}{end}": value
        for language, measures in measured.items()
        for name, value in measures.items()
        for end in [next(filter(name.endswith, ("_low", "_high")), "")]
    }
    if len(pairs) > 1:
        for measure in measured[ENGLISH]:
            values = [measured[language].get(measure) for language in pairs]
            if None not in values and not measure.endswith(("_low", "_high")):
                metrics[f"nearness/{measure}/{kind}{MEAN}"] = fmean(value for value in values if value is not None)
    return metrics


def _pair_products(
    left: Vectors, right: Vectors, first: NDArray[np.int64], second: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The products (pairs,) of rows `first` of `left` (n, dim) with rows `second` of `right` (n, dim)."""
    products = np.empty(len(first))
    for start in range(0, len(first), PAIRS_AT_ONCE):
        block = slice(start, start + PAIRS_AT_ONCE)
        products[block] = np.einsum("pd,pd->p", left[first[block]], right[second[block]])
    return products
