"""Our side of benchmarks.encode."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.contenders import Work, serve
from bertrelay.encoder import SentenceEncoder


def prepare(device: str, threads: int, model: str, scratch: str, precision: str) -> Work:
    torch.set_num_threads(threads)
    encoder = SentenceEncoder.load(model).to(device)
    sentences = json.loads(Path(scratch, "sentences.json").read_text(encoding="utf-8"))

    def work(batch_size: None, keep: bool = False) -> dict[str, Any]:  # noqa: ARG001 (its own choice)
        began = time.perf_counter()
        vectors = encoder.encode(sentences, precision=precision)
        seconds = time.perf_counter() - began
        if keep:
            np.save(Path(scratch, "vectors.npy"), vectors)
        return {"seconds": seconds}

    return work


if __name__ == "__main__":
    serve(prepare)
