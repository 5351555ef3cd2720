"""The similarity of sentences, in one call."""

from collections.abc import Iterable
from pathlib import Path
from typing import Unpack

import numpy as np

from bertrelay.checks import list_texts
from bertrelay.data.vectors import Vectors
from bertrelay.errors import RequestError
from bertrelay.inference.compare import compare_all, compare_pairs
from bertrelay.inference.encode import EncodingOptions
from bertrelay.model.encoder import SentenceEncoder, open_encoder
from bertrelay.settings import Metric


def similarity(
    model: SentenceEncoder | str | Path,
    first: Iterable[str],
    second: Iterable[str] | None = None,
    metric: Metric = "cosine",
    *,
    matrix: bool = False,
    **options: Unpack[EncodingOptions],
) -> Vectors:
    """The similarity (n,) of sentence i of `first` and sentence i of `second`, for all i; distances are negative.

    matrix: all pairs instead, (n, m); without `second` those of `first` with itself, (n, n). Where memory is short,
        `bertrelay.inference.compare` does it in blocks.
    options: see `EncodingOptions`.
    Raises RequestError for arguments that are no lists of sentences, or cannot be paired, and for an unknown metric;
    WorkError for a vector that is not finite.
    """
    lists = [list_texts(texts, "similarity") for texts in (first, second) if texts is not None]
    counts = [len(texts) for texts in lists]
    if 0 in counts or (not matrix and (len(counts) < 2 or counts[0] != counts[1])):
        raise RequestError(
            f"similarity: expected two lists of one length, found {' and '.join(map(str, counts))} sentences. For all "
            "with all, of one list or two that are not empty: matrix=True"
        )
    encoder = open_encoder(model)
    if matrix:
        blocks = compare_all(encoder, lists[0], lists[1] if second is not None else None, metric, **options)
    else:
        blocks = compare_pairs(encoder, zip(*lists, strict=True), metric, **options)
    return np.concatenate([block.similarity for block in blocks])
