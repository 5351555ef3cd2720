"""The closest pair of 10,000 sentences: vectors against a cross-encoder; and what sorting by length is worth.

Claim, on two CPU cores that compute in bf16: all sentences encoded and the exact closest pair found in under 15 s.

    python -m benchmarks.pairs --data DIR                                  about 5 minutes on 2 cores
    python -m benchmarks.pairs --data DIR --sentences 1000 --rounds 1 --cross-pairs 64

The task is that of Reimers & Gurevych (2019): of 10,000 sentences the two most alike. A BERT that reads pairs has
n(n − 1)/2, which is 50 million, to read: 65 hours on their V100. SBERT encodes all of them there in 5 s and compares
in 0.01 s. Here all-MiniLM-L6-v2 encodes distinct sentences of the STS benchmark, SICK and Multi30K, and
`bertrelay.evaluation.similarity.closest_pair` compares all. The cross-encoder is the same network under a fresh head,
since its answers do not matter, in the same precision, on drawn pairs in batches of 32 sorted by length; from the time
of some hundred follows that of all. The pair that was found is compared with the closest of all pairs in float64.

Their table of sentences/s without and with "smart batching" is repeated with our encoder: batches of 32 as the
sentences come, each padded to its longest, and of 32 sorted by length; beside them `encode` as it is. All tokenize
within the time. Each work is done once unmeasured and then in turns; medians over rounds, in brackets the least and
the most.
"""

import json
import random
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

from benchmarks.contenders import Answer, Claim, Spread, in_turns, judge
from benchmarks.english import MULTI30K, SICK, STSB, draw
from benchmarks.machine import MINILM, add_data, add_device, machine, require
from bertrelay.encoder import SentenceEncoder
from bertrelay.evaluation.similarity import ClosePair, Vectors, closest_pair
from bertrelay.hardware import autocast, resolve_precision
from bertrelay.settings import ModelSource

SOURCES = {**STSB, **SICK, **MULTI30K}
UNDER_SECONDS, BATCH, ROWS_AT_ONCE, SAME_COSINE = 15, 32, 1_000, 1e-6
PUBLISHED_HOURS, PUBLISHED_SECONDS = 65, 5
PAIR, CROSS = "closest pair", "cross-encoder"
AS_THEY_COME, BY_LENGTH, ENCODE = "32, as they come", "32, sorted by length", "`encode` as it is"
PUBLISHED = {AS_THEY_COME: (44, 1_378), BY_LENGTH: (83, 2_042)}
"""Sentences/s of SBERT on a CPU and a GPU: Reimers & Gurevych (2019), table 7."""

T = TypeVar("T")


def encode_in_batches(encoder: SentenceEncoder, sentences: Sequence[str], by_length: bool) -> Vectors:
    """Vectors (n, dim) from batches of 32, each padded to its longest sentence."""
    ids = encoder.tokenize(sentences)
    order = np.argsort([len(row) for row in ids], kind="stable") if by_length else np.arange(len(ids))
    vectors = np.empty((len(ids), encoder.dim), np.float32)
    with torch.inference_mode(), autocast(encoder.device, resolve_precision("auto")):
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            rows = [torch.tensor(ids[place]) for place in places]
            padded = pad_sequence(rows, batch_first=True, padding_value=encoder.pad_id)  # (batch, tokens)
            mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)  # (batch, tokens)
            vectors[places] = encoder(padded.to(encoder.device), mask.to(encoder.device)).cpu().numpy()
    return vectors


class CrossEncoder:
    """The network of the model under a head that reads two sentences at once."""

    def __init__(self, model: str, device: str) -> None:
        torch.manual_seed(0)
        logging.set_verbosity_error()  # the fresh head is meant
        logging.disable_progress_bar()
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        network = AutoModelForSequenceClassification.from_pretrained(model, num_labels=1, dtype=torch.float32)
        self.network, self.device = network.eval().to(device), torch.device(device)

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        ordered = sorted(pairs, key=lambda pair: len(pair[0]) + len(pair[1]))
        scores: list[float] = []
        with torch.inference_mode(), autocast(self.device, resolve_precision("auto")):
            for start in range(0, len(ordered), BATCH):
                batch = self.tokenizer(ordered[start : start + BATCH], padding=True, return_tensors="pt")
                scores += self.network(**batch.to(self.device)).logits.flatten().float().tolist()
        return scores


def encode_and_compare(encoder: SentenceEncoder, sentences: list[str]) -> Answer:
    vectors, encoding = timed(encoder.encode, sentences)
    pair, comparing = timed(closest_pair, vectors)
    return {"encoding": encoding, "comparing": comparing, "seconds": encoding + comparing, "pair": pair}


def timed(work: Callable[..., T], *arguments: Any) -> tuple[T, float]:
    began = time.perf_counter()
    result = work(*arguments)
    return result, time.perf_counter() - began


