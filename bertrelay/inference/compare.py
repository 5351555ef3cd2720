"""Similarity of sentences, in blocks: pairs, or all with all."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Unpack

from bertrelay.blocks import blocks_of
from bertrelay.checks import check_choice, iterate_pairs, list_texts
from bertrelay.data.tables import BLOCK_SENTENCES
from bertrelay.data.vectors import Vectors
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import METRICS, matrix, pairwise
from bertrelay.inference.encode import Encodes, EncodingOptions, check_finite, encode, encode_blocks
from bertrelay.progress import Bar
from bertrelay.settings import Metric

CELLS_AT_ONCE = 8_000_000  # of a similarity matrix


class Compared(NamedTuple):
    """Sentences and their similarity: (first,) pairwise, or (first, second) all with all."""

    first: Sequence[str]
    second: Sequence[str]
    similarity: Vectors


def compare_pairs(
    encoder: Encodes,
    pairs: Iterable[tuple[str, str]],
    metric: Metric = "cosine",
    *,
    bar: Bar | None = None,
    **options: Unpack[EncodingOptions],
) -> Iterator[Compared]:
    """The similarity of the two sentences of each pair, in blocks; `pairs` may be endless, and is read ahead.

    Raises RequestError for an unknown metric, and WorkError for a vector that is not finite.
    """
    check_choice("metric", metric, METRICS)
    stream, waiting, done = iterate_pairs(pairs, "compare_pairs"), deque[tuple[list[str], list[str]]](), 0

    def texts() -> Iterator[list[str]]:
        for block in blocks_of(stream, BLOCK_SENTENCES // 2):
            first, second = [pair[0] for pair in block], [pair[1] for pair in block]
            waiting.append((first, second))
            yield first + second

    for vectors in encode_blocks(encoder, texts(), bar, **options):
        first, second = waiting.popleft()
        halves = vectors[: len(first)], vectors[len(first) :]
        for half in halves:
            check_finite(encoder, half, lambda row: f"pair {row + 1:,}", done)
        yield Compared(first, second, pairwise(*halves, metric))
        done += len(first)


def compare_all(
    encoder: Encodes,
    first: Iterable[str],
    second: Iterable[str] | None = None,
    metric: Metric = "cosine",
    *,
    progress: bool = False,
    **options: Unpack[EncodingOptions],
) -> Iterator[Compared]:
    """The similarity of all sentences of `first` with all of `second`, or of `first` itself, some rows at a time.

    Holds the vectors of all sentences, and of the matrix no more than these rows.
    Raises RequestError for an unknown metric or no sentences, and WorkError for a vector that is not finite.
    """
    check_choice("metric", metric, METRICS)
    first = list_texts(first, "compare_all")
    second = None if second is None else list_texts(second, "compare_all")
    counts = [len(texts) for texts in (first, second) if texts is not None]
    if 0 in counts:
        raise RequestError(f"compare_all: expected sentences in each list, found {' and '.join(map(str, counts))}")
    vectors = encode(encoder, [*first, *(second or [])], progress=progress, **options)
    rows, columns = vectors[: len(first)], vectors[len(first) :] if second is not None else vectors
    for part, name in ((rows, "first"), (columns, "second")):
        check_finite(encoder, part, lambda row, name=name: f"sentence {row + 1:,} of the {name} list")  # type: ignore[misc]
    step = max(1, CELLS_AT_ONCE // len(columns))
    for start in range(0, len(rows), step):
        similarity = matrix(rows[start : start + step], columns, metric)  # (rows, columns)
        yield Compared(first[start : start + step], first if second is None else second, similarity)
