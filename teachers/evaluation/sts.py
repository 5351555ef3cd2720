"""Semantic textual similarity: Spearman's rank correlation of the vectors' cosine with the gold scores."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.records import Rejects, aligned_rows, read
from bertrelay.data.tables import Record, StsTable, Unusable
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import pairwise
from bertrelay.evaluation.statistics import spearman, with_interval
from bertrelay.stage import Metrics, StageContext
from teachers.data import parse_score
from teachers.settings import COLUMNS

Encode = Callable[[Sequence[str]], NDArray[np.float32]]
"""Sentences to their vectors, float32 (sentences, dim)."""

Fit = Callable[[Sequence[str]], Encode]
"""All sentences of a set to the function that encodes some of them: TF-IDF and word vectors depend on them."""


@dataclass(frozen=True)
class StsPairs:
    """Pairs of sentences and their gold scores, (pairs,), on whatever scale."""

    first: list[str]
    second: list[str]
    scores: NDArray[np.float64]


def at_once(fit: Fit) -> Encode:
    """Fits on the sentences of each call."""
    return lambda sentences: fit(sentences)(sentences)


def read_sts(table: StsTable, context: StageContext, rejects: Rejects) -> StsPairs:
    """The pairs of `table`; rows that cannot be used go to `rejects`."""
    records_of = read if table.second is None else _across
    found = []
    for record in records_of(table, COLUMNS["cosine"], context.cache, rejects):
        try:
            first, second, score = _pair(record)
        except ValueError as error:
            rejects.add(record.file, record.line, str(error))
        else:
            rejects.used()
            found.append((first, second, score))
    if not found:
        names = [table.name, str(table.second)]
        raise RequestError(
            f"{table.name}: expected pairs with a score, found none that can be used: {rejects.summary(names)}"
        )
    return StsPairs([f for f, _, _ in found], [s for _, s, _ in found], np.array([score for *_, score in found]))


def _across(table: StsTable, columns: Sequence[str | int], cache: Path | None, rejects: Rejects) -> Iterator[Record]:
    """Records whose second sentence is in the row-aligned table `second`."""
    other = table.model_copy(update={"path": table.second, "hub": None, "config": None, "second": None})
    for row, aligned in aligned_rows(table, other, columns, cache):
        if isinstance(row, Record) and isinstance(aligned, Record):
            (first, _, score), (_, second, _) = _three(row), _three(aligned)
            yield row._replace(values=(first, second, score))
        else:
            fault = next(side for side in (row, aligned) if isinstance(side, Unusable))
            rejects.add(fault.file, fault.line, fault.reason)


def _pair(record: Record) -> tuple[str, str, float]:
    first, second, score = _three(record)
    if not (isinstance(first, str) and isinstance(second, str)):
        raise ValueError("a sentence that is not text")
    return first, second, parse_score(score)


def _three(record: Record) -> tuple[Any, ...]:
    if len(record.values) != 3:
        raise RequestError(
            f"{record.file}: STS reads 3 columns (sentence1, sentence2, score), found {len(record.values)} in `columns`"
        )
    return record.values


def sts_metrics(pairs: Mapping[str, StsPairs], encode: Encode, intervals: bool = True) -> Metrics:
    """`sts/<name>/spearman_cosine` for each set, and its interval; every distinct sentence is encoded once."""
    sentences = [sentence for each in pairs.values() for side in (each.first, each.second) for sentence in side]
    vectors = encode(sentences)
    metrics: Metrics = {}
    start = 0
    for name, each in pairs.items():
        middle, end = start + len(each.scores), start + 2 * len(each.scores)
        cosines = pairwise(vectors[start:middle], vectors[middle:end])
        metrics |= _figures(f"sts/{name}/spearman_cosine", cosines, each.scores, intervals)
        start = end
    return metrics


def _figures(name: str, cosines: NDArray[Any], scores: NDArray[np.float64], intervals: bool) -> Metrics:
    return with_interval(name, spearman, cosines, scores) if intervals else {name: spearman(cosines, scores)}
