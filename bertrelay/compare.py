"""How alike sentences are: an encoder and a metric together, block by block, so that files of any size go through.

Of sentences that are at hand as vectors, `bertrelay.similarity` says the same.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from bertrelay.encoder import SentenceEncoder
from bertrelay.encoding import BLOCK_SENTENCES, check_finite, encode, encode_blocks
from bertrelay.errors import RequestError, check_choice
from bertrelay.progress import Bar
from bertrelay.similarity import METRICS, Metric, Vectors, matrix, pairwise
from bertrelay.texts import each_pair, texts_of

CELLS_AT_ONCE = 8_000_000


class Compared(NamedTuple):
    """Sentences and their similarity: (first,) each with the one beside it, or (first, second) all with all."""

    first: Sequence[str]
    second: Sequence[str]
    similarity: Vectors


def compare_pairs(
    encoder: SentenceEncoder,
    pairs: Iterable[tuple[str, str]],
    metric: Metric = "cosine",
    *,
    prompt_name: str | None = None,
    precision: str = "auto",
    batch_tokens: int | None = None,
    bar: Bar | None = None,
) -> Iterator[Compared]:
    """The similarity of the two sentences of each pair, in blocks; `pairs` may be endless, and is read ahead.

    Raises RequestError for an unknown metric, and WorkError for a vector that is not finite.
    """
    check_choice("metric", metric, METRICS)
    pairs = each_pair(pairs, "compare_pairs")
    stream, waiting, done = iter(pairs), deque[tuple[list[str], list[str]]](), 0

    def texts() -> Iterator[list[str]]:
        while block := list(islice(stream, BLOCK_SENTENCES // 2)):
            first, second = [pair[0] for pair in block], [pair[1] for pair in block]
            waiting.append((first, second))
            yield first + second

    for vectors in encode_blocks(encoder, texts(), precision, batch_tokens, prompt_name, bar):
        first, second = waiting.popleft()
        sides = vectors[: len(first)], vectors[len(first) :]
        for side in sides:
            check_finite(encoder, side, lambda row: f"pair {row + 1:,}", done)
        yield Compared(first, second, pairwise(*sides, metric))
        done += len(first)


def compare_all(
    encoder: SentenceEncoder,
    first: Iterable[str],
    second: Iterable[str] | None = None,
    metric: Metric = "cosine",
    *,
    prompt_name: str | None = None,
    precision: str = "auto",
    batch_tokens: int | None = None,
    progress: bool = False,
) -> Iterator[Compared]:
    """The similarity of every sentence of `first` to every one of `second`, or of `first` itself, some rows at a time.

    Holds the vectors of all sentences, and of the matrix no more than these rows.
    Raises RequestError for an unknown metric or no sentences, and WorkError for a vector that is not finite.
    """
    check_choice("metric", metric, METRICS)
    first = texts_of(first, "compare_all")
    second = None if second is None else texts_of(second, "compare_all")
    counts = [len(side) for side in (first, second) if side is not None]
    if 0 in counts:
        raise RequestError(f"compare_all: expected sentences on each side, found {' and '.join(map(str, counts))}")
    vectors = encode(
        encoder,
        [*first, *(second or [])],
        prompt_name=prompt_name,
        precision=precision,
        batch_tokens=batch_tokens,
        progress=progress,
    )
    rows, columns = vectors[: len(first)], vectors[len(first) :] if second is not None else vectors
    check_finite(encoder, rows, lambda row: f"sentence {row + 1:,} of the first side")
    check_finite(encoder, columns, lambda row: f"sentence {row + 1:,} of the second side")
    step = max(1, CELLS_AT_ONCE // len(columns))
    for start in range(0, len(rows), step):
        found = matrix(rows[start : start + step], columns, metric)  # (rows, columns)
        yield Compared(first[start : start + step], first if second is None else second, found)
