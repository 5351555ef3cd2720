"""Semantic textual similarity: Spearman's rank correlation of the vectors' cosine with the gold scores."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress
from typing import Self, cast

import numpy as np
from numpy.typing import NDArray

from bertrelay.cache import Cache
from bertrelay.data.records import Rejects, aligned_rows, read
from bertrelay.data.tables import Record, Rejected, Table
from bertrelay.errors import RequestError
from bertrelay.evaluation.encode import Encode, encoded_once
from bertrelay.evaluation.similarity import pairwise
from bertrelay.evaluation.statistics import Floats, spearman, with_interval
from bertrelay.settings import Metric
from bertrelay.stage import Metrics, StageContext
from teachers.data import SCORED_PAIRS, parse_score, usable, values_of
from teachers.settings import StsTable

ScoredPair = tuple[str, str, float]
ScoredPart = tuple[Sequence[ScoredPair], int]
"""The pairs of a subset or topic with their gold scores, and the number of its pairs without one."""


@dataclass(frozen=True)
class StsPairs:
    """Pairs of sentences and their gold scores, (pairs,), on any scale.

    part: the subset or topic of each pair, by its position in `without_gold`, (pairs,).
    without_gold: by the name of a part, the number of its pairs that are left out because nobody has scored them. The
        only part of a set is named "".
    """

    first: list[str]
    second: list[str]
    scores: NDArray[np.float64]
    part: NDArray[np.int64]
    without_gold: dict[str, int]

    @classmethod
    def of(cls, parts: Mapping[str, ScoredPart]) -> Self:
        """Joins the pairs of all `parts`, one part after the other."""
        first, second, scores = zip(*chain.from_iterable(rows for rows, _ in parts.values()), strict=True)
        part = np.repeat(np.arange(len(parts)), [len(rows) for rows, _ in parts.values()])
        without_gold = {name: unscored for name, (_, unscored) in parts.items()}
        return cls(list(first), list(second), np.array(scores), part, without_gold)

    def where(self, chosen: NDArray[np.bool_]) -> Self:
        """Selects pairs. chosen: (pairs,)."""
        first, second = (list(compress(sentences, chosen)) for sentences in (self.first, self.second))
        return replace(self, first=first, second=second, scores=self.scores[chosen], part=self.part[chosen])

    def by_part(self) -> dict[str, Self]:
        """The pairs of each part, by its name."""
        return {name: self.where(self.part == number) for number, name in enumerate(self.without_gold)}

    @property
    def sentences(self) -> list[str]:
        """All first sentences, then all second ones."""
        return [*self.first, *self.second]

    def sentence_pairs(self) -> Iterator[tuple[str, str]]:
        return zip(self.first, self.second, strict=True)

    def rows(self) -> Iterator[ScoredPair]:
        """Each pair and its score."""
        return zip(self.first, self.second, self.scores.tolist(), strict=True)

    def similarities(self, encode: Encode, metrics: Sequence[Metric] = ("cosine",)) -> dict[str, Floats]:
        """Computes the similarities of the pairs, (pairs,), by each of `metrics`; distances are negative."""
        u, v = np.split(encode(self.sentences), 2)  # (pairs, dim)
        return {metric: pairwise(u, v, metric) for metric in metrics}


def read_sts(table: StsTable, context: StageContext, rejects: Rejects) -> StsPairs:
    """Reads the pairs of `table`; rows that cannot be used go to `rejects`. Raises RequestError for no pair."""
    records = _records(table, SCORED_PAIRS.columns, context.cache, rejects)
    scored = list(usable(records, _pair, rejects))
    if not scored:
        names = [table.name, str(table.second)]
        chosen = "".join(f" where {column} is {value}" for column, value in (table.where or {}).items())
        raise RequestError(
            f"{table.name}: expected pairs with a score{chosen}, found none that can be used: {rejects.summary(names)}"
        )
    pairs = StsPairs.of({"": (scored, 0)})
    return replace(pairs, scores=-pairs.scores) if table.reversed else pairs


def _records(table: StsTable, columns: Sequence[str | int], cache: Cache | None, rejects: Rejects) -> Iterator[Record]:
    """Yields rows of sentence, sentence, score, from whichever files `table` names."""
    if table.second is not None:
        for row, aligned in aligned_records(table, second_table(table), columns, cache, rejects):
            (first, _, score), (_, second, _) = values_of(row, "STS", columns), values_of(aligned, "STS", columns)
            yield row._replace(values=(first, second, score))
    elif table.scores is not None:
        scores = Table(path=table.scores, format="lines", columns=[0])
        for row, aligned in aligned_records(table, scores, columns[:2], cache, rejects):
            yield row._replace(values=(*values_of(row, "STS with a file of scores", columns[:2]), *aligned.values))
    elif table.where:
        wide, selected = [*(table.columns or columns), *table.where], [*map(str, table.where.values())]
        for row in read(table.model_copy(update={"columns": wide}), columns, cache, rejects):
            if [*map(str, row.values[-len(selected) :])] == selected:
                yield row._replace(values=row.values[: -len(selected)])
    else:
        yield from read(table, columns, cache, rejects)


def second_table(table: StsTable) -> Table:
    """Returns the table of the second sentences, which differs only in its file."""
    return table.model_copy(update={"path": table.second, "hub": None, "config": None, "second": None})


def aligned_records(
    first: Table, second: Table, columns: Sequence[str | int], cache: Cache | None, rejects: Rejects
) -> Iterator[tuple[Record, Record]]:
    """Yields the rows of two tables in pairs; where one of a pair cannot be used, both are rejected."""
    for pair in aligned_rows(first, second, columns, cache):
        fault = next((row for row in pair if isinstance(row, Rejected)), None)
        if fault is not None:
            rejects.add(fault.file, fault.line, fault.reason)
        else:
            yield cast(tuple[Record, Record], pair)


def _pair(record: Record) -> ScoredPair:
    first, second, score = values_of(record, "STS", SCORED_PAIRS.columns)
    if not (isinstance(first, str) and isinstance(second, str)):
        raise ValueError("a sentence that is not text")
    return first, second, parse_score(score)


def sts_metrics(pairs: Mapping[str, StsPairs], encode: Encode, intervals: bool = True) -> Metrics:
    """Computes `sts/<name>/spearman_cosine` of each set, with its interval; encodes each distinct sentence once."""
    encode = encoded_once(encode, [sentence for part in pairs.values() for sentence in part.sentences])
    metrics: Metrics = {}
    for set_name, part in pairs.items():
        name, cosines = f"sts/{set_name}/spearman_cosine", part.similarities(encode)["cosine"]
        if intervals:
            metrics |= with_interval(name, spearman, cosines, part.scores)
        else:
            metrics[name] = spearman(cosines, part.scores)
    return metrics
