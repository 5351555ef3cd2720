"""Training examples of sentence encoders: pairs, triplets, or anchors with negatives, read from tables."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertrelay.cache import Cache
from bertrelay.data.records import MISSING_WORDS, Rejects, log_copies, read, rows
from bertrelay.data.sanity import check_labels, check_swapped, count_leaked, has_letter
from bertrelay.data.tables import ABSENT, Record, Table
from bertrelay.errors import RequestError
from bertrelay.progress import log, spinner
from bertrelay.stage import StageContext

MOST_CLASSES = 100
BLANK = "an empty sentence"
NO_GOLD_LABEL = {"", "-", "-1", *MISSING_WORDS}  # SNLI's mark of a pair on which annotators did not agree, and pandas'
LONGEST_LABEL = 60  # characters
FAR_BELOW = 0.2  # of the range of scores: the highest of one to 1 where it should be of one to 5
NEGATIVES = ["negative", *(f"negative_{number}" for number in range(1, 101))]
"""Columns of mined negatives: `negative` only, or as many numbered ones as a table has."""
Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class RowFormat:
    """The columns of a table of examples, and the example in one of its rows.

    name: of the examples, in errors.
    columns: names where a table does not name its columns itself: sentences, then the label if rows have one.
    label: the name of a class, a gold score, or None for rows of sentences only.
    has_negatives: further columns are negatives, `negative` or `negative_1`, `negative_2`, … by default.
    """

    name: str
    columns: tuple[str, ...]
    label: Literal["class", "score"] | None = None
    has_negatives: bool = False

    def columns_of(self, table: Table, cache: Cache | None) -> list[str | int]:
        """Returns the columns to read of `table`, those of its negatives included."""
        columns: list[str | int] = [*self.columns]
        if not self.has_negatives or table.columns or not table.header:
            return columns
        every = (
            row.values[len(columns) :] for row in rows(table, columns, cache, NEGATIVES) if isinstance(row, Record)
        )
        # Each record of JSONL may have columns of its own; elsewhere all have those of the first.
        records = every if table.file_format == "jsonl" else islice(every, 1)
        named = ({name for name, value in zip(NEGATIVES, row, strict=False) if value is not ABSENT} for row in records)
        present: set[str] = next(filter(None, named), set())
        numbered = takewhile(present.__contains__, NEGATIVES[1:])
        return [*columns, *(NEGATIVES[:1] if NEGATIVES[0] in present else numbered)]

    def parse(self, record: Record, score_range: Sequence[float]) -> tuple[list[str], Any]:
        """Returns the sentences and the label of a row: a class name, a score from 0 to 1, or None.

        score_range: the lowest and the highest gold score, which become 0 and 1.
        Raises ValueError with the reason for a row that cannot be used.
        """
        columns = [*self.columns]
        if self.has_negatives:
            columns += [f"negative {number}" for number in range(1, len(record.values) - len(columns) + 1)]
        values = values_of(record, f"training on {self.name}", columns)
        if self.label is None:
            return [_sentence(value) for value in values], None
        *texts, label = values
        sentences = [_sentence(text) for text in texts]
        return sentences, _class_name(label) if self.label == "class" else _fraction(label, score_range)


LABELLED_PAIRS = RowFormat("pairs with a class", ("premise", "hypothesis", "label"), "class")
SCORED_PAIRS = RowFormat("pairs with a score", ("sentence1", "sentence2", "score"), "score")
TRIPLETS = RowFormat("triplets", ("anchor", "positive", "negative"))
ANCHORS = RowFormat("anchors with positives", ("anchor", "positive"), has_negatives=True)


@dataclass(frozen=True)
class Examples:
    """Items of one row format.

    sentences: the distinct ones, in order of appearance.
    indices: positions in `sentences` of the sentences of an item, (items, 2) for pairs, (items, 3 or more) with
        negatives.
    labels: class names, scores from 0 to 1, or None for each item, (items,).
    """

    sentences: list[str]
    indices: NDArray[np.int64]
    labels: list[Any]


def pairs_of(examples: Examples) -> list[tuple[str, str]]:
    """Returns the first two sentences of each item."""
    return [
        (examples.sentences[first], examples.sentences[second]) for first, second in examples.indices[:, :2].tolist()
    ]


def log_shared_pairs(train: Examples, dev: Examples | None, sets: Mapping[str, Iterable[tuple[str, str]]]) -> None:
    """Logs how many pairs of `dev`, and of other `sets` by name, are in `train` too."""
    held_out = {**({"dev": pairs_of(dev)} if dev else {}), **sets}
    trained = pairs_of(train) if held_out else []
    for name, pairs in held_out.items():
        count_leaked(trained, pairs, name, "pairs")


@spinner("reading examples")
def read_examples(
    tables: Sequence[Table],
    row_format: RowFormat,
    context: StageContext,
    rejects: Rejects,
    score_range: Sequence[float] = (0, 5),
    max_swapped: float = 1.0,
) -> Examples:
    """Reads the distinct examples of `tables`; a row that cannot be used goes to `rejects` with its reason.

    score_range: the lowest and the highest gold score, which become 0 and 1.
    max_swapped: the fraction of examples whose columns may seem to be swapped. Raises RequestError for more.
    """
    sentence_ids: dict[str, int] = {}
    indices, labels = [], []
    for table in tables:
        records = read(table, row_format.columns_of(table, context.cache), context.cache, rejects)
        for sentences, label in usable(records, lambda record: row_format.parse(record, score_range), rejects):
            indices.append([sentence_ids.setdefault(sentence, len(sentence_ids)) for sentence in sentences])
            labels.append(label)
    names = [table.name for table in tables]
    read_from = ", ".join(names)
    indices, labels = _without_copies(indices, labels, read_from)
    if not indices:
        raise RequestError(
            f"expected {row_format.name}, found none that can be used in {read_from}: "
            f"{rejects.summary(names) or 'no records'}"
        )
    without_letter = {number for sentence, number in sentence_ids.items() if not has_letter(sentence)}
    count = sum(not without_letter.isdisjoint(item) for item in indices) if without_letter else 0
    check_swapped(read_from, count, len(indices), "have a sentence without a letter", max_swapped)
    if row_format.label == "class" and len(set(labels)) <= MOST_CLASSES:  # more are refused whatever their fraction
        check_labels(read_from, len(set(labels)), len(labels), max_swapped)
    if len(widths := sorted(set(map(len, indices)))) > 1:
        raise RequestError(
            f"expected tables of as many negatives each, found {' and '.join(map(str, widths))} columns of sentences"
        )
    if row_format.label == "score" and max(labels) <= FAR_BELOW and min(labels) < max(labels):
        low, high = score_range
        log(
            f"{read_from}: warning: no score is above {low + max(labels) * (high - low):g}, and score_range is "
            f"{list(score_range)}; if scores go from 0 to 1, set score_range = [0, 1]"
        )
    return Examples(list(sentence_ids), np.array(indices, dtype=np.int64), labels)


def _without_copies(indices: list[list[int]], labels: list[Any], name: str) -> tuple[list[list[int]], list[Any]]:
    """Drops all but the first of equal examples with one label; logs how many copies there are."""
    examples = dict.fromkeys((*item, label) for item, label in zip(indices, labels, strict=True))
    log_copies(len(indices) - len(examples), len(indices), f"examples of {name}", "with its label")
    return [list(example[:-1]) for example in examples], [example[-1] for example in examples]


def usable(records: Iterable[Record], parse: Callable[[Record], Parsed], rejects: Rejects) -> Iterator[Parsed]:
    """Yields `parse(record)` of each record; where it raises ValueError, the record goes to `rejects` instead."""
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


def values_of(record: Record, reader: str, columns: Sequence[str | int]) -> tuple[Any, ...]:
    """Returns the values of a record. Raises RequestError where a table names another number of columns."""
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


def _class_name(value: Any) -> str:
    name, as_number = str(value).strip(), number(value)
    if as_number is not None and as_number.is_integer():
        name = str(int(as_number))  # 1 and 1.0 are one class
    if name in NO_GOLD_LABEL:
        raise ValueError("no gold label")
    if len(name) > LONGEST_LABEL or (as_number is not None and not as_number.is_integer()):
        raise ValueError("a label that is no class: a number with a fraction, or a long text")
    return name


def _fraction(value: Any, score_range: Sequence[float]) -> float:
    """Returns the score as a fraction of its range, from 0 to 1."""
    score, (low, high) = parse_score(value), score_range
    if not low <= score <= high:
        raise ValueError(f"a score outside {low:g} … {high:g}")
    return (score - low) / (high - low)


def parse_score(value: Any) -> float:
    """Returns a gold score; raises ValueError with the reason for other than a finite number."""
    score = None if isinstance(value, bool) else number(value)  # true is no 1 of a scale
    if score is None:
        raise ValueError("a score that is not a number")
    return score


def number(value: Any) -> float | None:
    """Returns `value` as a finite number, or None."""
    try:
        converted = math.nan if isinstance(value, str) and "_" in value else float(value)  # 1_0 is Python's 10
    except (TypeError, ValueError):
        return None
    return converted if math.isfinite(converted) else None
