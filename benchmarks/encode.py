"""Encoding beside sentence-transformers: sentences a second, and how near the vectors stay to fp32.

Claims, on a CPU that computes in bf16: at least 4 × its default and 1.5 × the best of it, at a smallest cosine of
0.9999 to its fp32 vectors, and 55 % of the machine's bf16 matrix rate; forced to fp32 at least 1.4 × its default.

    python -m benchmarks.encode --data DIR                 about 10 minutes on 2 cores, after the first run
    python -m benchmarks.encode --data DIR --json FILE     every figure of every round too
    python -m benchmarks.encode --data DIR --peers bf16 int8 --sentences 2000 --rounds 2

All encode the same distinct sentences of the STS benchmark, drawn with a seed, with all-MiniLM-L6-v2, on the same
device and threads. Each contender is a process of its own that loads the model and encodes all sentences once,
unmeasured; then they take turns (`benchmarks.contenders`). A time is that of one call of `encode`, from a list of
sentences to an array of vectors, tokenizing included.

Contenders: BertRelay as it comes (`auto`) and forced to fp32; sentence-transformers as it comes (fp32, batches of 32),
and at its best: its weights in bf16, its default under torch's bf16 autocast, its ONNX network in fp32, optimized (O3),
and quantised to int8 (avx512_vnni). Those get the batch size that is fastest for them on 2,000 of the sentences, of 16
to 256. The ONNX ones live in an environment of their own below --environments, installed by the first run.

Tokens are those of the sentences, special ones among them and padding not. The share of the matrix rate is the work of
the network on these tokens, in floating-point operations a second, over the best of ten 4096³ bf16 products on the same
threads in the same round. Counted are matrix products alone, a multiplication and an addition as two operations: for
each token and layer 2·(4h² + 2hf) and, in attention over its sentence of n tokens, 4nh (hidden size h, inner size f).
Ratios are medians over rounds of the ratio in a round, with the least and the most.
"""

import json
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedConfig

from benchmarks.contenders import Answer, Claim, Contender, Spread, at_least, in_turns, judge
from benchmarks.english import STSB, draw
from benchmarks.environments import environment
from benchmarks.machine import MINILM, add_data, add_device, machine, matrix_rate, require
from bertrelay.encoder import SentenceEncoder
from bertrelay.hardware import resolve_precision
from bertrelay.settings import ModelSource

BATCH_SIZES = {"cpu": [16, 32, 64, 128, 256], "cuda": [64, 128, 256, 512, 1024, 2048]}
TRIED_ON, TRIED_TIMES = 2_000, 2
OF_DEFAULT, OF_BEST, SMALLEST_COSINE, MATRIX_SHARE, FP32_OF_DEFAULT = 4.0, 1.5, 0.9999, 0.55, 1.4


@dataclass(frozen=True)
class Entrant:
    """Who takes part. tuned: its batch size is chosen; environment: one of its own, or None for this one."""

    title: str
    module: str
    settings: dict[str, str]
    batch_size: int | None = None
    tuned: bool = False
    environment: str | None = None


OURS_MODULE, PEER_MODULE = "benchmarks.encode_ours", "benchmarks.encode_peer"
OURS = {
    "auto": Entrant("BertRelay", OURS_MODULE, {"precision": "auto"}),
    "fp32": Entrant("BertRelay, fp32", OURS_MODULE, {"precision": "fp32"}),
}
DEFAULT = "default"
PEERS = {
    DEFAULT: Entrant("sentence-transformers", PEER_MODULE, {"way": "default"}, batch_size=32),
    "bf16": Entrant("its weights in bf16", PEER_MODULE, {"way": "bf16 weights"}, tuned=True),
    "autocast": Entrant("under bf16 autocast", PEER_MODULE, {"way": "bf16 autocast"}, tuned=True),
    "onnx": Entrant("its ONNX, fp32", PEER_MODULE, {"way": "ONNX fp32"}, tuned=True, environment="onnx"),
    "o3": Entrant("its ONNX, O3", PEER_MODULE, {"way": "ONNX fp32, O3"}, tuned=True, environment="onnx"),
    "int8": Entrant("its ONNX, int8", PEER_MODULE, {"way": "ONNX int8"}, tuned=True, environment="onnx"),
}
ON_GPU = ["bf16", "autocast"]


