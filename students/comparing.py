"""How similar sentences are, in one call; `bertrelay.evaluation.similarity` does it in blocks where memory is short."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bertrelay.data.texts import texts_of
from bertrelay.encoder import SentenceEncoder, as_encoder
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import Metric, Vectors, compare_all, compare_pairs


def similarity(
    model: SentenceEncoder | str | Path,
    first: Iterable[str],
    second: Iterable[str] | None = None,
    metric: Metric = "cosine",
    *,
    matrix: bool = False,
    prompt_name: str | None = None,
    precision: str = "auto",
    batch_tokens: int | None = None,
) -> Vectors:
    """The similarity (n,) of each of `first` with the one of `second` beside it; distances are negative.

    matrix: all with all instead, (n, m); without `second`, `first` with itself, (n, n).
    Raises RequestError for sides that are no lists of sentences, or cannot be paired, and for an unknown metric;
    WorkError for a vector that is not finite.
    """
    sides = [texts_of(first, "similarity"), *([] if second is None else [texts_of(second, "similarity")])]
    counts = [len(side) for side in sides]
    if 0 in counts or (not matrix and (len(counts) < 2 or counts[0] != counts[1])):
        raise RequestError(
            f"similarity: expected two lists of one length, found {' and '.join(map(str, counts))} sentences. For all "
            "with all, of one list or two that are not empty: matrix=True"
        )
    encoder = as_encoder(model)
    computing: dict[str, Any] = {"prompt_name": prompt_name, "precision": precision, "batch_tokens": batch_tokens}
    if matrix:
        blocks = compare_all(encoder, sides[0], sides[1] if second is not None else None, metric, **computing)
    else:
        blocks = compare_pairs(encoder, zip(*sides, strict=True), metric, **computing)
    return np.concatenate([block.similarity for block in blocks])
