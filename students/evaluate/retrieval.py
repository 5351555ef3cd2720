"""Search with a student's queries in an index of its teacher's vectors."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bertrelay.evaluation.encode import Encode
from bertrelay.evaluation.similarity import is_among_nearest
from bertrelay.evaluation.statistics import Floats, share, with_interval
from bertrelay.stage import Metrics
from students.evaluate.translation import english_of
from students.parallel.pairs import Translations
from students.parallel.settings import ENGLISH


def search_metrics(pairs: Mapping[str, Translations], student: Encode, teacher: Encode, top_k: int) -> Metrics:
    """Recall of the student's queries in the index of the teacher's vectors, with 95 % intervals.

    The index has every distinct English sentence of `pairs` once. A query is a distinct sentence of a language, and
    the English sentences that it translates are relevant. Its recall is the fraction of these in the `top_k` nearest,
    those as near as the last of them included.

    `queries/<language>`: number of queries; in English the size of the index.
    `recall_at_<k>/en`: the fraction of English sentences that find themselves.
    `recall_at_<k>/<language>`: the mean over the queries of a language.
    `recall_at_<k>_ratio/<language>`: that mean divided by the same mean of the English sentences they translate.

    Example: "oben" translates both "up" and "above", and only "up" is among its nearest: its recall is 1/2. If both
    English sentences find themselves, the ratio of a language with this query only is (1/2) / 1.
    """
    english = english_of(pairs)
    rows, index = {sentence: row for row, sentence in enumerate(english)}, teacher(english)

    def hits_of(queries: Sequence[str], relevant: Sequence[int]) -> NDArray[np.float64]:
        return is_among_nearest(student(queries), index, np.array(relevant), top_k).astype(np.float64)

    finds_itself = hits_of(english, range(len(english)))
    metrics = {f"queries/{ENGLISH}": len(english)} | with_interval(f"recall_at_{top_k}/{ENGLISH}", share, finds_itself)
    for language, sentences in pairs.items():
        relevant: dict[str, set[int]] = {}
        for source, other in zip(*sentences, strict=True):
            relevant.setdefault(other, set()).add(rows[source])
        searches = ((query, row) for query, targets in relevant.items() for row in targets)
        hits = iter(hits_of(*zip(*searches, strict=True)))
        recall = [np.mean([next(hits) for _ in targets]) for targets in relevant.values()]
        english_recall = [finds_itself[list(targets)].mean() for targets in relevant.values()]
        columns = np.array(recall), np.array(english_recall)
        metrics[f"queries/{language}"] = len(recall)
        metrics |= with_interval(f"recall_at_{top_k}/{language}", share, columns[0])
        metrics |= with_interval(f"recall_at_{top_k}_ratio/{language}", ratio_of_means, *columns)
    return metrics


def ratio_of_means(part: Floats, whole: Floats) -> float | None:
    """The mean of `part` over that of `whole`; None where the latter is 0."""
    return float(np.mean(part) / np.mean(whole)) if np.any(whole) else None
