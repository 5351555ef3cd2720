"""Encoding beside sentence-transformers: sentences a second, and how near the vectors stay to fp32.

Claims, on a CPU that computes in bf16: at least 4 × its default and 1.5 × its fastest variant, at a smallest cosine of
0.9999 to its fp32 vectors, and 55 % of the machine's bf16 matrix rate; forced to fp32 at least 1.4 × its default.

    python -m benchmarks.encode --data DIR                 about 10 minutes on 2 cores, after the first run
    python -m benchmarks.encode --data DIR --peers bf16 int8 --sentences 2000 --rounds 2

All encode the same distinct sentences of the STS benchmark with all-MiniLM-L6-v2; a time is one call of `encode`,
tokenizing included. Every variant of the peer but its default gets its fastest batch size of 16 to 256. The ONNX
variants (fp32, optimized, int8) run in an environment of their own below --environments, installed by the first run.

The share of the matrix rate is the work of the network's matrix products on real tokens, without padding, in
floating-point operations a second, over the best of ten 4096³ bf16 products in the same round.
"""

import json
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedConfig

from benchmarks.harness import Claim, Contender, Spread, Work, at_least, in_turns, main, timed
from benchmarks.machine import MINILM, STSB, environment, matrix_rate, sentences_of
from bertrelay.encoder import SentenceEncoder
from bertrelay.hardware import resolve_precision
from bertrelay.settings import ModelSource

BATCH_SIZES = [16, 32, 64, 128, 256]
TRIED_ON = 2_000
OF_DEFAULT, OF_BEST, SMALLEST_COSINE, MATRIX_SHARE, FP32_OF_DEFAULT = 4.0, 1.5, 0.9999, 0.55, 1.4
OURS = {"auto": "BertRelay", "fp32": "BertRelay, fp32"}
DEFAULT = "default"
PEERS = {
    DEFAULT: "sentence-transformers",
    "bf16": "its weights in bf16",
    "autocast": "under bf16 autocast",
    "onnx": "its ONNX, fp32",
    "o3": "its ONNX, O3",
    "int8": "its ONNX, int8",
}
TUNED = [name for name in PEERS if name != DEFAULT]
VARIANTS = {"o3": "onnx-o3", "int8": "onnx-int8"}


def prepare(threads: int, model: str, scratch: str, variant: str) -> Work:
    """BertRelay as a contender; it chooses its batches itself."""
    torch.set_num_threads(threads)
    encoder = SentenceEncoder.load(model)
    sentences = json.loads(Path(scratch, "sentences.json").read_text(encoding="utf-8"))

    def work(batch_size: int, keep: str | None = None) -> dict[str, Any]:  # noqa: ARG001
        vectors, seconds = timed(lambda: encoder.encode(sentences, precision=variant))
        if keep:
            np.save(Path(scratch, keep), vectors)
        return {"seconds": seconds, "versions": ""}

    return work


@dataclass(frozen=True)
class Result:
    """vectors: (sentences, dim); seconds: by round."""

    title: str
    batch_size: int
    versions: str
    vectors: NDArray[np.float32]
    seconds: list[float]

    def cosines(self, reference: "Result") -> NDArray[np.float64]:
        """Of each row with the same row of the reference, (sentences,)."""
        a, b = self.vectors.astype(np.float64), reference.vectors.astype(np.float64)  # (sentences, dim)
        return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)

    def slower_than(self, other: "Result") -> Spread:
        return Spread.of_ratios(self.seconds, other.seconds)


def operations(lengths: NDArray[np.int64], network: PreTrainedConfig) -> float:
    """Of all matrix products: for each token and layer 2·(4h² + 2hf), and 4nh in attention over n tokens."""
    hidden, inner = network.hidden_size, network.intermediate_size
    products = 2 * (4 * hidden**2 + 2 * hidden * inner) * lengths  # (sentences,)
    attention = 4 * hidden * lengths**2  # (sentences,)
    return float(network.num_hidden_layers * (products + attention).sum())


def compete(options: Namespace) -> tuple[dict[str, Result], list[float]]:
    """The result of each contender, and the matrix rate in each round."""
    shared = {"model": str(ModelSource.parse(MINILM)), "scratch": str(options.scratch)}
    contenders, sizes, firsts = {}, {}, {}
    for name in [DEFAULT, *OURS, *options.peers]:
        is_onnx = name in ("onnx", "o3", "int8")
        python = {"python": environment(options.environments, "onnx")} if is_onnx else {}
        function = f"benchmarks.{'encode' if name in OURS else 'encode_peer'}:prepare"
        variant = VARIANTS.get(name, name)
        contender = Contender(function, options.threads, **python, **shared, variant=variant)
        is_tuned = name in options.peers
        sizes[name] = contender.fastest(BATCH_SIZES, count=TRIED_ON) if is_tuned else 32
        answer = contender.ask(batch_size=sizes[name], keep=f"{name}.npy")
        firsts[name] = (answer["versions"], np.load(options.scratch / f"{name}.npy"))
        contenders[name] = contender
    works = {name: lambda _, name=name: contenders[name].ask(batch_size=sizes[name]) for name in contenders}
    answers = in_turns({"rate": lambda _: {"rate": matrix_rate()}, **works}, options.rounds)
    results = {
        name: Result((PEERS | OURS)[name], sizes[name], *firsts[name], [each["seconds"] for each in answers[name]])
        for name in contenders
    }
    return results, [answer["rate"] for answer in answers["rate"]]


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


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    sentences = sentences_of(options.data, STSB, options.sentences, options.seed)
    encoder = SentenceEncoder.load(MINILM)
    lengths = np.array([len(ids) for ids in encoder.tokenize(sentences)])
    work, tokens = operations(lengths, encoder.backbone.config), int(lengths.sum())
    print(f"{len(sentences):,} sentences of {tokens / len(sentences):.1f} tokens; auto is {resolve_precision('auto')}")
    (options.scratch / "sentences.json").write_text(json.dumps(sentences), encoding="utf-8")
    results, rates = compete(options)
    found = {}
    print("\n".join(dict.fromkeys(result.versions for result in results.values() if result.versions)))
    print(f"{'':24} {'batch':>5} {'sentences/s':>11} {'tokens/s':>9} {'cosine':>9}   ours ×, in fp32 ×")
    for name, result in results.items():
        seconds, cosine = Spread.of(result.seconds).median, float(result.cosines(results[DEFAULT]).min())
        faster, fp32_faster = (result.slower_than(results[ours]) for ours in OURS)
        size = "" if name in OURS else result.batch_size
        pace = f"{size:>5} {len(sentences) / seconds:>11,.0f} {tokens / seconds:>9,.0f}"
        print(f"{result.title:24} {pace} {cosine:>9.6f}   {faster}, {fp32_faster}")
        found[name] = {key: value for key, value in vars(result).items() if key != "vectors"} | {"cosine_min": cosine}
    share = Spread.of_ratios([work / seconds for seconds in results["auto"].seconds], rates)
    print(f"bf16 matrix rate {Spread.of(rate / 1e12 for rate in rates)} TFLOP/s; the network reaches {share} of it")
    return claims(results, share), {"contenders": found, "tokens": tokens, "operations": work, "matrix_rate": rates}


if __name__ == "__main__":
    main(
        measure,
        __doc__,
        *STSB,
        threads=True,
        sentences=8_000,
        rounds=5,
        seed=0,
        environments=Path(".peers"),
        peers={"nargs": "*", "choices": TUNED, "default": TUNED, "help": "beside the default (default: all)"},
    )
