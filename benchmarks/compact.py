"""The recipe compact's student beside its parent in sentence-transformers: sentences a second, and MB on the disk.

Claim: at least 8 × as fast as the parent in sentence-transformers' default, in at most 60 MB, at a mean cosine of
0.9 to it. The recipe's last stage has the scores of both.

    bertrelay run compact …
    python -m benchmarks.compact --data DIR --parent MODEL --student runs/compact/compact/latest/model

Both encode the same distinct sentences of the STS benchmark; a time is one call of `encode`, tokenizing included. The
student is computed as `SentenceEncoder.load` has it, in int8 by ONNX Runtime. The MB are those of all its files.
"""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.encode import contender
from benchmarks.harness import OURS, Claim, at_least, in_turns, main, print_results
from benchmarks.machine import STSB, sentences_of
from bertrelay.evaluation.similarity import pairwise
from bertrelay.settings import ModelSource

DEFAULT, SENTENCES = "default", "sentences"
TIMES, MOST_MB, MEAN_COSINE = 8.0, 60.0, 0.9


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    sentences = sentences_of(options.data, STSB, options.sentences, options.seed)
    (options.scratch / "sentences.json").write_text(json.dumps(sentences), encoding="utf-8")
    models = {OURS: str(options.student.absolute()), DEFAULT: str(ModelSource.parse(options.parent))}
    works = {name: contender(name, [32], model, options.scratch) for name, model in models.items()}
    results = in_turns(works, options.rounds)
    cosine = float(pairwise(*(np.load(options.scratch / f"{name}.npy") for name in models)).mean())
    print_results(results, {SENTENCES: len(sentences)}, {})
    size = sum(file.stat().st_size for file in options.student.rglob("*") if file.is_file()) / 1e6
    judged = [
        at_least(TIMES, "as fast as its parent in sentence-transformers", results[OURS].speed_over(results[DEFAULT])),
        Claim(f"at most {MOST_MB:.0f} MB", f"{size:.1f}", size <= MOST_MB),
        Claim(f"mean cosine to its parent at least {MEAN_COSINE}", f"{cosine:.4f}", cosine >= MEAN_COSINE),
    ]
    return judged, {"contenders": results, "megabytes": size, "cosine": cosine}


if __name__ == "__main__":
    main(measure, __doc__, *STSB, sentences=4_000, rounds=5, seed=0, parent=str, student=Path)
