"""Tagging raw texts beside transformers' token-classification pipeline, and a very long document.

Claims: at least 3 times the words/s of the pipeline with its best batch size, on the same CPU and model; the same words
in one document take at most 24 MB more private memory than in ten, and at most 200 MB beyond their text.

    python -m benchmarks.tagging --data DIR --model runs/ncbi-disease/ner/latest/model

The pipeline has a stride, without which it drops what is beyond 512 tokens, and does not mark capitals. The long
document is the abstracts again and again. Memory is that beyond a fresh process with all texts loaded, after a warm-up.
"""

import json
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import (
    OURS,
    PRECISIONS,
    Answer,
    Claim,
    Contender,
    Result,
    Work,
    at_least,
    in_turns,
    main,
    print_results,
    timed,
)
from benchmarks.machine import Memory, growth_claim, memories
from domain.biomedical import EntityTagger
from domain.biomedical.documents.document import Document
from domain.biomedical.documents.formats import read_documents

ABSTRACTS = "text/pubmed-abstracts.jsonl.gz"
DEFAULT = "pipeline"
DTYPES = {DEFAULT: "float32", "pipeline-bf16": "bfloat16"}
BATCH_SIZES, TRIED_ON, STRIDE = [1, 4, 16, 64], 100, 64
FASTER, WARM_UPS, TIMES = 3.0, 2, 10
SLACK_MB = 24.0
"""For the entities found, some 250 bytes each, and what the allocator keeps for later."""
MOST_MB = 200.0
"""For the batches in flight, whatever the document."""


def prepare(model: str, scratch: str, variant: str) -> Work:
    """Our tagger in a precision, or the pipeline in a dtype."""
    texts = json.loads(Path(scratch, "texts.json").read_text(encoding="utf-8"))
    if variant in PRECISIONS:
        tagger = EntityTagger.load(model)
    else:
        from transformers import pipeline

        kind: dict[str, Any] = {"aggregation_strategy": "simple", "stride": STRIDE}
        tag = pipeline("token-classification", model=model, dtype=DTYPES[variant], **kind)

    def work(batch_size: int, number: int | None) -> Answer:
        given = texts[:TRIED_ON] if number is None else texts
        if variant in PRECISIONS:
            documents, seconds = timed(lambda: tagger(given, precision=PRECISIONS[variant]))
            entities = sum(len(document.entities) for document in documents)
            return {"seconds": seconds, "entities": entities, "batch_size": "by tokens"}
        tagged, seconds = timed(lambda: tag(given, batch_size=batch_size))
        return {"seconds": seconds, "entities": sum(map(len, tagged))}

    return work


def compete(options: Namespace, texts: Sequence[str]) -> dict[str, Result]:
    (options.scratch / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    works, folders = {}, {"model": str(options.model), "scratch": str(options.scratch)}
    for name in [*PRECISIONS, *DTYPES]:
        sizes = BATCH_SIZES if name in DTYPES else [1]
        works[name] = Contender("benchmarks.tagging:prepare", sizes, **folders, variant=name)
    results = in_turns(works, options.rounds)
    words = sum(len(text.split()) for text in texts)
    print_results(results, {"words": words}, {"entities": lambda result: result.answers[0]["entities"]})
    return results


def long_documents(texts: Sequence[str], words: int, documents: int) -> list[str]:
    """`texts` again and again, in so many documents of about so many words each."""
    times = round(words * documents / sum(len(text.split()) for text in texts)) + 1
    return ["\n\n".join(part) for part in np.array_split(list(texts) * times, documents)]


def prepare_tagging(model: str, texts: Sequence[str], given: Sequence[str]) -> Callable[[], int]:
    tagger = EntityTagger.load(model)
    tagger(["\n\n".join(texts)] * WARM_UPS)
    return lambda: sum(len(each.entities) for each in tagger.tag_documents(Document("long", text) for text in given))


def claims(results: Mapping[str, Result], measured: Sequence[Memory]) -> list[Claim]:
    """measured: of ten documents first, and of their words in one last."""
    beyond = measured[-1].beyond
    return [
        at_least(FASTER, "as many words/s as the pipeline", results[OURS].speed_over(results[DEFAULT])),
        growth_claim(f"the words of {TIMES} documents in one", SLACK_MB, measured),
        Claim(f"and at most {MOST_MB} MB beyond the text", f"{beyond:.0f} MB", beyond <= MOST_MB),
    ]


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    texts = [document.text for document in read_documents(options.data / ABSTRACTS)][: options.texts]
    results = compete(options, texts)
    short = long_documents(texts, options.words, TIMES)
    cases = {f"{TIMES} documents": short, "one of them": short[:1], "one of all their words": ["\n\n".join(short)]}
    given = {name: (str(options.model), texts, case) for name, case in cases.items()}
    measured = memories(prepare_tagging, given)
    return claims(results, measured), {"contenders": results, "documents": measured}


if __name__ == "__main__":
    model = {"type": Path, "required": True}
    main(measure, __doc__, ABSTRACTS, model=model, texts=1_000, rounds=3, words=100_000)
