"""Wikipedia sections (Ein Dor et al. 2018): of three sentences of an article, the two of one section are nearer."""

from collections.abc import Sequence

import numpy as np

from bertrelay.records import Rejects, read
from bertrelay.settings import InputFile
from bertrelay.similarity import Metric, pairwise
from bertrelay.stage import Metrics, StageContext
from bertrelay.statistics import share, with_interval
from bertrelay.tables import Table
from teachers.evaluation.names import TRIPLET
from teachers.evaluation.official import OfficialFiles
from teachers.evaluation.sts import Encode

FILE = "test.csv"
WITHIN = r"wiki|sections"

Triplets = list[tuple[str, str, str]]
"""Anchor, positive, negative."""


def read_sections(files: OfficialFiles, context: StageContext, rejects: Rejects) -> Triplets | None:
    """The triplets of `test.csv`, in a folder that is named after them; None when it is not there."""
    path = files.find(FILE, within=WITHIN)
    if path is None:
        return None
    triplets: Triplets = []
    for record in read(Table(path=InputFile(path.resolve())), TRIPLET, context.cache, rejects):
        rejects.used()
        triplets.append(record.values)
    return triplets


def section_metrics(triplets: Sequence[tuple[str, str, str]], encode: Encode) -> Metrics:
    """`sections/accuracy`: how often the positive is nearer than the negative, by Euclidean distance and by cosine."""
    anchors, positives, negatives = np.split(encode([each for side in zip(*triplets, strict=True) for each in side]), 3)
    metrics: Metrics = {}
    measures: dict[str, Metric] = {"accuracy": "euclidean", "accuracy_cosine": "cosine"}
    for name, similarity in measures.items():
        nearer = pairwise(anchors, positives, similarity) > pairwise(anchors, negatives, similarity)
        metrics |= with_interval(f"sections/{name}", share, nearer)
    return metrics
