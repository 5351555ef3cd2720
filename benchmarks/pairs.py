"""The closest pair of 10,000 sentences: vectors against a cross-encoder.

Claim, on two CPU cores that compute in bf16: all sentences encoded and the exact closest pair found in under 15 s.

    python -m benchmarks.pairs --data DIR                                  about 5 minutes on 2 cores
    python -m benchmarks.pairs --data DIR --sentences 1000 --rounds 1 --cross-pairs 64

The task of Reimers & Gurevych (2019): a BERT that reads pairs has n(n − 1)/2 of them to read, 65 hours on their V100;
SBERT encodes all in 5 s. all-MiniLM-L6-v2 encodes sentences of the STS benchmark, SICK and Multi30K. The cross-encoder
is the same network with a fresh head; the hours of all pairs follow from those of some hundred. The pair that was found
is compared with the closest of all in float64.
"""

import random
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import Answer, Claim, Result, Spread, in_turns, main, timed
from benchmarks.machine import MINILM, MULTI30K, SICK, STSB, sentences_of
from bertrelay.data.vectors import Vectors
from bertrelay.device import default_device
from bertrelay.model.encoder import SentenceEncoder
from teachers.pairs.model import start_cross_encoder

SOURCES = {**STSB, **SICK, **MULTI30K}
UNDER_SECONDS, ROWS_AT_ONCE, SAME_COSINE = 15, 1_000, 1e-6
PAIR, CROSS = "closest pair", "cross-encoder"


def encode_and_compare(encoder: SentenceEncoder, sentences: list[str]) -> Answer:
    vectors, encoding = timed(encoder.encode, sentences)
    pair, comparing = timed(closest_pair, vectors)
    return {"encoding": encoding, "seconds": encoding + comparing, "pair": pair[1:]}


def compete(options: Namespace, sentences: list[str], encoder: SentenceEncoder) -> dict[str, Result]:
    """After an unmeasured round."""
    cross, chance = start_cross_encoder(MINILM).eval().to(default_device()), random.Random(options.seed)
    pairs = [tuple(chance.sample(sentences, 2)) for _ in range(options.cross_pairs)]
    works: dict[str, Callable[[int], Answer]] = {
        PAIR: lambda _: encode_and_compare(encoder, sentences),
        CROSS: lambda _: {"seconds": timed(cross.predict, pairs)[1]},
    }
    in_turns(works, 1)
    return in_turns(works, options.rounds)


def closest_pair(vectors: Vectors, dtype: type[np.floating] = np.float32) -> tuple[float, int, int]:
    """Cosine and rows, the lower one first, of the closest pair of all rows of `vectors` (n, dim)."""
    rows = vectors.astype(dtype)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    found = []
    for begin in range(0, len(rows), ROWS_AT_ONCE):
        cosines = rows[begin : begin + ROWS_AT_ONCE] @ rows[begin:].T  # (rows, rows from `begin` on)
        cosines[np.tril_indices(len(cosines), m=cosines.shape[1])] = -np.inf
        first, second = np.unravel_index(cosines.argmax(), cosines.shape)
        found.append((float(cosines[first, second]), begin + int(first), begin + int(second)))
    return max(found)


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    sentences = sentences_of(options.data, SOURCES, options.sentences, options.seed)
    encoder = SentenceEncoder.load(MINILM).eval()
    results = compete(options, sentences, encoder)
    count = len(sentences) * (len(sentences) - 1) // 2
    hours = Spread.of(seconds / options.cross_pairs * count / 3600 for seconds in results[CROSS].values())
    whole = results[PAIR].spread()
    print(f"{count:,} pairs: cross-encoder {hours} hours (published, V100: 65)")
    print(f"vectors {whole} s, of which encoding {results[PAIR].spread('encoding')} s (published, V100: 5)")
    vectors, pair = encoder.encode(sentences), results[PAIR].values("pair")[-1]
    closest, ours = (closest_pair(rows, np.float64)[0] for rows in (vectors, vectors[list(pair)]))
    as_close = closest - ours < SAME_COSINE  # several pairs may be equal, as those that differ in case
    text, found = f"as close as the closest in float64, {closest:.7f}", f"rows {pair}, {ours:.7f}"
    claim = Claim(f"under {UNDER_SECONDS} s", f"{whole} s", whole.median < UNDER_SECONDS)
    return [claim, Claim(text, found, as_close)], {"contenders": results, "cross_hours": hours}


if __name__ == "__main__":
    main(measure, __doc__, *SOURCES, sentences=10_000, cross_pairs=512, rounds=3, seed=0)
