"""The dev score of a student: how much of the teacher's space it explains, and whether translations meet in it."""

from dataclasses import dataclass

import numpy as np

from bertrelay.encoder import SentenceEncoder
from bertrelay.stage import Metrics
from students.corpus import ParallelCorpus, Translations
from students.scores import Encoded, english_of, parallel_metrics
from students.targets import Targets

CRITERION = "dev/explained_variance"


@dataclass(frozen=True)
class DevData:
    """Held-out pairs by language, and what the teacher says of their English sentences.

    variance: of the training targets, the unit in which distances are told.
    """

    pairs: dict[str, Translations]
    teacher: Encoded
    variance: float


def dev_data(corpus: ParallelCorpus, teacher: SentenceEncoder, targets: Targets, precision: str) -> DevData:
    pairs = {language: sides for language, sides in corpus.dev.items() if sides.english}
    return DevData(pairs, Encoded.of(teacher, english_of(pairs), precision), targets.variance)


def dev_figures(student: SentenceEncoder, dev: DevData, precision: str) -> Metrics:
    """Translation accuracy and distances by language; 1 − the mean relative distance is what chooses the weights."""
    others = [sentence for sides in dev.pairs.values() for sentence in sides.other]
    vectors = Encoded.of(student, [*dev.teacher.rows, *others], precision)
    figures = parallel_metrics(dev.pairs, vectors, dev.teacher, dev.variance, intervals=False)
    distances = [value for name, value in figures.items() if name.startswith("mse_relative/") and value is not None]
    named = {f"dev/{name}": value for name, value in figures.items()}
    return {**named, CRITERION: 1 - float(np.mean(distances))}
