"""Spread of vectors: a model that has collapsed gives all sentences nearly the same vector, or uses few dimensions."""

from collections.abc import Mapping

import numpy as np

from bertrelay.data.vectors import Vectors
from bertrelay.evaluation.encode import Encode
from bertrelay.evaluation.similarity import unit
from bertrelay.stage import Metrics
from students.evaluate.translation import english_of
from students.parallel.pairs import Translations
from students.parallel.settings import ENGLISH


def spread(vectors: Vectors) -> Metrics:
    """Measures the spread of `vectors` (n, dim) of different sentences by their directions.

    `cosine`: the mean cosine of two of them. From unit vectors u, (|Σu|² − n) / (n(n − 1)).
    `dimensions`: the number of dimensions that they use evenly, the participation ratio (Σλ)² / Σλ² of the eigenvalues
        λ of their covariance: 1 of points on a line.
    Both are None where they are not defined.
    """
    directions = unit(vectors).astype(np.float64)  # (n, dim)
    count, total = len(directions), directions.sum(axis=0)
    if count < 2:
        return {"cosine": None, "dimensions": None}
    centred = directions - total / count
    small = centred.T @ centred if count > centred.shape[1] else centred @ centred.T  # both have these eigenvalues
    squares = float((small**2).sum())
    dimensions = float(np.trace(small)) ** 2 / squares if squares > 0 else None
    return {"cosine": float(total @ total - count) / (count * (count - 1)), "dimensions": dimensions}


def spread_metrics(pairs: Mapping[str, Translations], student: Encode, teacher: Encode | None) -> Metrics:
    """`spread/<measure>/<language>` of the student's vectors by language, and as `teacher` the teacher's of English."""
    if not pairs:
        return {}
    english = english_of(pairs)
    vectors = {ENGLISH: student(english)}
    vectors |= {language: student(list(dict.fromkeys(texts.other))) for language, texts in pairs.items()}
    if teacher is not None:
        vectors["teacher"] = teacher(english)
    return {
        f"spread/{measure}/{name}": value for name, rows in vectors.items() for measure, value in spread(rows).items()
    }
