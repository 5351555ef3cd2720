"""Training examples of a teacher: pairs or triplets of sentences, each distinct sentence once, and their labels."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertrelay.cache import Cache
from bertrelay.data.records import MISSING_WORDS, Rejects, log_copies, read, rows
from bertrelay.data.sanity import check_labels, check_swapped, count_leaked, has_letter
from bertrelay.data.tables import ABSENT, Record, Table
from bertrelay.errors import RequestError
from bertrelay.progress import log, spinner
from bertrelay.stage import StageContext
from teachers.settings import COLUMNS, SCORED, Objective

MOST_CLASSES = 100
BLANK = "an empty sentence"
NO_GOLD_LABEL = {"", "-", "-1", *MISSING_WORDS}  # SNLI's mark of a pair on which annotators did not agree, and pandas'
LONGEST_LABEL = 60  # characters
FAR_BELOW = 0.2  # of the range of scores: the highest of one to 1 where it should be of one to 5
NEGATIVES = ["negative", *(f"negative_{number}" for number in range(1, 101))]
"""Columns of mined negatives: one alone, or numbered ones as far as a table has them."""
Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class Examples:
    """Items of one kind.

    sentences: the distinct ones, in order of appearance.
    indices: which sentences an item consists of, (items, 2) for pairs, (items, 3 or more) with negatives.
    labels: class names, scores from 0 to 1, or nothing where there are none, (items,).
    """

    sentences: list[str]
    indices: NDArray[np.int64]
    labels: list[Any]


def pairs_of(examples: Examples) -> list[tuple[str, str]]:
    """The first two sentences of each item."""
    return [
        (examples.sentences[first], examples.sentences[second]) for first, second in examples.indices[:, :2].tolist()
    ]


def log_shared_pairs(train: Examples, dev: Examples | None, sets: Mapping[str, Iterable[tuple[str, str]]]) -> None:
    """Logs how many pairs of `dev`, and of other `sets` by name, are in `train` too."""
    held_out = {**({"dev": pairs_of(dev)} if dev else {}), **sets}
    known = pairs_of(train) if held_out else []
    for name, pairs in held_out.items():
        count_leaked(known, pairs, name, "pairs")


@spinner("reading examples")
def read_examples(
    tables: Sequence[Table],
    objective: Objective,
    context: StageContext,
    rejects: Rejects,
    score_range: Sequence[float] = (0, 5),
    max_swapped: float = 1.0,
) -> Examples:
    """The examples of `tables`; what cannot be used goes to `rejects` with its reason.

    score_range: the lowest and highest gold score, which become 0 and 1.
    max_swapped: the share of them whose columns may seem to be swapped. Raises RequestError for more.
    """
    sentence_ids: dict[str, int] = {}
    indices, labels = [], []
    for table in tables:
        records = read(table, _columns(table, objective, context.cache), context.cache, rejects)
        for sentences, label in usable(records, lambda record: _example(record, objective, score_range), rejects):
            indices.append([sentence_ids.setdefault(sentence, len(sentence_ids)) for sentence in sentences])
            labels.append(label)
    indices, labels = _without_copies(indices, labels, ", ".join(table.name for table in tables))
    if not indices:
        names = [table.name for table in tables]
        raise RequestError(
            f"expected examples for the {objective} objective, found none that can be used in "
            f"{', '.join(names)}: {rejects.summary(names) or 'no records'}"
        )
    read_from = ", ".join(table.name for table in tables)
    without = {number for sentence, number in sentence_ids.items() if not has_letter(sentence)}
    count = sum(not without.isdisjoint(each) for each in indices) if without else 0
    check_swapped(read_from, count, len(indices), "have a sentence without a letter", max_swapped)
    if objective == "softmax" and len(set(labels)) <= MOST_CLASSES:  # more are refused whatever their share
        check_labels(read_from, len(set(labels)), len(labels), max_swapped)
    if len(widths := sorted(set(map(len, indices)))) > 1:
        raise RequestError(
            f"expected tables of as many negatives each, found {' and '.join(map(str, widths))} columns of sentences"
        )
    if objective in SCORED and max(labels) <= FAR_BELOW and min(labels) < max(labels):
        low, high = score_range
        log(
            f"{', '.join(table.name for table in tables)}: warning: no score is above "
            f"{low + max(labels) * (high - low):g}, and score_range is {list(score_range)}; if scores go from 0 to 1, "
            "set score_range = [0, 1]"
        )
    return Examples(list(sentence_ids), np.array(indices, dtype=np.int64), labels)


def _without_copies(indices: list[list[int]], labels: list[Any], name: str) -> tuple[list[list[int]], list[Any]]:
    """The examples, of equal ones with one label the first alone; logs how many copies there are."""
    examples = dict.fromkeys((*each, label) for each, label in zip(indices, labels, strict=True))
    log_copies(len(indices) - len(examples), len(indices), f"examples of {name}", "with its label")
    return [list(each[:-1]) for each in examples], [each[-1] for each in examples]


def _columns(table: Table, objective: Objective, cache: Cache | None) -> list[str | int]:
    """The columns that `objective` reads by default: of a contrastive one those of negatives too that `table` has."""
    columns = COLUMNS[objective]
    if objective != "contrastive" or table.columns or not table.header:
        return columns
    every = (row.values[len(columns) :] for row in rows(table, columns, cache, NEGATIVES) if isinstance(row, Record))
    # Each record of JSONL may have columns of its own; elsewhere all have those of the first.
    found = every if table.file_format == "jsonl" else islice(every, 1)
    named = ({name for name, value in zip(NEGATIVES, row, strict=False) if value is not ABSENT} for row in found)
    has: set[str] = next(filter(None, named), set())
    numbered = takewhile(has.__contains__, NEGATIVES[1:])
    return [*columns, *(NEGATIVES[:1] if NEGATIVES[0] in has else numbered)]


def usable(records: Iterable[Record], parse: Callable[[Record], Parsed], rejects: Rejects) -> Iterator[Parsed]:
    """What `parse` makes of each record; those of which it raises ValueError go to `rejects` with that reason."""
    for record in records:
        try:
            parsed = parse(record)
        except RequestError:
            raise
        except ValueError as error:
            rejects.add(record.file, record.line, str(error))
        else:
            rejects.used()
            yield parsed


def _example(record: Record, objective: Objective, score_range: Sequence[float]) -> tuple[list[str], Any]:
    columns = COLUMNS[objective]
    if objective == "contrastive":
        columns = [*columns, *(f"negative {number}" for number in range(1, len(record.values) - 1))]
    values = values_of(record, f"the {objective} objective", columns)
    if objective in ("triplet", "contrastive"):
        return [_sentence(value) for value in values], None
    sentences = [_sentence(value) for value in values[:2]]
    if objective == "softmax":
        name, value = str(values[2]).strip(), number(values[2])
        if value is not None and value.is_integer():
            name = str(int(value))  # 1 and 1.0 are one class
        if name in NO_GOLD_LABEL:
            raise ValueError("no gold label")
        if len(name) > LONGEST_LABEL or (value is not None and not value.is_integer()):
            raise ValueError("a label that is no class: a number with a fraction, or a long text")
        return sentences, name
    score, (low, high) = parse_score(values[2]), score_range
    if not low <= score <= high:
        raise ValueError(f"a score outside {low:g} … {high:g}")
    return sentences, (score - low) / (high - low)


def values_of(record: Record, reader: str, columns: Sequence[str | int]) -> tuple[Any, ...]:
    """The values of a record. Raises RequestError where a table names another number of columns."""
    if len(record.values) != len(columns):
        raise RequestError(
            f"{record.file}: {reader} reads {len(columns)} columns ({', '.join(map(str, columns))}), "
            f"found {len(record.values)} in `columns`"
        )
    return record.values


def _sentence(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a sentence that is not text")
    if not value.strip():
        raise ValueError(BLANK)
    return value


def parse_score(value: Any) -> float:
    """A gold score; raises ValueError with the reason where it is no finite number."""
    score = None if isinstance(value, bool) else number(value)  # true is no 1 of a scale
    if score is None:
        raise ValueError("a score that is not a number")
    return score


def number(value: Any) -> float | None:
    """`value` as a finite number, None where it is none."""
    try:
        found = math.nan if isinstance(value, str) and "_" in value else float(value)  # 1_0 is Python's 10
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None
