"""Tagging raw texts beside transformers' token-classification pipeline, and a very long document.

Claims: at least 3 times the words/s of the pipeline with its best batch size, on the same CPU and model; the same words
in one document take at most 24 MB more private memory than in ten, and at most 200 MB beyond their text.

    python -m benchmarks.tagging --data DIR --model runs/ncbi-disease/ner/latest/model

The pipeline has a stride, without which it drops what is beyond 512 tokens, and does not mark capitals. The long
document is the abstracts again and again. Memory is that beyond a fresh process with all texts loaded, after a warm-up.
"""

import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Claim, Contender, Spread, Work, at_least, in_turns, main, timed
from benchmarks.machine import Memory, growth_claim, memories
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


def prepare(threads: int, model: str, scratch: str, variant: str) -> Work:
    """A contender: our tagger in a precision, or the pipeline in a dtype."""
    torch.set_num_threads(threads)
    texts = json.loads(Path(scratch, "texts.json").read_text(encoding="utf-8"))
    if variant in OURS.values():
        tagger = EntityTagger.load(model)
    else:
        from transformers import pipeline

        kind: dict[str, Any] = {"aggregation_strategy": "simple", "stride": STRIDE}
        dtype = getattr(torch, variant)
        tag = pipeline("token-classification", model=model, dtype=dtype, **kind)

    def work(batch_size: int, count: int | None = None) -> dict[str, Any]:
        if variant in OURS.values():
            documents, seconds = timed(lambda: tagger(texts[:count], precision=variant))
            return {"seconds": seconds, "entities": sum(len(each.entities) for each in documents)}
        found, seconds = timed(lambda: tag(texts[:count], batch_size=batch_size))
        return {"seconds": seconds, "entities": sum(map(len, found))}

    return work


def measure_speed(options: Namespace, texts: Sequence[str]) -> dict[str, list[float]]:
    """The words/s of each round, of each contender."""
    (options.scratch / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    shared = {"model": str(options.model), "scratch": str(options.scratch)}
    works, sizes = {}, {}
    for name, variant in {**OURS, **PEERS}.items():
        contender = Contender("benchmarks.tagging:prepare", options.threads, **shared, variant=variant)
        sizes[name] = contender.fastest(BATCH_SIZES if name in PEERS else [1], count=TRIED_ON)
        works[name] = lambda _, ask=contender.ask, size=sizes[name]: ask(batch_size=size)
    answers = in_turns(works, options.rounds)
    words, rates = sum(len(text.split()) for text in texts), {}
    for name in works:
        rates[name] = [words / answer["seconds"] for answer in answers[name]]
        found = f"{Spread.of(rates[name]).shown(0)} words/s  {answers[name][0]['entities']:,} entities"
        print(f"{name:16} batch {sizes[name] if name in PEERS else '':>3}  {found}", flush=True)
    return rates


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


def prepare_tagging(model: str, texts: Sequence[str], given: Sequence[str], threads: int) -> Callable[[], int]:
    torch.set_num_threads(threads)
    tagger = EntityTagger.load(model)
    tagger(["\n\n".join(texts)] * WARM_UPS)
    return lambda: sum(len(each.entities) for each in tagger.tag_documents(Document("long", text) for text in given))


def claims(rates: dict[str, list[float]], measured: Sequence[Memory]) -> list[Claim]:
    """measured: of ten documents first, and of their words in one last."""
    beyond = measured[-1].beyond
    return [
        at_least(FASTER, "as many words/s as the pipeline", Spread.of_ratios(rates[AUTO], rates[DEFAULT])),
        growth_claim(f"the words of {TIMES} documents in one", SLACK_MB, measured),
        Claim(f"and at most {MOST_MB} MB beyond the text", f"{beyond:.0f} MB", beyond <= MOST_MB),
    ]


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    texts = [document.text for document in read_documents(options.data / ABSTRACTS)][: options.texts]
    rates = measure_speed(options, texts)
    short = long_documents(texts, options.words, TIMES)
    cases = {f"{TIMES} documents": short, "one of them": short[:1], "one of all their words": ["\n\n".join(short)]}
    given = {name: (str(options.model), texts, case, options.threads) for name, case in cases.items()}
    measured = memories(prepare_tagging, given)
    return claims(rates, measured), {"rates": rates, "documents": [memory._asdict() for memory in measured]}


if __name__ == "__main__":
    main(
        measure,
        __doc__,
        ABSTRACTS,
        threads=True,
        model={"type": Path, "required": True},
        texts=1_000,
        rounds=3,
        words=100_000,
    )
