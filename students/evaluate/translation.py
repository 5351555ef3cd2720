"""Metrics on parallel sentences: translation accuracy by nearest neighbours, and distance to the teacher's vectors."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from bertrelay.data.vectors import Vectors
from bertrelay.device import ComputePrecision
from bertrelay.evaluation.encode import Encode, encoded_once
from bertrelay.evaluation.similarity import chance_of_own, is_among_nearest
from bertrelay.evaluation.statistics import share, with_interval
from bertrelay.files import read_json, write_json
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, map_over_processes
from bertrelay.settings import ModelSource
from bertrelay.stage import Metrics
from students.parallel.pairs import Translations
from students.parallel.settings import ENGLISH
from students.teacher import OpenedTeacher

VARIANCE = "distillation.json"
"""File beside the weights of a student."""


def encode_once(
    encoder: SentenceEncoder | OpenedTeacher,
    sentences: Sequence[str],
    precision: ComputePrecision,
    progress: bool = False,
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> Encode:
    """Encodes `sentences` once, for all metrics, and returns a function that looks their vectors up.

    Several processes each encode a part; all of them call it.
    """
    encode = partial(encoder.encode, precision=precision, show_progress_bar=progress)
    return encoded_once(lambda distinct: map_over_processes(encode, distinct, process_group), sentences)


def english_of(pairs: Mapping[str, Translations]) -> list[str]:
    """The distinct English sentences of all languages' pairs, in order of appearance."""
    return list(dict.fromkeys(sentence for translations in pairs.values() for sentence in translations.english))


def parallel_metrics(
    pairs: Mapping[str, Translations],
    student: Encode,
    teacher: Encode | None,
    variance: float | None,
    *,
    with_intervals: bool = False,
    own_vectors: bool = False,
) -> Metrics:
    """Translation accuracy of every language and, with a teacher, the distances to its vectors.

    variance: of the training targets, the unit of relative distances; without it these are left out.
    own_vectors: the distance of a translation is to the teacher's vector of itself, not to that of its English.
    """
    metrics: Metrics = {}
    for language, sentences in pairs.items():
        vectors = student(sentences.english), student(sentences.other)
        metrics |= translation_metrics(language, vectors, with_intervals=with_intervals)
    if teacher is None or not pairs:
        return metrics
    english = english_of(pairs)
    metrics |= mse_metrics(ENGLISH, student(english), teacher(english), variance)
    for language, sentences in pairs.items():
        encoded_by_teacher = sentences.other if own_vectors else sentences.english
        metrics |= mse_metrics(language, student(sentences.other), teacher(encoded_by_teacher), variance)
    return metrics


def translation_metrics(
    language: str,
    vectors: tuple[Vectors, Vectors],
    name: str = "translation_accuracy",
    *,
    with_intervals: bool = False,
    drawn_from: Translations | None = None,
) -> Metrics:
    """Translation accuracy in both directions: the fraction of sentences whose nearest one, by cosine, translates them.

    vectors: of the English and of the other sentences, (sentences, dim) each. Among equal ones any is right: of a
        repeated sentence, as in sentence-transformers' TranslationEvaluator, and of two that the model does not
        distinguish.
    drawn_from: the sentences. One of equal vectors is then drawn and has to be right, because a model that ignores the
        order of words would else be right with all sentences of the same words.
    """
    metrics: Metrics = {}
    english, other = vectors
    texts = drawn_from or (None, None)
    directions = {
        f"{ENGLISH}-{language}": (english, other, texts[1]),
        f"{language}-{ENGLISH}": (other, english, texts[0]),
    }
    for direction, (source, target, sentences) in directions.items():
        if sentences is None:
            hits = is_among_nearest(source, target).astype(np.float64)
        else:
            copies = Counter(sentences)
            hits = chance_of_own(source, target, np.array([copies[text] for text in sentences]))
        metrics[f"{name}/{direction}"] = share(hits)
        if with_intervals:
            metrics |= with_interval(f"{name}/{direction}", share, hits)
    return metrics


def mse_metrics(language: str, student: Vectors, teacher: Vectors, variance: float | None) -> Metrics:
    """`mse/<language>`, the mean over sentences and dimensions, and `mse_relative/<language>` in units of `variance`.

    sentence-transformers reports the former times −100. Without `variance` the latter is left out, and both are where
    the vectors differ in size.
    """
    if student.shape != teacher.shape:
        return {}
    raw = float(np.mean((student.astype(np.float64) - teacher) ** 2))
    relative = {} if variance is None else {f"mse_relative/{language}": raw * teacher.shape[1] / variance}
    return {f"mse/{language}": raw, **relative}


def save_variance(variance: float, model_folder: Path) -> None:
    """Writes the unit of a student's relative distances to its folder."""
    write_json(model_folder / VARIANCE, {"target_variance": variance})


def read_variance(model: ModelSource) -> float | None:
    """The unit of the relative distances of a model trained here; None for any other."""
    saved = read_json(model.folder / VARIANCE) if model.folder else None
    return float(saved["target_variance"]) if saved else None
