"""Tagging raw texts beside transformers' token-classification pipeline, and a very long document.

Claims: at least 3 times the words/s of the pipeline with its best batch size, on the same CPU and model; the same words
in one document take at most 24 MB more private memory than in ten, and at most 200 MB beyond their text.

    python -m benchmarks.tagging --data DIR --model runs/ncbi-disease/ner/latest/model

The texts are PubMed abstracts. The pipeline has a stride, without which it drops what is beyond 512 tokens, and does
not mark capitals. The long document is these abstracts again and again. `ready` is the private memory of a fresh
process with all texts loaded, after a warm-up of twice the abstracts; `peak` the highest, every 50 ms, while they are
tagged.
"""

import json
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.harness import (
    Claim,
    Contender,
    Spread,
    Work,
    at_least,
    finish,
    in_fresh_process,
    in_turns,
    parser_of,
    start,
    timed,
)
from benchmarks.machine import memory_samples
from domain.biomedical import EntityTagger
from domain.biomedical.documents import read_documents
from domain.biomedical.documents.document import Document

ABSTRACTS = "text/pubmed-abstracts.jsonl.gz"
OURS = {"BertRelay": "auto", "BertRelay, fp32": "fp32"}
PEERS = {"pipeline, fp32": "float32", "pipeline, bf16": "bfloat16"}
DEFAULT, AUTO = "pipeline, fp32", "BertRelay"
BATCH_SIZES, TRIED_ON, STRIDE = [1, 4, 16, 64], 100, 64
FASTER, WARM_UPS, TIMES = 3.0, 2, 10
SLACK_MB = 24.0
"""For the entities found, some 250 bytes each, and what the allocator keeps for later."""
MOST_MB = 200.0
"""For the batches in flight, whatever the document."""


def prepare(device: str, threads: int, model: str, scratch: str, variant: str) -> Work:
    """A contender: our tagger in a precision, or the pipeline in a dtype."""
    torch.set_num_threads(threads)
    texts = json.loads(Path(scratch, "texts.json").read_text(encoding="utf-8"))
    if variant in OURS.values():
        tagger = EntityTagger.load(model)
    else:
        from transformers import pipeline

        kind: dict[str, Any] = {"aggregation_strategy": "simple", "stride": STRIDE}
        dtype = getattr(torch, variant)
        tag = pipeline("token-classification", model=model, device=device, dtype=dtype, **kind)

    def work(batch_size: int, count: int | None = None) -> dict[str, Any]:
        if variant in OURS.values():
            documents, seconds = timed(lambda: tagger(texts[:count], precision=variant))
            return {"seconds": seconds, "entities": sum(len(each.entities) for each in documents)}
        found, seconds = timed(lambda: tag(texts[:count], batch_size=batch_size))
        return {"seconds": seconds, "entities": sum(map(len, found))}

    return work


def measure_speed(options: Namespace, texts: Sequence[str], scratch: str) -> dict[str, list[float]]:
    """The words/s of each round, of each contender."""
    Path(scratch, "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    shared, sizes = {"model": str(options.model), "scratch": scratch}, {}
    contenders = {
        name: Contender("benchmarks.tagging:prepare", options.device, options.threads, **shared, variant=variant)
        for name, variant in {**OURS, **PEERS}.items()
    }
    for name, contender in contenders.items():
        sizes[name] = contender.fastest(BATCH_SIZES if name in PEERS else [1], count=TRIED_ON)
    works = {name: lambda _, name=name: contenders[name].ask(batch_size=sizes[name]) for name in contenders}
    answers = in_turns(works, options.rounds)
    words, rates = sum(len(text.split()) for text in texts), {}
    for name, contender in contenders.items():
        contender.end()
        rates[name] = [words / answer["seconds"] for answer in answers[name]]
        found = f"{Spread.of(rates[name]).shown(0)} words/s  {answers[name][0]['entities']:,} entities"
        print(f"{name:16} batch {sizes[name] if name in PEERS else '':>3}  {found}", flush=True)
    return rates


class Memory(NamedTuple):
    """Words of all documents, and private memory in MB with them and at most."""

    words: int
    documents: int
    ready: float
    peak: float
    entities: int

    @property
    def beyond(self) -> float:
        return self.peak - self.ready


def long_documents(texts: Sequence[str], words: int, documents: int) -> list[str]:
    """`texts` again and again, in so many documents of so many words each, or a few more."""
    stream, found = cycle(texts), list[str]()
    for _ in range(documents):
        parts, count = list[str](), 0
        while count < words:
            parts.append(next(stream))
            count += len(parts[-1].split())
        found.append("\n\n".join(parts))
    return found


def tag_and_measure(model: str, texts: Sequence[str], given: Sequence[str], threads: int) -> Memory:
    """In a fresh process."""
    torch.set_num_threads(threads)
    tagger = EntityTagger.load(model)
    tagger(["\n\n".join(texts)] * WARM_UPS)
    with memory_samples() as samples:
        documents = tagger.tag_documents(Document("long", text) for text in given)
        entities = sum(len(each.entities) for each in documents)
    return Memory(sum(len(text.split()) for text in given), len(given), samples[0], max(samples), entities)


def measure_memory(options: Namespace, texts: Sequence[str]) -> list[Memory]:
    measured = []
    short = long_documents(texts, options.words, TIMES)
    for given in (short[:1], short, ["\n\n".join(short)]):
        now = in_fresh_process(tag_and_measure, str(options.model), texts, given, options.threads)
        print(f"{now.words:,} words in {now.documents}: {now.entities:,} entities, ready {now.ready:.0f} MB, ", end="")
        print(f"peak {now.peak:.0f} MB, {now.beyond:.1f} MB beyond", flush=True)
        measured.append(now)
    return measured


def claims(rates: dict[str, list[float]], measured: Sequence[Memory]) -> list[Claim]:
    *_, short, long = measured
    growth = long.beyond - short.beyond
    memory = f"{long.words:,} words in one document take at most {SLACK_MB} MB more than in {short.documents}"
    return [
        at_least(FASTER, "as many words/s as the pipeline", Spread.of_ratios(rates[AUTO], rates[DEFAULT])),
        Claim(memory, f"{growth:+.1f} MB", growth <= SLACK_MB),
        Claim(f"and at most {MOST_MB} MB beyond the text", f"{long.beyond:.0f} MB", long.beyond <= MOST_MB),
    ]


def main() -> None:
    parser = parser_of(__doc__, "tagging", device=True)
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="a folder that domain.ner wrote")
    parser.add_argument("--texts", type=int, default=1_000, help="so many abstracts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--words", type=int, default=100_000, help=f"of a document; the long one has {TIMES} times")
    options = start(parser, ABSTRACTS)
    texts = [document.text for document in read_documents(options.data / ABSTRACTS)][: options.texts]
    with tempfile.TemporaryDirectory() as scratch:
        rates = measure_speed(options, texts, scratch)
    measured = measure_memory(options, texts)
    finish(options, claims(rates, measured), rates=rates, documents=[each._asdict() for each in measured])


if __name__ == "__main__":
    main()
