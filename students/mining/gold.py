"""True pairs of a gold file, and the quality of mined pairs by them: threshold, precision, recall and F1."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertrelay.cache import Cache
from bertrelay.data.arrow import Mask
from bertrelay.data.records import canonical_id, read, rows
from bertrelay.data.tables import Record, Table
from bertrelay.errors import RequestError
from bertrelay.evaluation.statistics import with_interval
from students.mining.knn import Scores
from students.mining.pairs import Pairs
from students.mining.sentence_files import SentenceFile
from students.searching.equal_vectors import Rows

LINES = ("source_line", "target_line")
IDS = ("source_id", "target_id")
FILES = ("source", "target")


def read_gold(
    table: Table,
    source: SentenceFile,
    target: SentenceFile,
    cache: Cache | None = None,
    ids: tuple[Table, Table] | None = None,
) -> NDArray[np.int64]:
    """Reads the true pairs, each once, as source row × targets + target row.

    They are lines in the columns `source_line` and `target_line`, or `source` and `target`, else in the first two.

    ids: tables of the identifiers of source and target. The pairs are then identifiers, in the columns `source_id` and
        `target_id`, or `source` and `target`, else in the first two.
    Raises RequestError, with file and line, for a value that is no line number, for a line without a sentence, and for
    an identifier that no sentence has.
    """
    files, names = (source, target), IDS if ids else LINES
    records = list(read(_recognise_header(table, names), names, cache))
    if len(records[0].values) != len(names):
        raise RequestError(f"{table.name}: expected two columns of true pairs, found {len(records[0].values)} named")
    values = [[(_identifier if ids else _text)(record, column) for column in range(len(files))] for record in records]
    line_of: list[Callable[[str], int | None]] = [_line_number, _line_number]
    if ids:
        listed = map(set, zip(*values, strict=True))
        line_of = [_lines_by_id(ids_table, in_gold, cache).get for ids_table, in_gold in zip(ids, listed, strict=True)]
    pairs = set()
    for record, texts in zip(records, values, strict=True):
        pair = []
        for text, find_line, sentences in zip(texts, line_of, files, strict=True):
            line = find_line(text)
            row = None if line is None else sentences.row_at(line)
            if row is None:
                expected = _expected_instead(line, sentences, bool(ids))
                raise RequestError(f"{record.file}, line {record.line:,}: expected {expected}")
            pair.append(row)
        pairs.add(pair[0] * len(target) + pair[1])
    return np.array(sorted(pairs), np.int64)


def _text(record: Record, column: int) -> str:
    return str(record.values[column])


def _identifier(record: Record, column: int) -> str:
    """Brings an identifier to its canonical form. Raises RequestError for a rounded one."""
    try:
        return canonical_id(record.values[column])
    except ValueError as error:
        raise RequestError(f"{record.file}, line {record.line:,}: expected identifiers, found {error}") from None


def _line_number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _lines_by_id(table: Table, in_gold: set[str], cache: Cache | None) -> dict[str, int]:
    """Finds the lines of the sentences with the identifiers `in_gold`, which are the first column of `table`.

    Raises RequestError for an identifier of several sentences.
    """
    lines: dict[str, int] = {}
    for row in rows(table, (), cache):
        if isinstance(row, Record) and (name := _identifier(row, 0)) in in_gold:
            if name in lines:
                raise RequestError(
                    f"{row.file}, line {row.line:,}: expected each identifier once, found that of line "
                    f"{lines[name]:,} again; make them different, or name pairs by lines"
                )
            lines[name] = row.line
    return lines


def _expected_instead(line: int | None, sentences: SentenceFile, by_id: bool) -> str:
    """Words the error for a true pair without a sentence, after "expected"."""
    if by_id:
        return f"the identifiers of two sentences, found one that no sentence of {sentences.name} has"
    if line is None:
        return "the numbers of two lines, found something else"
    return (
        f"the line of a sentence in {sentences.name}, found {line:,}, where there is none. Lines count from 1, a "
        "header included; blank ones are no sentences"
    )


def _recognise_header(table: Table, names: tuple[str, str]) -> Table:
    """Returns `table` without a header if its first row is a pair already, and with columns if they are named FILES."""
    if table.path is None or table.file_format not in ("csv", "tsv", "lines") or not table.header:
        return table
    as_rows = table.model_copy(update={"header": False, "format": "csv" if table.file_format == "csv" else "tsv"})
    first = next(read(as_rows, [0, 1])).values
    by_name = {str(value).strip().casefold(): value for value in first}
    if table.columns is None and by_name.keys() == set(FILES):
        return table.model_copy(update={"columns": [by_name[name] for name in FILES]})
    is_pair = names == LINES and all(str(value).isdecimal() for value in first)
    return as_rows if is_pair or (names == IDS and set(first) != set(IDS)) else table


class Quality(NamedTuple):
    """Agreement of the pairs with a score of at least `threshold` with the true ones."""

    f1: float
    precision: float | None
    recall: float
    threshold: float


class Comparison(NamedTuple):
    """Mined pairs compared with the true ones.

    is_true: of each mined pair, (pairs,). true, mined: the number of the source's vector of each true and mined pair.
    """

    is_true: Mask
    true: Rows
    mined: Rows


def compare_with_gold(pairs: Pairs, true_pairs: Rows, sources: Rows, targets: Rows) -> Comparison:
    """Compares mined pairs with the true ones, source row × targets + target row.

    sources, targets: the number of the vector of each row. A model does not distinguish pairs of rows with the same
        vectors: at most as many are counted correct as gold lists, whichever they are.

    Example: targets 1 and 2, "Hello" and "hello" of an uncased model, have vector 1. Gold has (0, 2), mined is (0, 1):
    both are the pair of vectors (0, 1), so the mined one is true. A second mined pair of these vectors would not be.
    """
    true_sources, true_targets = np.divmod(true_pairs, len(targets))
    true = sources[true_sources] * len(targets) + targets[true_targets]
    mined = sources[pairs.sources] * len(targets) + targets[pairs.targets]
    in_gold, counts = np.unique(true, return_counts=True)
    order = np.argsort(mined, kind="stable")
    earlier = np.empty(len(mined), np.int64)  # mined pairs of the same vectors with a better score
    earlier[order] = np.arange(len(mined)) - np.searchsorted(mined[order], mined[order])
    position = np.searchsorted(in_gold, mined).clip(max=max(len(in_gold) - 1, 0))
    is_true = np.zeros(len(mined), bool)
    if len(in_gold):
        is_true = (earlier < counts[position]) & (in_gold[position] == mined)
    return Comparison(is_true, sources[true_sources], sources[pairs.sources])


def best_quality(scores: Scores, is_true: Mask, true_pairs: int) -> Quality:
    """Finds the threshold with the highest F1, and the metrics at it; of a tie, the highest threshold.

    It is half way to the next lower score, so that printing it rounds no pair away.

    scores: of the pairs, best first, at least one. is_true: of each pair. true_pairs: number of pairs in gold.
    """
    ends = np.flatnonzero(np.append(scores[1:] < scores[:-1], True))  # equal scores are taken together
    f1 = 2 * np.cumsum(is_true)[ends] / (ends + 1 + true_pairs)
    last = int(ends[np.argmax(f1)])
    return quality_at(float(scores[last : last + 2].mean()), scores, is_true, true_pairs)


def quality_at(threshold: float, scores: Scores, is_true: Mask, true_pairs: int) -> Quality:
    """Computes the metrics of the pairs with a score of at least `threshold`; precision is None without any."""
    taken = scores >= threshold
    right, count = int(is_true[taken].sum()), int(taken.sum())
    precision = right / count if count else None
    return Quality(2 * right / (count + true_pairs), precision, right / true_pairs, threshold)


def f1_interval(true: Rows, mined: Rows, is_true: Mask) -> tuple[float | None, float | None]:
    """Computes the 95 % bootstrap interval of F1, over the sources that have a true pair or a mined one.

    true, mined: the source of each true and of each mined pair. is_true: of each mined pair, (mined,).
    """
    length = 1 + int(max(true.max(initial=-1), mined.max(initial=-1)))
    counts = np.stack([np.bincount(rows, minlength=length) for rows in (true, mined, mined[is_true])])  # (3, sources)
    interval = with_interval("f1", _f1, *counts[:, counts.any(axis=0)])
    return interval.get("f1_low"), interval.get("f1_high")


def _f1(true: Rows, mined: Rows, right: Rows) -> float | None:
    pairs = int(true.sum() + mined.sum())
    return 2 * int(right.sum()) / pairs if pairs else None
