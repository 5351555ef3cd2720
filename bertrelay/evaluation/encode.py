"""Functions from sentences to vectors, as metrics take them: checked, computed once for all metrics, and cut."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bertrelay.checks import check_dimensions
from bertrelay.data.vectors import check_finite_rows
from bertrelay.stage import Metrics

Encode = Callable[[Sequence[str]], NDArray[np.float32]]
"""Sentences to their vectors, float32 (sentences, dim)."""


def finite(encode: Encode) -> Encode:
    """`encode`, but raising WorkError for vectors that are not finite."""

    def encode_finite(sentences: Sequence[str]) -> NDArray[np.float32]:
        vectors = encode(sentences)
        check_finite_rows(vectors, None, lambda row: f"sentence {row + 1:,}")
        return vectors

    return encode_finite


def encoded_once(encode: Encode, sentences: Sequence[str]) -> Encode:
    """Encodes every distinct sentence of `sentences` now, and returns a function that looks the vectors up.

    Raises WorkError for vectors that are not finite.
    """
    rows = {sentence: row for row, sentence in enumerate(dict.fromkeys(sentences))}
    vectors = finite(encode)(list(rows))
    return lambda some: vectors[[rows[sentence] for sentence in some]]


def metrics_at(dimensions: Sequence[int], score: Callable[[Encode], Metrics], encode: Encode) -> Metrics:
    """The metrics of vectors cut to their first dimensions: `sts/x/64-dimensions/…` beside `sts/x/…` of all.

    Raises RequestError for more dimensions than the vectors have.
    """
    metrics: Metrics = {}
    for dimension in dimensions:
        for name, value in score(partial(_cut, encode, dimension)).items():
            head, _, last = name.rpartition("/")
            metrics[f"{head}/{dimension}-dimensions/{last}"] = value
    return metrics


def _cut(encode: Encode, dimension: int, sentences: Sequence[str]) -> NDArray[np.float32]:
    vectors = encode(sentences)
    check_dimensions([dimension], vectors.shape[1])
    return vectors[:, :dimension]
