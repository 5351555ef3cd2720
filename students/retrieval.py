"""What a student finds: English sentences in its teacher's index, and translations in a set of many languages."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bertrelay.evaluation.similarity import unit
from bertrelay.evaluation.statistics import Floats, share, with_interval
from bertrelay.stage import Metrics
from students.metrics import Encode, english_of
from students.neighbours import exact_neighbours
from students.pairs import Translations
from students.settings import ENGLISH

# Search across spaces


def search_metrics(pairs: Mapping[str, Translations], student: Encode, teacher: Encode, k: int) -> Metrics:
    """Recall of the student's queries in the index of the teacher's vectors, with 95 % intervals.

    The index has every distinct English sentence of `pairs` once. A query is a distinct sentence of a language, and
    relevant are the English sentences that it translates; its recall is the share of them among the `k` nearest.

    `recall_at_<k>/en`: of the English sentences themselves, each of which has to find itself.
    `recall_at_<k>/<language>`: the mean over the queries of a language.
    `recall_at_<k>_ratio/<language>`: that mean over what the English sentences they translate have.
    """
    english = english_of(pairs)
    rows, index = {sentence: row for row, sentence in enumerate(english)}, unit(teacher(english))

    def found(queries: Sequence[str]) -> NDArray[np.int64]:
        return exact_neighbours(unit(student(queries)), index, k)[1]  # (queries, k)

    finds_itself = np.any(found(english) == np.arange(len(english))[:, None], axis=1).astype(np.float64)
    metrics = with_interval(f"recall_at_{k}/{ENGLISH}", share, finds_itself)
    for language, sentences in pairs.items():
        relevant: dict[str, set[int]] = {}
        for source, other in zip(*sentences, strict=True):
            relevant.setdefault(other, set()).add(rows[source])
        nearest = found(list(relevant)).tolist()
        recall = [len(wanted & set(own)) / len(wanted) for wanted, own in zip(relevant.values(), nearest, strict=True)]
        of_english = [finds_itself[list(wanted)].mean() for wanted in relevant.values()]
        columns = np.array(recall), np.array(of_english)
        metrics |= with_interval(f"recall_at_{k}/{language}", share, columns[0])
        metrics |= with_interval(f"recall_at_{k}_ratio/{language}", ratio_of_means, *columns)
    return metrics


def ratio_of_means(part: Floats, whole: Floats) -> float | None:
    """The mean of `part` over that of `whole`; None where the latter is 0."""
    return float(np.mean(part) / np.mean(whole)) if np.any(whole) else None
