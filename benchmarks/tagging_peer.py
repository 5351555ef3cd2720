"""The peer's side of benchmarks.tagging: transformers' pipeline, which can read long texts in windows."""

import json
import time
from pathlib import Path
from typing import Any

import torch
from transformers import pipeline

from benchmarks.contenders import Work, serve

STRIDE = 64


def prepare(device: str, threads: int, model: str, scratch: str, dtype: str) -> Work:
    torch.set_num_threads(threads)
    # Without a stride it would leave out, without a word, what is beyond the longest input.
    tag = pipeline(
        "token-classification",
        model=model,
        device=device,
        dtype=getattr(torch, dtype),
        aggregation_strategy="simple",
        stride=STRIDE,
    )
    texts = json.loads(Path(scratch, "texts.json").read_text(encoding="utf-8"))

    def work(batch_size: int, count: int | None = None) -> dict[str, Any]:
        began = time.perf_counter()
        found = tag(texts[:count], batch_size=batch_size)
        return {"seconds": time.perf_counter() - began, "entities": sum(map(len, found))}

    return work


if __name__ == "__main__":
    serve(prepare)
