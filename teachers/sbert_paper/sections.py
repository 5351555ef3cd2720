"""Sections of Wikipedia (Ein Dor et al. 2018): of three sentences of an article, two are of one section."""

from collections.abc import Sequence

import numpy as np

from bertrelay.data.records import Rejects, read
from bertrelay.data.tables import Record, Table
from bertrelay.evaluation.similarity import pairwise
from bertrelay.evaluation.statistics import share, with_interval
from bertrelay.settings import InputFile, Metric
from bertrelay.stage import Metrics, StageContext
from teachers.data import BLANK, usable
from teachers.sbert_paper.encoders import Fit
from teachers.sbert_paper.official import OfficialFiles

TRIPLET = ("Sentence1", "Sentence2", "Sentence3")
"""Columns of the official file: anchor, positive, negative."""

Triplets = Sequence[tuple[str, str, str]]
"""Anchor, positive, negative."""

BLOCK = 1_024  # triplets: the official files' two hundred thousand would take gigabytes of vectors
MEASURES: dict[str, Metric] = {"accuracy": "euclidean", "accuracy_cosine": "cosine"}


def read_sections(files: OfficialFiles, context: StageContext, rejects: Rejects) -> Triplets | None:
    """Reads the triplets of `test.csv` in a folder whose name has `wiki` or `sections`; None without the file."""
    path = files.find("test.csv", within=r"wiki|sections")
    if path is None:
        return None

    def triplet(record: Record) -> tuple[str, str, str]:
        anchor, positive, negative = record.values
        if not all(sentence.strip() for sentence in record.values):
            raise ValueError(BLANK)
        return anchor, positive, negative

    records = read(Table(path=InputFile(path.resolve())), TRIPLET, context.cache, rejects)
    return list(usable(records, triplet, rejects))


def section_metrics(triplets: Triplets, fit: Fit) -> Metrics:
    """Computes `sections/accuracy` and `…_cosine`: how often the positive is nearer than the negative."""
    encode = fit([sentence for triplet in triplets for sentence in triplet])
    blocks = []  # of a nearer positive, by each of `MEASURES`, (measures, triplets)
    for start in range(0, len(triplets), BLOCK):
        columns = zip(*triplets[start : start + BLOCK], strict=True)
        a, p, n = np.split(encode([sentence for column in columns for sentence in column]), 3)  # (triplets, dim) each
        blocks.append([pairwise(a, p, measure) > pairwise(a, n, measure) for measure in MEASURES.values()])
    metrics: Metrics = {}
    for name, nearer in zip(MEASURES, np.concatenate(blocks, axis=1), strict=True):
        metrics |= with_interval(f"sections/{name}", share, nearer)
    return metrics
