"""Size and speed of models, and metrics before and after a model is made smaller."""

import time
from collections.abc import Sequence

import numpy as np

from bertrelay.model.encoder import SentenceEncoder
from bertrelay.stage import Metrics

ROUNDS = 5
TIMED_SENTENCES = 512


def counts(encoder: SentenceEncoder) -> Metrics:
    """Numbers of parameters, tokens of the vocabulary and layers."""
    return {
        "parameters": sum(weights.numel() for weights in encoder.parameters()),
        "vocabulary": len(encoder.tokenizer),
        "layers": encoder.backbone.config.num_hidden_layers,
    }


def speeds(encoders: Sequence[SentenceEncoder], sentences: Sequence[str], precision: str) -> list[float]:
    """Measures the sentences per second of each encoder, on the first few hundred: the median of several rounds.

    The encoders take turns, so that other work of the machine slows all of them.
    """
    sentences, seconds = sentences[:TIMED_SENTENCES], np.empty((ROUNDS, len(encoders)))
    for taken in seconds:
        for number, encoder in enumerate(encoders):
            started = time.perf_counter()
            encoder.encode(sentences, precision=precision)
            taken[number] = time.perf_counter() - started
    rates: list[float] = (len(sentences) / np.median(seconds, axis=0)).tolist()
    return rates


def before_and_after(before: Metrics, after: Metrics) -> Metrics:
    """Joins two sets of metrics: `parameters` as `parameters/before` and `/after`, `sts/x/f1` as `sts/x/before/f1`."""
    both: Metrics = {}
    for name in before:
        head, slash, last = name.rpartition("/")
        for moment, metrics in (("before", before), ("after", after)):
            if name in metrics:
                both[f"{head}/{moment}/{last}" if slash else f"{last}/{moment}"] = metrics[name]
    return both
