"""Encoding beside sentence-transformers: sentences a second, one query's milliseconds, and the distance to fp32.

Claims, on a CPU that computes in bf16: at least 4 × its default and 1.5 × its fastest variant, at a smallest cosine of
0.9999 to its fp32 vectors, and 55 % of the machine's bf16 matrix rate; forced to fp32 at least 1.4 × its default. With
--no-bf16, as on a laptop without: in fp32 at least 1.2 × its ONNX variants at a smallest cosine of 0.99999, and 1.5 ×
its default; in int8 at least 1.2 × its fastest int8, at a smallest cosine not below its own. With --device cuda: at
least 3 × its default and 1.3 × its fastest variant.

    python -m benchmarks.encode --data DIR                 about 10 minutes on 2 cores, after the first run
    python -m benchmarks.encode --data DIR --no-bf16
    python -m benchmarks.encode --data DIR --peers bf16 onnx-int8 --sentences 2000 --rounds 2

All encode the same distinct sentences of the STS benchmark with all-MiniLM-L6-v2; a time is one call of `encode`,
tokenizing included. p50 and p95 are milliseconds of a call with one sentence, while no other contender works. Every
variant of the peer but its default gets its fastest batch size of 16 to 256, on a GPU of 128 to 2048. Its ONNX variants
(fp32, optimized, int8) and OpenVINO in static int8, calibrated on 300 of the sentences, run in environments of their
own below --environments, installed by the first run.
Without bf16 oneDNN and MKL are held to AVX2 for all, and BertRelay also computes the graphs that it exports.

The share of the matrix rate is the work of the network's matrix products on real tokens, without padding, in
floating-point operations a second, over the best of ten 4096³ bf16 products in the same round.
"""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedConfig

from benchmarks.encode_peer import environment, read_sentences
from benchmarks.harness import (
    OURS,
    OURS_FP32,
    PRECISIONS,
    Answer,
    Claim,
    Contender,
    Result,
    Spread,
    Work,
    at_least,
    in_turns,
    latencies,
    main,
    print_results,
    timed,
)
from benchmarks.machine import MINILM, STSB, matrix_rate, sentences_of
from bertrelay.device import resolve_precision
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.settings import GraphPrecision
from bertrelay.settings import ModelSource
from students.compress.export import export

BATCH_SIZES = {"cpu": [16, 32, 64, 128, 256], "cuda": [128, 512, 2048]}
OF_DEFAULT, OF_BEST = {"cpu": 4.0, "cuda": 3.0}, {"cpu": 1.5, "cuda": 1.3}
SMALLEST_COSINE, MATRIX_SHARE, FP32_OF_DEFAULT = 0.9999, 0.55, 1.4
OF_ONNX, OF_DEFAULT_WITHOUT_BF16, SMALLEST_COSINE_OF_FP32 = 1.2, 1.5, 0.99999
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
GRAPHS: dict[str, GraphPrecision] = {"ours-onnx": "fp32", "ours-int8": "int8"}
"""The graphs that BertRelay exports, by contender."""
DEFAULT, RATE = "default", "matrix rate"
OF_OURS = [*PRECISIONS, *GRAPHS]
TUNED = ["bf16", "autocast", "onnx", "onnx-o3", "onnx-int8", "openvino-int8"]
"""The peer with its weights in bf16, under autocast, and exported: in fp32, optimized, in int8."""
EXPORTED = ("onnx", "openvino")
"""Beginnings of the names of exported contenders, which are those of their environments."""
QUERIES = 200


def prepare(model: str, scratch: str, variant: str) -> Work:
    """BertRelay as a contender; it chooses its batches itself."""
    source, sentences = Path(scratch, variant) if variant in GRAPHS else model, read_sentences(scratch)
    encoder, precision = SentenceEncoder.load(source), PRECISIONS.get(variant, "fp32")

    def work(batch_size: int, number: int | None) -> Answer:  # noqa: ARG001
        vectors, seconds = timed(lambda: encoder.encode(sentences, precision=precision))
        np.save(Path(scratch, f"{variant}.npy"), vectors)
        answer = {"seconds": seconds, "batch_size": "by tokens"}
        return answer | latencies(lambda query: encoder.encode([query], precision=precision), sentences[:QUERIES])

    return work


def operations(lengths: NDArray[np.int64], network: PreTrainedConfig) -> float:
    """Of all matrix products: for each token and layer 2·(4h² + 2hf), and 4nh in attention over n tokens."""
    hidden, inner = network.hidden_size, network.intermediate_size
    products = 2 * (4 * hidden**2 + 2 * hidden * inner) * lengths  # (sentences,)
    attention = 4 * hidden * lengths**2  # (sentences,)
    return float(network.num_hidden_layers * (products + attention).sum())


def contender(name: str, sizes: Sequence[int], model: str, scratch: Path, **python: Path) -> Contender:
    """python: that of another environment."""
    function = f"benchmarks.{'encode' if name in OF_OURS else 'encode_peer'}:prepare"
    return Contender(function, sizes, **python, model=model, scratch=str(scratch), variant=name)


def compete(options: Namespace) -> dict[str, Result]:
    """The result of each contender, and the matrix rate in each round."""
    works: dict[str, Any] = {} if options.no_bf16 else {RATE: lambda _: {RATE: matrix_rate()}}
    exported = [name for name in options.peers if name.startswith(EXPORTED)]
    names = [OURS_FP32, *GRAPHS, *exported] if options.no_bf16 else [OURS, OURS_FP32, *options.peers]
    for name in [DEFAULT, *names]:
        python = {"python": environment(options.environments, name.partition("-")[0])} if name in exported else {}
        sizes = BATCH_SIZES[options.device] if name in options.peers else [32]
        works[name] = contender(name, sizes, str(ModelSource.parse(options.model)), options.scratch, **python)
    return in_turns(works, options.rounds)