@dataclass(frozen=True)
class Load:
    """What all have to do. operations: floating-point ones of the network's matrix products on real tokens."""

    sentences: list[str]
    tokens: int
    operations: float


@dataclass
class Result:
    """What a contender gave. vectors: (sentences, dim); seconds: by round."""

    title: str
    batch_size: int | None
    versions: str
    vectors: NDArray[np.float32]
    seconds: list[float] = field(default_factory=list)

    def cosines(self, reference: "Result") -> NDArray[np.float64]:
        """Of row i with row i of the other's vectors, (sentences,)."""
        a, b = self.vectors.astype(np.float64), reference.vectors.astype(np.float64)  # (sentences, dim)
        return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)

    def slower_than(self, other: "Result") -> Spread:
        """How many times its time is the other's."""
        return Spread.of_ratios(self.seconds, other.seconds)


def load(options: Namespace) -> Load:
    sentences = draw(options.data, STSB, options.sentences, options.seed)
    encoder = SentenceEncoder.load(MINILM)
    lengths = np.array([len(ids) for ids in encoder.tokenize(sentences)])
    return Load(sentences, int(lengths.sum()), operations(lengths, encoder.backbone.config))


def operations(lengths: NDArray[np.int64], network: PreTrainedConfig) -> float:
    hidden, inner = network.hidden_size, network.intermediate_size
    products = 2 * (4 * hidden**2 + 2 * hidden * inner) * lengths  # (sentences,)
    attention = 4 * hidden * lengths**2  # (sentences,)
    return float(network.num_hidden_layers * (products + attention).sum())


# The measurement


def measure(options: Namespace) -> tuple[dict[str, Result], list[float]]:
    """The result of each contender, the default first, and the matrix rate in each round."""
    entrants = {DEFAULT: PEERS[DEFAULT], **OURS, **{name: PEERS[name] for name in options.peers}}
    contenders = {name: started(entrant, options) for name, entrant in entrants.items()}
    results = {name: first_result(entrants[name], contender, options) for name, contender in contenders.items()}
    works = {name: turn(contender, results[name].batch_size) for name, contender in contenders.items()}
    answers = in_turns({"rate": lambda _: {"rate": matrix_rate(options.device)}, **works}, options.rounds)
    for name, contender in contenders.items():
        results[name].seconds = [answer["seconds"] for answer in answers[name]]
        contender.end()
    return results, [answer["rate"] for answer in answers["rate"]]


def started(entrant: Entrant, options: Namespace) -> Contender:
    print(f"making ready: {entrant.title}", file=sys.stderr, flush=True)
    python = environment(options.environments, entrant.environment) if entrant.environment else sys.executable
    settings = {**entrant.settings, "model": str(ModelSource.parse(MINILM)), "scratch": str(options.scratch)}
    return Contender(entrant.module, options.device, options.threads, settings, python)


def first_result(entrant: Entrant, contender: Contender, options: Namespace) -> Result:
    """Chooses the batch size where one is to be chosen, and has all sentences encoded once."""
    size = best_batch_size(contender, BATCH_SIZES[options.device]) if entrant.tuned else entrant.batch_size
    answer = contender.ask(batch_size=size, keep=True)
    return Result(entrant.title, size, answer.get("versions", ""), np.load(options.scratch / "vectors.npy"))


def best_batch_size(contender: Contender, sizes: list[int]) -> int:
    """The size with which some of the sentences are encoded fastest."""
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(TRIED_TIMES):
        for size in sizes:
            seconds[size].append(contender.ask(batch_size=size, count=TRIED_ON)["seconds"])
    return min(sizes, key=lambda size: min(seconds[size]))


def turn(contender: Contender, batch_size: int | None) -> Callable[[int], Answer]:
    return lambda _: contender.ask(batch_size=batch_size)


# What is told


