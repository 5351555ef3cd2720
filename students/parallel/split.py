"""Which pairs are duplicates, which are held out as the dev split, and which are left to train on.

It is decided on 128-bit digests, sorted one kind at a time: some 110 bytes of memory for each pair, and no sentences.
"""

import hashlib
from array import array
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from students.parallel.pairs import DEV, TRAIN, Pair

DUPLICATE = "duplicate"
IN_DEV = "in the dev split"
DIGEST_BYTES = 16
DIGEST = np.dtype(f"S{DIGEST_BYTES}")
DIGEST_KINDS = ("targets", "sentences", "pairs")

Mask = NDArray[np.bool_]
Digests = NDArray[np.bytes_]


class PairDigests:
    """What is remembered of each pair, in the order of the pairs: its stream in memory, three digests in files.

    Of the English sentence that would be its target; of that sentence but for case, keyed by the seed; of the pair.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._key = str(seed).encode()
        self._streams = array("h")
        self._folder = folder
        self._files = [(folder / f"{kind}.digests").open("wb") for kind in DIGEST_KINDS]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the noting; from now on the digests can be read."""
        for file in self._files:
            file.close()

    def note(self, pair: Pair, language: str) -> None:
        """Remembers one more pair."""
        targets, sentences, pairs = self._files
        self._streams.append(pair.stream)
        targets.write(_digest(pair.english))
        sentences.write(self.sentence_digest(pair.english))
        pairs.write(_digest("\n".join((language, pair.english, pair.other))))

    def sentence_digest(self, english: str) -> bytes:
        """What makes an English sentence the same for the dev split: equal but for case."""
        return _digest(english.casefold(), self._key)

    def digests(self, kind: str) -> Digests:
        """The digests of `targets`, `sentences` or `pairs`, mapped into memory."""
        path = self._folder / f"{kind}.digests"
        return np.memmap(path, DIGEST, "r") if path.stat().st_size else np.empty(0, DIGEST)  # an empty file has no map

    @property
    def streams(self) -> NDArray[np.int16]:
        return np.frombuffer(self._streams, dtype=np.int16)

    def forget(self) -> None:
        """Removes the files."""
        for kind in DIGEST_KINDS:
            (self._folder / f"{kind}.digests").unlink()


def split_off_sampled(
    seen: PairDigests, languages: list[str], dev_sentences: int, drop_duplicates: bool
) -> dict[str, Mask]:
    """Masks over pairs by outcome, with a dev split of the English sentences that have the smallest digests.

    Of a dev sentence the first translation into each language is its dev pair, and further ones go nowhere.

    languages: of each stream.
    """
    repeated = _repeated(seen.digests("pairs"), drop_duplicates)
    sentences = seen.digests("sentences")
    held = ~repeated & _among(sentences, np.unique(sentences)[:dev_sentences])
    dev = _first_of_each(held, seen, languages)
    return {DUPLICATE: repeated, DEV: dev, IN_DEV: held & ~dev, TRAIN: ~repeated & ~held}


def split_off_given(seen: PairDigests, dev_english: list[str], drop_duplicates: bool) -> dict[str, Mask]:
    """Masks over pairs by outcome, where the dev split comes from elsewhere and training gives up its English."""
    repeated = _repeated(seen.digests("pairs"), drop_duplicates)
    given = np.frombuffer(b"".join(map(seen.sentence_digest, dev_english)), dtype=DIGEST)
    held = ~repeated & _among(seen.digests("sentences"), np.unique(given))
    return {DUPLICATE: repeated, IN_DEV: held, TRAIN: ~repeated & ~held}


def number_targets(digests: Digests) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The row of each target, counted in the order of first appearance, and the place where each row first appears."""
    _, first, sorted_rows = np.unique(digests, return_index=True, return_inverse=True)
    row = np.empty(len(first), np.int32)
    row[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    return row[sorted_rows], np.sort(first)


def _digest(text: str, key: bytes = b"") -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES, key=key).digest()


def _repeated(digests: Digests, wanted: bool) -> Mask:
    """True where an equal digest comes earlier; nowhere, when that is not `wanted`."""
    repeated = np.full(len(digests), wanted)
    if wanted:
        repeated[np.unique(digests, return_index=True)[1]] = False
    return repeated


def _among(digests: Digests, ordered: Digests) -> Mask:
    if not len(ordered):
        return np.zeros(len(digests), bool)
    places = np.searchsorted(ordered, digests)
    found: Mask = ordered[np.minimum(places, len(ordered) - 1)] == digests
    return found


def _first_of_each(held: Mask, seen: PairDigests, languages: list[str]) -> Mask:
    """The first pair of each sentence and language among those `held`, which are few."""
    sentences = seen.digests("sentences")
    first: dict[tuple[bytes, str], int] = {}
    for place in np.flatnonzero(held).tolist():
        first.setdefault((bytes(sentences[place]), languages[seen.streams[place]]), place)
    chosen = np.zeros(len(held), bool)
    chosen[list(first.values())] = True
    return chosen
