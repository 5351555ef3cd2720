"""A model before and after it was made smaller: size, speed, and how far its vectors moved.

Names of figures say the side last, or before the last word where that says what is measured.
"""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bertrelay.encoder import SentenceEncoder
from bertrelay.evaluation.similarity import Vectors, pairwise
from bertrelay.stage import Metrics
from students.shrinking.dimensions import Axes

ROUNDS = 5
TIMED_SENTENCES = 512
SIDES = ("before", "after")


def side_by_side(before: Metrics, after: Metrics) -> Metrics:
    """Both in one: `parameters` as `parameters/before` and `/after`, `sts/x/spearman_cosine` as `sts/x/before/…`."""
    both = dict(zip(SIDES, (before, after), strict=True))
    return {_sided(name, side): figures[name] for name in before for side, figures in both.items() if name in figures}


def _sided(name: str, side: str) -> str:
    head, _, last = name.rpartition("/")
    return f"{head}/{side}/{last}" if head else f"{last}/{side}"


def size(encoder: SentenceEncoder, folder: Path) -> Metrics:
    """What the encoder, saved in `folder`, consists of; megabytes are of 10⁶ bytes."""
    bytes_on_disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {"size_mb": bytes_on_disk / 1e6, **counts(encoder), "dimensions": encoder.dim}


def counts(encoder: SentenceEncoder) -> Metrics:
    """What the encoder is made of."""
    return {
        "parameters": sum(weights.numel() for weights in encoder.parameters()),
        "vocabulary": len(encoder.tokenizer),
        "layers": encoder.backbone.config.num_hidden_layers,
    }


def size_saved(encoder: SentenceEncoder, folder: Path) -> Metrics:
    """The same of an encoder that is saved for this alone, so that both sides are files of one kind."""
    try:
        encoder.save(folder)
        return size(encoder, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def speeds(encoders: Sequence[SentenceEncoder], sentences: Sequence[str], precision: str) -> list[float]:
    """Sentences per second of each encoder, on the first few hundred: the median of rounds in turn.

    In turn, so that a machine that is busy with other work is so for all of them.
    """
    sentences, seconds = sentences[:TIMED_SENTENCES], np.empty((ROUNDS, len(encoders)))
    for taken in seconds:
        for place, encoder in enumerate(encoders):
            started = time.perf_counter()
            encoder.encode(sentences, precision=precision)
            taken[place] = time.perf_counter() - started
    rates: list[float] = (len(sentences) / np.median(seconds, axis=0)).tolist()
    return rates


def moved(before: Vectors, after: Vectors, axes: Axes | None) -> Metrics:
    """Cosines of vectors (n, dim) to those they were, (n, dim before): their mean, and the lowest.

    axes: where there are fewer dimensions, vectors are compared where these lead back to.
    """
    if axes is not None:
        after = (after @ axes.T).astype(np.float32)  # (n, dim before)
    cosines = np.minimum(pairwise(before, after), 1)  # (n,); rounding goes beyond
    return {"cosine_mean": float(cosines.mean(dtype=np.float64)), "cosine_min": float(cosines.min())}