def print_table(results: dict[str, Result], job: Load) -> None:
    print(f"{'':24} {'batch':>5} {'sentences/s':>11} {'tokens/s':>9} {'cosine':>9} {'mean':>9}   ours ×, in fp32 ×")
    for result in results.values():
        seconds = Spread.of(result.seconds).median
        cosines = result.cosines(results[DEFAULT])
        print(
            f"{result.title:24} {result.batch_size or '':>5} {len(job.sentences) / seconds:>11,.0f} "
            f"{job.tokens / seconds:>9,.0f} {cosines.min():>9.6f} {cosines.mean():>9.6f}   "
            f"{result.slower_than(results['auto'])}, {result.slower_than(results['fp32'])}"
        )


def claims(results: dict[str, Result], share: Spread) -> list[Claim]:
    default, auto = results[DEFAULT], results["auto"]
    peers = [result for name, result in results.items() if name not in OURS]
    best = min(peers, key=lambda peer: Spread.of(peer.seconds).median)
    cosine = float(auto.cosines(default).min())
    return [
        at_least(OF_DEFAULT, "as fast as its default", default.slower_than(auto)),
        at_least(OF_BEST, f"as fast as its best ({best.title})", best.slower_than(auto)),
        Claim(f"smallest cosine to fp32 at least {SMALLEST_COSINE}", f"{cosine:.6f}", cosine >= SMALLEST_COSINE),
        at_least(MATRIX_SHARE, "the bf16 matrix rate", share),
        at_least(FP32_OF_DEFAULT, "as fast as its default in fp32", default.slower_than(results["fp32"])),
    ]


def figures(result: Result, results: dict[str, Result], job: Load) -> dict[str, Any]:
    """All that was measured of one contender."""
    seconds, cosines = Spread.of(result.seconds).median, result.cosines(results[DEFAULT])
    return {
        "title": result.title,
        "versions": result.versions,
        "batch_size": result.batch_size,
        "seconds": result.seconds,
        "sentences_per_second": len(job.sentences) / seconds,
        "tokens_per_second": job.tokens / seconds,
        "cosine_min": float(cosines.min()),
        "cosine_mean": float(cosines.mean()),
        "ours_faster": result.slower_than(results["auto"])._asdict(),
        "ours_fp32_faster": result.slower_than(results["fp32"])._asdict(),
    }


def parsed() -> Namespace:
    parser = ArgumentParser(prog="python -m benchmarks.encode", description=(__doc__ or "").partition("\n")[0])
    add_data(parser)
    add_device(parser)
    parser.add_argument("--sentences", type=int, default=8_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="of the choice of sentences")
    names = [name for name in PEERS if name != DEFAULT]
    parser.add_argument(
        "--peers", nargs="*", choices=names, help="beside the default (all; on a GPU bf16 and autocast)"
    )
    parser.add_argument("--environments", type=Path, default=Path(".peers"), metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there too")
    options = parser.parse_args()
    require(parser, options.data, *STSB)
    if options.peers is None:
        options.peers = names if options.device == "cpu" else ON_GPU
    return options


def main() -> None:
    options = parsed()
    torch.set_num_threads(options.threads)
    job = load(options)
    print(machine())
    print(
        f"{len(job.sentences):,} distinct sentences of {job.tokens / len(job.sentences):.1f} tokens, {options.rounds} "
        f"rounds, on {options.device}; BertRelay computes in {resolve_precision('auto')}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as scratch:
        options.scratch = Path(scratch)
        (options.scratch / "sentences.json").write_text(json.dumps(job.sentences), encoding="utf-8")
        results, rates = measure(options)
    reached = [job.operations / seconds for seconds in results["auto"].seconds]
    share, rate = Spread.of_ratios(reached, rates), Spread.of(rate / 1e12 for rate in rates)
    print("; ".join(dict.fromkeys(result.versions for result in results.values() if result.versions)))
    print_table(results, job)
    print(f"bf16 matrix rate {rate} TFLOP/s; of it the network on real tokens reaches {share}")
    judged = claims(results, share) if options.device == "cpu" else []
    holds = judge(judged)
    if options.json:
        told = {
            "machine": machine(),
            "device": options.device,
            "threads": options.threads,
            "sentences": len(job.sentences),
            "tokens": job.tokens,
            "operations": job.operations,
            "matrix_rate": rates,
            "matrix_share": share._asdict(),
            "contenders": {name: figures(result, results, job) for name, result in results.items()},
            "claims": [claim._asdict() for claim in judged],
        }
        options.json.write_text(json.dumps(told, indent=1) + "\n")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
