"""What a student is judged by on parallel sentences: nearest neighbours, and distance to the teacher's vectors."""

import numpy as np
from numpy.typing import NDArray

from bertrelay.similarity import nearest
from bertrelay.stage import Metrics
from bertrelay.statistics import share, with_interval
from students.sources import ENGLISH

Vectors = NDArray[np.float32]


def translation_metrics(
    language: str, english: Vectors, other: Vectors, name: str = "translation_accuracy", intervals: bool = True
) -> Metrics:
    """How often the nearest sentence of the other side, by cosine, is the translation: both directions.

    english, other: row i of one translates row i of the other, (sentences, dim). A sentence that stands in a side
    twice counts by its row, as in other tools, so one of the two is a miss.
    """
    metrics: Metrics = {}
    directions = {f"{ENGLISH}-{language}": (english, other), f"{language}-{ENGLISH}": (other, english)}
    for direction, (source, target) in directions.items():
        hits = (nearest(source, target) == np.arange(len(source))).astype(np.float64)
        full_name = f"{name}/{direction}"
        metrics |= with_interval(full_name, share, hits) if intervals else {full_name: share(hits)}
    return metrics


def mse(student: Vectors, teacher: Vectors) -> float:
    """Mean squared error over sentences and dimensions: the figure others report, some of them times −100."""
    return float(np.mean((student.astype(np.float64) - teacher) ** 2))


def mse_metrics(language: str, student: Vectors, teacher: Vectors, variance: float | None) -> Metrics:
    """`mse/<language>`, and `mse_relative/<language>` in units of the targets' variance where that is known."""
    raw = mse(student, teacher)
    relative = {} if variance is None else {f"mse_relative/{language}": raw * teacher.shape[1] / variance}
    return {f"mse/{language}": raw, **relative}
