"""Wikipedia sections (Ein Dor et al. 2018): of three sentences of an article, the two of one section are nearer."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.records import Rejects, read
from bertrelay.data.tables import Table
from bertrelay.evaluation.similarity import Metric, pairwise
from bertrelay.evaluation.statistics import share, with_interval
from bertrelay.settings import InputFile
from bertrelay.stage import Metrics, StageContext
from teachers.evaluation.names import TRIPLET
from teachers.evaluation.official import OfficialFiles
from teachers.evaluation.sts import Encode, Fit
from teachers.examples import BLANK

FILE = "test.csv"
WITHIN = r"wiki|sections"
BLOCK = 1_024  # triplets: the official files' two hundred thousand would take gigabytes of vectors
MEASURES: dict[str, Metric] = {"accuracy": "euclidean", "accuracy_cosine": "cosine"}

Triplets = list[tuple[str, str, str]]
"""Anchor, positive, negative."""


def read_sections(files: OfficialFiles, context: StageContext, rejects: Rejects) -> Triplets | None:
    """The triplets of `test.csv`, in a folder that is named after them; None when it is not there."""
    path = files.find(FILE, within=WITHIN)
    if path is None:
        return None
    triplets: Triplets = []
    for record in read(Table(path=InputFile(path.resolve())), TRIPLET, context.cache, rejects):
        if all(sentence.strip() for sentence in record.values):
            rejects.used()
            triplets.append(record.values)
        else:
            rejects.add(record.file, record.line, BLANK)
    return triplets


def section_metrics(triplets: Sequence[tuple[str, str, str]], fit: Fit) -> Metrics:
    """`sections/accuracy`: how often the positive is nearer than the negative, by Euclidean distance and by cosine."""
    encode = fit([sentence for triplet in triplets for sentence in triplet])
    blocks = [_nearer(triplets[start : start + BLOCK], encode) for start in range(0, len(triplets), BLOCK)]
    metrics: Metrics = {}
    for name, nearer in zip(MEASURES, np.concatenate(blocks, axis=1), strict=True):
        metrics |= with_interval(f"sections/{name}", share, nearer)
    return metrics


def _nearer(triplets: Sequence[tuple[str, str, str]], encode: Encode) -> NDArray[np.bool_]:
    """Whether the positive is nearer, by each of `MEASURES`, (measures, triplets)."""
    sides = zip(*triplets, strict=True)
    anchors, positives, negatives = np.split(encode([sentence for side in sides for sentence in side]), 3)
    return np.stack(
        [pairwise(anchors, positives, each) > pairwise(anchors, negatives, each) for each in MEASURES.values()]
    )
