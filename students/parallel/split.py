"""Which pairs are duplicates, which are held out as the dev split, and which are left to train on.

It is decided on 128-bit digests, sorted one kind at a time: some 110 bytes of memory for each pair, and no sentences.
"""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from students.parallel.pairs import DEV, TRAIN, Pair, Translations
from students.settings import DistillSettings

DUPLICATE = "duplicate"
IN_DEV = "in the dev split"
DIGEST_BYTES = 16
DIGEST = np.dtype(f"S{DIGEST_BYTES}")
DIGESTS = {name: pa.binary(DIGEST_BYTES) for name in ("target", "sentence", "pair")}
"""Of an English sentence; of that sentence but for case, keyed by the seed; of the pair and its language."""

Mask = NDArray[np.bool_]


def digests_of(pair: Pair, language: str, seed: int) -> tuple[bytes, bytes, bytes]:
    """One digest of each of DIGESTS."""
    whole = "\n".join((language, pair.english, pair.other))
    return _digest(pair.english), _sentence_digest(pair.english, seed), _digest(whole)


def _sentence_digest(english: str, seed: int) -> bytes:
    return _digest(english.casefold(), str(seed).encode())


def _digest(text: str, key: bytes = b"") -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES, key=key).digest()


def split_pairs(
    spool: pa.Table, languages: Sequence[str], settings: DistillSettings, given_dev: Mapping[str, Translations]
) -> dict[str, Mask]:
    """Masks over the pairs of `spool` by outcome.

    Held out are the English sentences of `given_dev`, else the `dev_sentences` of the smallest digests under the seed,
    so that more data moves few of them. Of one that is drawn the first translation into each language is its dev pair,
    and further ones go nowhere.

    languages: of each stream.
    """
    repeated = np.full(len(spool), settings.filters.drop_duplicates)
    if settings.filters.drop_duplicates:
        repeated[first_places(spool["pair"].combine_chunks().dictionary_encode().indices.to_numpy())] = False
    sentences = spool["sentence"]
    if settings.dev:
        english = {sentence for each in given_dev.values() for sentence in each.english}
        held_out = pa.array([_sentence_digest(sentence, settings.seed) for sentence in english], DIGESTS["sentence"])
    else:
        distinct = pc.unique(sentences)
        held_out = distinct.take(pc.sort_indices(distinct)[: settings.dev_sentences])
    held = ~repeated & pc.is_in(sentences, value_set=held_out).to_numpy()
    dev = np.zeros(len(spool), bool) if settings.dev else _first_of_each(held, spool, languages)
    return {DUPLICATE: repeated, DEV: dev, IN_DEV: held & ~dev, TRAIN: ~repeated & ~held}


def _first_of_each(held: Mask, spool: pa.Table, languages: Sequence[str]) -> Mask:
    """The first pair of each sentence and language among those `held`, which are few."""
    first: dict[tuple[bytes, str], int] = {}
    found = spool.select(["sentence", "stream"]).filter(pa.array(held)).to_pylist()
    for place, pair in zip(np.flatnonzero(held).tolist(), found, strict=True):
        first.setdefault((pair["sentence"], languages[pair["stream"]]), place)
    chosen = np.zeros(len(held), bool)
    chosen[list(first.values())] = True
    return chosen


def first_places(codes: NDArray[np.int32]) -> NDArray[np.int64]:
    """Where each code appears first; codes are numbered in the order of first appearance."""
    return np.unique(codes, return_index=True)[1]


def number_targets(digests: NDArray[np.bytes_]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The row of each target, counted in the order of first appearance, and the place where each row first appears."""
    codes = pa.array(digests, pa.binary(DIGEST_BYTES)).dictionary_encode().indices.to_numpy()
    return codes, first_places(codes)
