"""The dev score of a student: how much of the teacher's space it explains, and whether translations meet in it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertrelay.encoder import SentenceEncoder
from bertrelay.training import Figures
from students.corpus import ParallelCorpus, Translations
from students.scores import mse_metrics, translation_metrics
from students.sources import ENGLISH
from students.targets import Targets

CRITERION = "dev/explained_variance"


@dataclass(frozen=True)
class DevData:
    """Held-out pairs and what the teacher says of them.

    english: their distinct English sentences; teacher_vectors: the teacher's vectors of these, (sentences, dim).
    variance: of the training targets, the unit in which distances are told.
    """

    pairs: dict[str, Translations]
    english: list[str]
    teacher_vectors: NDArray[np.float32]
    variance: float


def dev_data(corpus: ParallelCorpus, teacher: SentenceEncoder, targets: Targets, precision: str) -> DevData:
    pairs = {language: sides for language, sides in corpus.dev.items() if sides.english}
    english = list(dict.fromkeys(sentence for sides in pairs.values() for sentence in sides.english))
    return DevData(pairs, english, teacher.encode(english, precision=precision), targets.variance)


def dev_figures(student: SentenceEncoder, dev: DevData, precision: str) -> Figures:
    """Translation accuracy and distances by language; 1 − the mean relative distance is what chooses the weights."""
    row = {sentence: index for index, sentence in enumerate(dev.english)}
    others = [sentence for sides in dev.pairs.values() for sentence in sides.other]
    vectors = student.encode([*dev.english, *others], precision=precision)  # one encoding serves all figures
    english, other = vectors[: len(dev.english)], vectors[len(dev.english) :]
    figures: Figures = dict(mse_metrics(ENGLISH, english, dev.teacher_vectors, dev.variance))
    start = 0
    for language, sides in dev.pairs.items():
        rows = np.array([row[sentence] for sentence in sides.english])
        translations = other[start : start + len(rows)]
        figures |= translation_metrics(language, english[rows], translations, intervals=False)
        figures |= mse_metrics(language, translations, dev.teacher_vectors[rows], dev.variance)
        start += len(rows)
    distances = [value for name, value in figures.items() if name.startswith("mse_relative/") and value is not None]
    named = {f"dev/{name}": value for name, value in figures.items()}
    return {**named, CRITERION: 1 - float(np.mean(distances))}
