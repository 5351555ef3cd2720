"""Argument Facet Similarity (Misra et al. 2016): do two arguments about a topic make the same point?"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path

import numpy as np

from bertrelay.errors import RequestError
from bertrelay.similarity import pairwise
from bertrelay.stage import Metrics
from bertrelay.statistics import Floats
from teachers.evaluation.names import FIRST, SCORE, SECOND, TOPICS
from teachers.evaluation.official import OfficialFiles, read_lines
from teachers.evaluation.sts import Encode, StsPairs
from teachers.evaluation.sts_sets import correlations
from teachers.examples import parse_score


def read_topics(files: OfficialFiles) -> dict[str, StsPairs] | None:
    """The pairs of each topic, None when there is none of the files; pairs without a score are left out, as by others.

    Raises RequestError when a topic is missing, and for a file that is not in its official form.
    """
    found = {topic: files.find(name) for topic, name in TOPICS.items()}
    missing = [TOPICS[topic] for topic, path in found.items() if path is None]
    if len(missing) == len(found):
        return None
    if missing:
        raise RequestError(f"facets: expected the three topics, found no {', '.join(missing)} below {files.data}")
    return {topic: _pairs(path) for topic, path in found.items() if path}


def _pairs(path: Path) -> StsPairs:
    rows = [(line, row) for line, row in _rows(path) if row[SCORE].strip()]
    if not rows:
        raise RequestError(f"{path}: expected pairs with a score, found none")
    scores = np.array([_score(row[SCORE], path, line) for line, row in rows])
    return StsPairs([row[FIRST] for _, row in rows], [row[SECOND] for _, row in rows], scores)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of each record after the header."""
    reader = csv.reader(StringIO("\n".join(read_lines(path)), newline=""))
    next(reader)
    for row in reader:
        if len(row) <= SECOND:
            raise RequestError(
                f"{path}, line {reader.line_num:,}: expected a score in column {SCORE} and two arguments in columns "
                f"{FIRST} and {SECOND}, found {len(row)} columns"
            )
        yield reader.line_num, row


def _score(text: str, path: Path, line: int) -> float:
    try:
        return parse_score(text)
    except ValueError:
        raise RequestError(f"{path}, line {line:,}: expected a score in column {SCORE}, found no number") from None


def facet_metrics(topics: Mapping[str, StsPairs], encode: Encode) -> Metrics:
    """`facets/<topic>/<correlation>_cosine` without training, and their means over the topics."""
    metrics: Metrics = {}
    cosines = {topic: cosines_of(pairs, encode) for topic, pairs in topics.items()}
    for topic, pairs in topics.items():
        metrics |= correlations(f"facets/{topic}", {"cosine": cosines[topic]}, pairs.scores)
    return metrics | mean_over("facets/mean", list(cosines.values()), [pairs.scores for pairs in topics.values()])


def cosines_of(pairs: StsPairs, encode: Encode) -> Floats:
    """(pairs,)"""
    vectors = encode([*pairs.first, *pairs.second])
    found: Floats = pairwise(vectors[: len(pairs.first)], vectors[len(pairs.first) :])
    return found


def mean_over(name: str, cosines: Sequence[Floats], scores: Sequence[Floats]) -> Metrics:
    """The correlations as means over parts: topics or folds."""
    part_of = np.repeat(np.arange(len(scores)), [len(part) for part in scores])
    return correlations(name, {"cosine": np.concatenate(cosines)}, np.concatenate(scores), part_of)
