"""Argument Facet Similarity (Misra et al. 2016): do two arguments about a topic make the same point?"""

import csv
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import pairwise
from bertrelay.evaluation.statistics import Floats
from bertrelay.progress import log
from bertrelay.stage import Metrics
from teachers.evaluation.names import ARGUMENT_COLUMNS, TOPICS
from teachers.evaluation.official import OfficialFiles, gold_score, read_lines
from teachers.evaluation.sts import Encode, StsPairs
from teachers.evaluation.sts_sets import StsSet, correlations
from teachers.examples import is_number


def read_topics(files: OfficialFiles) -> StsSet | None:
    """The pairs of each topic, None when there is none of the files; pairs without a score are left out, and counted.

    Raises RequestError when a topic is missing, and for a file that is not in its official form.
    """
    found = {topic: files.find(name) for topic, name in TOPICS.items()}
    missing = [TOPICS[topic] for topic, path in found.items() if path is None]
    if len(missing) == len(found):
        return None
    if missing:
        raise RequestError(f"facets: expected the three topics, found no {', '.join(missing)} below {files.data}")
    read = {topic: _pairs(path) for topic, path in found.items() if path}
    return StsSet(
        {topic: pairs for topic, (pairs, _) in read.items()}, {topic: missing for topic, (_, missing) in read.items()}
    )


def _pairs(path: Path) -> tuple[StsPairs, int]:
    """The pairs that have a score, and how many have none."""
    rows = list(_rows(path))
    scored = [row for row in rows if row.score.strip()]
    if not scored:
        raise RequestError(f"{path}: expected pairs with a score, found none")
    scores = np.array([gold_score(row.score, path, row.line) for row in scored])
    if missing := len(rows) - len(scored):
        log(f"{path}: left out {missing:,} of {len(rows):,} pairs, which nobody has scored")
    return StsPairs([row.first for row in scored], [row.second for row in scored], scores), missing


class _Row(NamedTuple):
    line: int
    score: str
    first: str
    second: str


def _rows(path: Path) -> Iterator[_Row]:
    """Each record after the header."""
    reader = csv.reader(StringIO("\n".join(read_lines(path)), newline=""))
    columns = _columns(path, next(reader))
    for fields in reader:
        line = reader.line_num
        if len(fields) <= max(columns):
            score, first, second = columns
            raise RequestError(
                f"{path}, line {line:,}: expected a score in column {score} and two arguments in columns {first} and "
                f"{second}, counted from 0, found {len(fields)} columns"
            )
        row = _Row(line, *(fields[column] for column in columns))
        if not row.first.strip() or not row.second.strip():
            raise RequestError(
                f"{path}, line {line:,}: expected two arguments, found an empty one. Copy the file again."
            )
        yield row


def _columns(path: Path, header: list[str]) -> list[int]:
    """Where score and arguments stand: by their names, or, where the header has none of these, as in the files."""
    unknown = [name for name in ARGUMENT_COLUMNS if name not in header]
    columns = list(ARGUMENT_COLUMNS.values())
    if not unknown:
        return [header.index(name) for name in ARGUMENT_COLUMNS]
    if len(header) <= max(columns) or not header[columns[0]].strip() or is_number(header[columns[0]]):
        raise RequestError(
            f"{path}, line 1: expected a header with {', '.join(ARGUMENT_COLUMNS)} among its {max(columns) + 1} names "
            f"or more, found a pair or another header of {len(header)}"
        )
    if len(unknown) < len(ARGUMENT_COLUMNS):
        raise RequestError(
            f"{path}, line 1: expected a header with {', '.join(ARGUMENT_COLUMNS)}, found no {unknown[0]}"
        )
    return columns


def facet_metrics(topics: StsSet, encode: Encode) -> Metrics:
    """`facets/<topic>/<correlation>_cosine` without training, and their means over the topics."""
    metrics = without_gold(topics)
    cosines = {topic: cosines_of(pairs, encode) for topic, pairs in topics.subsets.items()}
    for topic, pairs in topics.subsets.items():
        metrics |= correlations(f"facets/{topic}", {"cosine": cosines[topic]}, pairs.scores)
    scores = [pairs.scores for pairs in topics.subsets.values()]
    return metrics | mean_over("facets/mean", list(cosines.values()), scores)


def without_gold(topics: StsSet) -> Metrics:
    """`without_gold/AFS/<topic>`: the pairs that nobody has scored."""
    return {f"without_gold/AFS/{topic}": count for topic, count in topics.without_gold.items()}


def cosines_of(pairs: StsPairs, encode: Encode) -> Floats:
    """(pairs,)"""
    vectors = encode([*pairs.first, *pairs.second])
    found: Floats = pairwise(vectors[: len(pairs.first)], vectors[len(pairs.first) :])
    return found


def mean_over(name: str, found: Sequence[Floats], scores: Sequence[Floats], measure: str = "cosine") -> Metrics:
    """The correlations of what was found with the gold scores, as means over parts: topics or folds."""
    part_of = np.repeat(np.arange(len(scores)), [len(part) for part in scores])
    return correlations(name, {measure: np.concatenate(found)}, np.concatenate(scores), part_of)
