"""Training examples of a teacher: pairs or triplets of sentences, each distinct sentence once, and their labels."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.records import Rejects, read
from bertrelay.data.tables import Record, Table
from bertrelay.errors import RequestError
from bertrelay.stage import StageContext
from teachers.settings import COLUMNS, TrainSettings

BLANK = "an empty sentence"
NO_GOLD_LABEL = {"", "-", "-1"}  # how SNLI marks a pair on which the annotators did not agree


@dataclass(frozen=True)
class Examples:
    """Items of one kind.

    sentences: the distinct ones, in order of appearance.
    indices: which sentences an item consists of, (items, 2) for pairs or (items, 3) for triplets.
    labels: class names, scores from 0 to 1, or nothing for triplets, (items,).
    """

    sentences: list[str]
    indices: NDArray[np.int64]
    labels: list[Any]


def read_examples(tables: list[Table], settings: TrainSettings, context: StageContext, rejects: Rejects) -> Examples:
    """The examples of `tables`; what cannot be used goes to `rejects` with its reason."""
    sentence_ids: dict[str, int] = {}
    indices, labels = [], []
    for sentences, label in _usable(tables, settings, context, rejects):
        indices.append([sentence_ids.setdefault(sentence, len(sentence_ids)) for sentence in sentences])
        labels.append(label)
    if not indices:
        names = [table.name for table in tables]
        raise RequestError(
            f"expected examples for the {settings.objective} objective, found none that can be used in "
            f"{', '.join(names)}: {rejects.summary(names) or 'no records'}"
        )
    return Examples(list(sentence_ids), np.array(indices, dtype=np.int64), labels)


def _usable(
    tables: list[Table], settings: TrainSettings, context: StageContext, rejects: Rejects
) -> Iterator[tuple[list[str], Any]]:
    for table in tables:
        for record in read(table, COLUMNS[settings.objective], context.cache, rejects):
            try:
                example = _example(record, settings)
            except ValueError as error:
                rejects.add(record.file, record.line, str(error))
            else:
                rejects.used()
                yield example


def _example(record: Record, settings: TrainSettings) -> tuple[list[str], Any]:
    """Sentences and label of a record; raises ValueError with the reason when there are none to be had."""
    columns = len(COLUMNS[settings.objective])
    if len(record.values) != columns:
        raise RequestError(
            f"{record.file}: the {settings.objective} objective reads {columns} columns "
            f"({', '.join(map(str, COLUMNS[settings.objective]))}), found {len(record.values)} in `columns`"
        )
    if settings.objective == "triplet":
        return [_sentence(value) for value in record.values], None
    *sentences, label = record.values
    read_label = _class_name if settings.objective == "softmax" else _unit_score
    return [_sentence(value) for value in sentences], read_label(label, settings)


def _sentence(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a sentence that is not text")
    if not value.strip():
        raise ValueError(BLANK)
    return value


def _class_name(value: Any, settings: TrainSettings) -> str:  # noqa: ARG001 (the shape of _unit_score)
    name = str(value).strip()
    if name in NO_GOLD_LABEL:
        raise ValueError("no gold label")
    return name


def _unit_score(value: Any, settings: TrainSettings) -> float:
    low, high = settings.score_range
    score = parse_score(value)
    if not low <= score <= high:
        raise ValueError(f"a score outside {low:g} … {high:g}")
    return (score - low) / (high - low)


def parse_score(value: Any) -> float:
    """A gold score as a number; raises ValueError with the reason otherwise."""
    try:
        score = float(value)
    except (TypeError, ValueError):
        raise ValueError("a score that is not a number") from None
    if not math.isfinite(score):
        raise ValueError("a score that is not a number")
    return score


def is_number(text: str) -> bool:
    """Whether `text` is that of a finite number."""
    try:
        parse_score(text)
    except ValueError:
        return False
    return True