def measure(options: Namespace, sentences: list[str], encoder: SentenceEncoder) -> dict[str, list[Answer]]:
    """What each work answers in each round; all have worked once before."""
    cross = CrossEncoder(str(ModelSource.parse(MINILM)), options.device)
    chance = random.Random(options.seed)
    pairs = [(first, second) for first, second in (chance.sample(sentences, 2) for _ in range(options.cross_pairs))]
    works: dict[str, Callable[[int], Answer]] = {
        PAIR: lambda _: encode_and_compare(encoder, sentences),
        CROSS: lambda _: {"seconds": timed(cross.score, pairs)[1]},
        AS_THEY_COME: lambda _: {"seconds": timed(encode_in_batches, encoder, sentences, False)[1]},
        BY_LENGTH: lambda _: {"seconds": timed(encode_in_batches, encoder, sentences, True)[1]},
    }
    in_turns(works, 1)
    return in_turns(works, options.rounds)


def found_in_float64(vectors: Vectors) -> ClosePair:
    """The closest pair of all rows of `vectors` (n, dim), by float64 cosines of each with those that follow it."""
    exact = vectors.astype(np.float64)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    found = []
    for start in range(0, len(exact), ROWS_AT_ONCE):
        cosines = exact[start : start + ROWS_AT_ONCE] @ exact[start:].T  # (rows, rows from `start` on)
        cosines[np.tril_indices(len(cosines), m=cosines.shape[1])] = -np.inf
        first, second = np.unravel_index(cosines.argmax(), cosines.shape)
        found.append(ClosePair(start + int(first), start + int(second), float(cosines[first, second])))
    return max(found, key=lambda pair: pair.cosine)


@dataclass(frozen=True)
class Told:
    """What is printed. Seconds of ours, hours of the cross-encoder for all pairs, sentences/s by way of batching."""

    whole: Spread
    encoding: Spread
    comparing: Spread
    cross_hours: Spread
    rates: dict[str, Spread]


def tell(told: Told) -> None:
    print(f"{'':24} {'here':>22}   published (V100)")
    print(f"{'cross-encoder, hours':24} {told.cross_hours!s:>22}   {PUBLISHED_HOURS}")
    print(f"{'vectors, seconds':24} {told.whole!s:>22}   {PUBLISHED_SECONDS}")
    print(f"{'    encoding':24} {told.encoding!s:>22}")
    print(f"{'    closest pair':24} {told.comparing!s:>22}")
    print(f"{'sentences/s':24} {'here':>22}   published (CPU, GPU)")
    for name, rate in told.rates.items():
        published = ", ".join(f"{figure:,}" for figure in PUBLISHED.get(name, ()))
        print(f"{name:24} {rate.told(0):>22}   {published}")


def parsed() -> Namespace:
    parser = ArgumentParser(prog="python -m benchmarks.pairs", description=(__doc__ or "").partition("\n")[0])
    add_data(parser)
    add_device(parser)
    parser.add_argument("--sentences", type=int, default=10_000)
    parser.add_argument("--cross-pairs", type=int, default=512, help="pairs that the cross-encoder reads")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the choice of sentences")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there too")
    options = parser.parse_args()
    require(parser, options.data, *SOURCES)
    return options


def main() -> None:
    options = parsed()
    torch.set_num_threads(options.threads)
    sentences = draw(options.data, SOURCES, options.sentences, options.seed)
    all_pairs = len(sentences) * (len(sentences) - 1) // 2
    print(machine())
    print(
        f"{len(sentences):,} distinct sentences, {all_pairs:,} pairs, {options.rounds} rounds, on {options.device}; "
        f"BertRelay computes in {resolve_precision('auto')}",
        flush=True,
    )
    encoder = SentenceEncoder.load(MINILM).to(options.device).eval()
    answers = measure(options, sentences, encoder)
    found = answers[PAIR][-1]["pair"]
    vectors = encoder.encode(sentences)
    closest = found_in_float64(vectors)
    ours = found_in_float64(vectors[list(found[:2])])
    told = Told(
        whole=Spread.of(answer["seconds"] for answer in answers[PAIR]),
        encoding=Spread.of(answer["encoding"] for answer in answers[PAIR]),
        comparing=Spread.of(answer["comparing"] for answer in answers[PAIR]),
        cross_hours=Spread.of(answer["seconds"] / options.cross_pairs * all_pairs / 3600 for answer in answers[CROSS]),
        rates={
            AS_THEY_COME: Spread.of(len(sentences) / answer["seconds"] for answer in answers[AS_THEY_COME]),
            BY_LENGTH: Spread.of(len(sentences) / answer["seconds"] for answer in answers[BY_LENGTH]),
            ENCODE: Spread.of(len(sentences) / answer["encoding"] for answer in answers[PAIR]),
        },
    )
    tell(told)
    as_close = closest.cosine - ours.cosine < SAME_COSINE  # several pairs may be equal, as those that differ in case
    judged = [
        Claim(f"under {UNDER_SECONDS} s", f"{told.whole} s", told.whole.median < UNDER_SECONDS),
        Claim(
            f"as close as the closest of all in float64, {closest.cosine:.7f}",
            f"rows {found[:2]}, {ours.cosine:.7f}",
            as_close,
        ),
    ]
    holds = judge(judged)
    if options.json:
        content = {
            "machine": machine(),
            "device": options.device,
            "threads": options.threads,
            "sentences": len(sentences),
            "cross_pairs": options.cross_pairs,
            "answers": answers,
            "cross_hours": told.cross_hours._asdict(),
            "sentences_per_second": {name: rate._asdict() for name, rate in told.rates.items()},
            "claims": [claim._asdict() for claim in judged],
        }
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
