"""Near-duplicate texts of different splits: found by MinHash and LSH, and told only when their exact overlap is high.

The likeness of two texts is the Jaccard index of their shingles, runs of five words (Broder 1997). Texts agree in one
value of a MinHash as often as they are alike, so that those of 0.8 and more share one of 16 bands of 4 values in 9,998
cases of 10,000.
"""

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

WORDS_OF_SHINGLE = 5
BANDS, ROWS_OF_BAND = 16, 4
PARTNERS = 8  # a template may make thousands of texts alike, and one of another split is enough

Shingles = NDArray[np.uint64]


class Pair(NamedTuple):
    """Two texts of different splits by their places, and the share of shingles that they have in common."""

    first: int
    second: int
    likeness: float


class Shingler:
    """Texts to hashes of their shingles; it remembers the hashes of words."""

    def __init__(self) -> None:
        self._words = _WordHashes()

    def __call__(self, text: str) -> Shingles:
        """The distinct shingles, sorted: of five words in lower case each, or all words where there are fewer."""
        found = text.lower().split()
        words = np.fromiter(map(self._words.__getitem__, found), np.uint64, len(found))
        length = min(WORDS_OF_SHINGLE, len(words))
        hashes = np.zeros(len(words) - length + 1 if found else 0, np.uint64)
        for place in range(length):
            hashes = _mixed(hashes + words[place : place + len(hashes)])
        return np.unique(hashes)


class _WordHashes(dict[str, int]):
    def __missing__(self, word: str) -> int:
        data = word.encode()
        value = self[word] = zlib.crc32(data) << 32 | zlib.adler32(data)  # Python's own hash changes with every run
        return value


def _mixed(values: Shingles) -> Shingles:
    """Every bit of a value spread over all 64 (the finalizer of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def band_keys(shingles: Shingles) -> Shingles:
    """A key for each band (bands,): texts with one key in common are worth comparing. There must be a shingle."""
    factors = _mixed(np.arange(1, BANDS * ROWS_OF_BAND + 1, dtype=np.uint64)) | np.uint64(1)
    smallest = np.multiply.outer(factors, shingles).min(axis=1)  # odd factors reorder 64 bits without losing any
    bands = smallest.reshape(BANDS, ROWS_OF_BAND)
    keys = np.zeros(BANDS, np.uint64)
    for column in bands.T:
        keys = _mixed(keys + column)
    return keys


def likeness(first: Shingles, second: Shingles) -> float:
    """The Jaccard index of two sets of shingles."""
    shared = len(np.intersect1d(first, second, assume_unique=True))
    return shared / (len(first) + len(second) - shared)


def near_pairs(
    keys: Shingles, splits: Sequence[str], shingles_of: Callable[[Iterable[int]], dict[int, Shingles]], least: float
) -> list[Pair]:
    """The pairs of different splits that are alike by `least` or more, up to eight for each text.

    keys: (texts, bands), of `band_keys`.
    shingles_of: the shingles of the texts at these places, which are read once more for the comparison.
    """
    pairs = sorted(_candidates(keys, splits))
    shingles = shingles_of(sorted({place for pair in pairs for place in pair}))
    compared = (Pair(first, second, likeness(shingles[first], shingles[second])) for first, second in pairs)
    return [pair for pair in compared if pair.likeness >= least]


def _candidates(keys: Shingles, splits: Sequence[str]) -> set[tuple[int, int]]:
    partners: dict[int, set[int]] = defaultdict(set)
    for band in keys.T:
        for places in _equal(band):
            for split in dict.fromkeys(splits[place] for place in places):
                others = [place for place in places if splits[place] != split][:PARTNERS]
                for place in (place for place in places if splits[place] == split):
                    partners[place].update(others[: PARTNERS - len(partners[place])])
    return {(min(place, other), max(place, other)) for place, found in partners.items() for other in found}


def _equal(band: Shingles) -> Iterator[list[int]]:
    """The places of equal values, where there are several."""
    order = np.argsort(band, kind="stable").tolist()
    for _, group in groupby(order, key=band.__getitem__):
        places = list(group)
        if len(places) > 1:
            yield places
