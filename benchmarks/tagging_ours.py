"""Our side of benchmarks.tagging."""

import json
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.contenders import Work, serve
from domain.biomedical import EntityTagger


def prepare(device: str, threads: int, model: str, scratch: str, precision: str) -> Work:  # noqa: ARG001 (its own choice)
    torch.set_num_threads(threads)
    tagger = EntityTagger.load(model)
    texts = json.loads(Path(scratch, "texts.json").read_text(encoding="utf-8"))

    def work(batch_size: int | None, count: int | None = None) -> dict[str, Any]:  # noqa: ARG001 (its own choice)
        began = time.perf_counter()
        documents = tagger.tag(texts[:count], precision=precision)
        return {
            "seconds": time.perf_counter() - began,
            "entities": sum(len(document.entities) for document in documents),
        }

    return work


if __name__ == "__main__":
    serve(prepare)