def fastest(results: dict[str, Result], names: Iterable[str]) -> Result:
    return min((results[name] for name in names if name in results), key=lambda result: result.spread().median)


def claims(results: dict[str, Result], cosine: float, share: Spread, device: str) -> list[Claim]:
    """cosine: the smallest of our vectors to the peer's in fp32."""
    ours, default = results[OURS], results[DEFAULT]
    best = fastest(results, results.keys() - PRECISIONS.keys())
    judged = [
        at_least(OF_DEFAULT[device], "as fast as its default", ours.speed_over(default)),
        at_least(OF_BEST[device], f"as fast as its best ({best.name})", ours.speed_over(best)),
        Claim(f"smallest cosine to fp32 at least {SMALLEST_COSINE}", f"{cosine:.6f}", cosine >= SMALLEST_COSINE),
    ]
    if device == "cpu":
        judged += [
            at_least(MATRIX_SHARE, "the bf16 matrix rate", share),
            at_least(FP32_OF_DEFAULT, "as fast as its default in fp32", results[OURS_FP32].speed_over(default)),
        ]
    return judged


def claims_without_bf16(results: dict[str, Result], cosines: dict[str, float]) -> list[Claim]:
    """cosines: the smallest of each contender's vectors to the peer's in fp32."""
    ours, theirs = fastest(results, [OURS_FP32, "ours-onnx"]), fastest(results, ["onnx", "onnx-o3"])
    int8, peer = results["ours-int8"], fastest(results, ["onnx-int8", "openvino-int8"])
    cosine, found = cosines[ours.name], f"{cosines[int8.name]:.6f} of {cosines[peer.name]:.6f}"
    return [
        at_least(OF_ONNX, f"as fast in fp32 ({ours.name}) as its best ({theirs.name})", ours.speed_over(theirs)),
        Claim(
            f"smallest cosine of {ours.name} at least {SMALLEST_COSINE_OF_FP32}",
            f"{cosine:.7f}",
            cosine >= SMALLEST_COSINE_OF_FP32,
        ),
        at_least(OF_DEFAULT_WITHOUT_BF16, "as fast in fp32 as its default", ours.speed_over(results[DEFAULT])),
        at_least(OF_ONNX, f"as fast in int8 as its int8 ({peer.name})", int8.speed_over(peer)),
        Claim("smallest cosine in int8 not below its own", found, cosines[int8.name] >= cosines[peer.name]),
    ]


def smallest_cosine(vectors: NDArray[np.float32], others: NDArray[np.float32]) -> float:
    """Of each row with the same row of the others, both (sentences, dim)."""
    a, b = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in map(np.float64, (vectors, others)))
    return float((a * b).sum(axis=1).min())


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    if options.no_bf16:
        if options.device != "cpu" or not {"onnx", "onnx-int8"} <= set(options.peers):
            sys.exit("--no-bf16: expected --device cpu and --peers with onnx and onnx-int8, found others")
        os.environ |= AVX2  # of the contenders, whose processes start later
    if options.device == "cuda":
        options.peers = [name for name in options.peers if not name.startswith(EXPORTED)]  # they are for CPUs
    sentences = sentences_of(options.data, STSB, options.sentences, options.seed)
    encoder = SentenceEncoder.load(options.model)
    for name, precision in GRAPHS.items() if options.no_bf16 else ():
        export(options.model, options.scratch / name, precision=precision)
    lengths = np.array([len(ids) for ids in encoder.tokenize(sentences)])
    work, tokens = operations(lengths, encoder.backbone.config), int(lengths.sum())
    print(f"{len(sentences):,} sentences of {tokens / len(sentences):.1f} tokens; auto is {resolve_precision('auto')}")
    (options.scratch / "sentences.json").write_text(json.dumps(sentences), encoding="utf-8")
    results = compete(options)
    rates = [] if options.no_bf16 else results.pop(RATE).values(RATE)
    print(*{result.answers[0]["versions"] for name, result in results.items() if name not in OF_OURS}, sep="\n")
    vectors = {name: np.load(options.scratch / f"{name}.npy") for name in results}
    cosines = {name: smallest_cosine(rows, vectors[DEFAULT]) for name, rows in vectors.items()}
    counts = {"sentences": len(sentences), "tokens": tokens}
    columns = {f"{name} ms": lambda result, name=name: result.spread(name) for name in ("p50", "p95")}
    print_results(results, counts, {**columns, "smallest cosine": lambda result: f"{cosines[result.name]:.6f}"})
    if options.no_bf16:
        return claims_without_bf16(results, cosines), {"contenders": results, "cosines": cosines}
    share = Spread.of_ratios([work / seconds for seconds in results[OURS].values()], rates)
    print(f"bf16 matrix rate {Spread.of(rate / 1e12 for rate in rates)} TFLOP/s; ours reaches {share} of it")
    metrics = {"contenders": results, "cosines": cosines, "tokens": tokens, "operations": work, "matrix_rate": rates}
    return claims(results, cosines[OURS], share, options.device), metrics


if __name__ == "__main__":
    main(
        measure,
        __doc__,
        *STSB,
        sentences=8_000,
        rounds=5,
        seed=0,
        environments=Path(".peers"),
        peers=TUNED,
        model=MINILM,
        no_bf16=False,
    )
