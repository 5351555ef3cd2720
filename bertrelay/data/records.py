"""Records of any table, streamed: plain lines, CSV, TSV, JSONL, Parquet, data sets of the hub, packed with gzip or not.

A row that cannot be used is never dropped silently: it stops the reading, or `Rejects` counts and lists it.
No text of a record is ever in an error or in a rejects file, because records may be clinical.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from decimal import Decimal
from itertools import zip_longest
from numbers import Integral, Real
from pathlib import Path
from typing import Self, SupportsInt, TextIO, cast

from bertrelay.cache import Cache
from bertrelay.data.encodings import LOOKS_LIKE, remedy
from bertrelay.data.readers import delimited_rows, hub_rows, jsonl_rows, line_rows, parquet_rows
from bertrelay.data.tables import Format, Record, Rejected, Row, Table
from bertrelay.errors import RequestError, WorkError
from bertrelay.progress import log, renamed

REJECTS_BEFORE_CHECK = 1000
REASONS_SHOWN = 8
MANY_COPIES = 0.01
READERS: dict[Format, Callable[[Table, Sequence[str | int], Sequence[str]], Iterator[Row]]] = {
    "lines": line_rows,
    "csv": delimited_rows,
    "tsv": delimited_rows,
    "jsonl": jsonl_rows,
    "parquet": parquet_rows,
}
MISSING_TYPES = {"NoneType", "NAType", "NaTType"}
"""Types of missing values; those of pandas by their names, so that pandas need not be imported."""
MISSING_WORDS = {"NA", "<NA>", "NaN", "nan", "NULL", "null", "None", "\\N"}
"""Words that R, pandas and databases write for a missing value."""
ROUNDED_NUMBER = re.compile(r"[+-]?\d+(?:[.,]\d*)?[eE]\+\d+|[+-]?\d+[.,]\d*[eE]\d+", re.ASCII)
WHOLE_FLOAT = re.compile(r"([+-]?\d+)\.0+", re.ASCII)
LONGEST_NUMBER = 400  # characters; the largest float has 309 digits
EXACT_FLOATS = 2**53
"""From here on floats cannot represent every whole number."""
ROUNDED_FLOATS = 1e11
"""From here on spreadsheets export a number with six digits, as `1.23457E+11`."""
ROUNDED_ID = "an id that is a rounded number, as 1.23E+11 is; write ids as text or whole numbers, with all their digits"


def canonical_id(value: object) -> str:
    """`value` as text without white space around it and without `.0`: `12`, `12.0` and `" 12 "` all give `12`.

    Missing ids and placeholders such as `NA` become empty, so that rows without an id are not grouped together.
    Raises ValueError, which does not quote the value, for anything but text and whole numbers, and for rounded
    numbers, in which different ids are equal: floats too large to tell neighbours apart, and `1.23457E+11`.
    """
    if isinstance(value, str):
        text = "" if value.strip() in MISSING_WORDS else value.strip()
        if is_rounded(text):
            raise ValueError(ROUNDED_ID)
        whole, _, fraction = text.partition(".")
        return whole if whole.removeprefix("-").isdigit() and fraction and not fraction.strip("0") else text
    if is_missing(value):
        return ""
    if isinstance(value, bool) or not isinstance(value, Real | Decimal) or value % 1 != 0:
        raise ValueError("an id that is neither text nor a whole number")
    is_float = isinstance(value, Real) and not isinstance(value, Integral)
    if is_float and value + 1 == value:
        raise ValueError("an id of more digits than its type of number can hold; write ids as text or whole numbers")
    if is_float and _has_six_digits(float(value)):
        raise ValueError(ROUNDED_ID)
    return str(int(cast(SupportsInt, value)))


def is_rounded(text: str) -> bool:
    """True if an id is a long number that a spreadsheet or a float rounded: its last digits are lost."""
    as_float = WHOLE_FLOAT.fullmatch(text[:LONGEST_NUMBER])
    number = 0 if as_float is None else abs(int(as_float[1]))
    return number >= EXACT_FLOATS or _has_six_digits(number) or ROUNDED_NUMBER.fullmatch(text) is not None


def _has_six_digits(number: float) -> bool:
    """True for a large number with at most six significant digits, as `1.23457E+11` has."""
    return abs(number) >= ROUNDED_FLOATS and float(f"{number:.5e}") == number


def is_missing(value: object) -> bool:
    """True for None and for the missing values of pandas."""
    is_nan = isinstance(value, Real | Decimal) and value != value  # which nothing else is
    return is_nan or type(value).__name__ in MISSING_TYPES


class Rejects:
    """Counts the records that cannot be used and lists them in `rejects.jsonl`: file, line, id, reason; no text.

    path: the list, written as records are rejected; None only counts.
    limit: the fraction of all records that may be rejected. Leaving the context raises WorkError above it, and so does
        `add` once there are a thousand rejects and they outnumber the usable records: checked sooner, bad lines at
        the start of a good file would stop the work.
    keep_empty: keep the list if no record was rejected.
    Without a `with` block, `close`, which readers call at the end of a file, checks the limit.
    """

    def __init__(self, path: Path | str | None, limit: float = 0.01, keep_empty: bool = True) -> None:
        self.path = None if path is None else Path(path)
        self.limit = limit
        self._keep_empty = keep_empty
        self._counts: Counter[tuple[str, str]] = Counter()  # (reason, file) → records
        self._used = 0
        self._first = ""
        self._conversions: dict[tuple[str, str], str] = {}  # (reason, file) → conversion of a file in another encoding
        self._file: TextIO | None = None
        self._was_opened = self._is_in_block = False

    def __enter__(self) -> Self:
        self._is_in_block = True
        self._open()
        return self

    def _open(self) -> None:
        if self.path is not None and self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self._was_opened:
                self.path.unlink(missing_ok=True)  # an older one may be readable by more people
            self._file = self.path.open("a", encoding="utf-8")
            self._was_opened = True

    @property
    def counts(self) -> Counter[str]:
        """Rejected records by reason."""
        by_reason: Counter[str] = Counter()
        for (reason, _), count in self._counts.items():
            by_reason[reason] += count
        return by_reason

    @property
    def records(self) -> int:
        """All records so far, usable or not."""
        return self._counts.total() + self._used

    def summary(self, files: Collection[str] | None = None) -> str:
        """Reasons by frequency, `12 × no gold label in nli.tsv, …`, in `files` or in all."""
        counts = [(key, count) for key, count in self._counts.most_common() if files is None or key[1] in files]
        phrases = [
            f"{count:,} × {reason} in {file}{self._conversions.get((reason, file), '')}"
            for (reason, file), count in counts[:REASONS_SHOWN]
        ]
        return ", ".join([*phrases, *(["…"] if len(counts) > REASONS_SHOWN else [])])

    def add(self, file: str, line: int, reason: str, record: str = "", detail: str = "", source: str = "") -> None:
        """Counts one record that cannot be used.

        line: from 1; 0 for a file without lines. record: its id, where a line does not identify it.
        detail: more about the fault, without any text of the record.
        source: the folder under which it is counted, where each record is a file in a folder.
        """
        file = renamed(file)
        self._counts[reason, renamed(source or file)] += 1
        position = file + (f", line {line:,}" if line else "") + (f", record {record}" if record else "")
        detail, *conversion = detail.partition(LOOKS_LIKE)
        self._first = self._first or position + (f" ({detail})" if detail else "")
        if conversion[0]:
            self._conversions.setdefault((reason, file), "".join(conversion))
        self._open()
        if self._file is not None:
            more = {"record": record, "detail": detail}
            entry = {"file": file, "line": line, "reason": reason, **{key: more[key] for key in more if more[key]}}
            self._file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        rejected = self._counts.total()
        if rejected >= REJECTS_BEFORE_CHECK and rejected > self._used:
            self.check()

    def used(self, n: int = 1) -> None:
        """Counts `n` usable records; a negative `n` takes back some that turned out to be unusable."""
        self._used += n

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_in_block = False
        self._close_file()
        if self.path is not None and not self._keep_empty and not self._counts:
            self.path.unlink(missing_ok=True)
        if kind is None:
            self.check()
            self._log()

    def close(self) -> None:
        """Closes the list unless a `with` block does. Raises WorkError above the limit."""
        if not self._is_in_block:
            self._open()
            self._close_file()
            self.check()
            if self.path is not None:
                self._log()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _log(self) -> None:
        if self._counts:
            listed = f"; {self.path.name} lists them" if self.path else ""
            log(f"left out {self._ratio()} records, which cannot be used: {self.summary()}{listed}")

    def _ratio(self) -> str:
        return f"{self._counts.total():,} of {self.records:,}"

    def _advice(self) -> str:
        if self._counts.total() == self.records:
            return "Fix the data, or check the columns and the format that were named."
        return "Fix the data, or allow a larger fraction with max_rejects."

    def check(self) -> None:
        """Raises WorkError if too many of the records so far cannot be used."""
        if self._counts.total() > self.limit * self.records:
            listed = f" {self.path} lists them." if self.path else ""
            is_encoding = self._counts.most_common(1)[0][0] in self._conversions
            raise WorkError(
                f"{self._ratio()} records cannot be used, more than the {self.limit:.2%} allowed: {self.summary()}. "
                f"The first is {self._first}.{listed} " + ("" if is_encoding else self._advice())
            )


def log_copies(copies: int, total: int, items: str, equal: str, treatment: str = "and count once") -> None:
    """Logs the number of copies among `total` items, with a warning where they are many.

    items: their plural. equal: what else is equal in copies, `with its label`. treatment: what happens to them.
    """
    if copies:
        warning = "" if copies <= MANY_COPIES * total else "; so many are seldom meant: was a table appended to itself?"
        log(f"{copies:,} of {total:,} {items} are copies of an earlier one, {equal}, {treatment}{warning}")


def read(
    table: Table,
    default_columns: Sequence[str | int],
    cache: Cache | None = None,
    rejects: Rejects | None = None,
) -> Iterator[Record]:
    """Streams the records of `table`: the columns that it names, else `default_columns`.

    Blank lines are skipped, except in plain lines. Without a header, default columns are taken by position: the first
    ones. Values are text in CSV, TSV and lines, and elsewhere of the types in the file.

    rejects: counts and lists rows that cannot be used (too few fields, a missing value, invalid UTF-8, …); without it
    the first one raises RequestError. The caller counts the used ones with `rejects.used()`.
    Raises RequestError for faults of the whole table: no such file, a damaged one, no such column, no records.
    """
    for row in rows(table, default_columns, cache):
        if isinstance(row, Record) and all(value is not None for value in row.values):
            yield row
            continue
        fault = row if isinstance(row, Rejected) else Rejected("a missing value", file=row.file, line=row.line)
        if rejects is None:
            raise RequestError(f"{fault.file}, line {fault.line:,}: {fault.reason}{fault.note}. {remedy(fault)}")
        rejects.add(fault.file, fault.line, fault.reason, fault.record, fault.detail)


def aligned_rows(
    first: Table, second: Table, default_columns: Sequence[str | int], cache: Cache | None = None
) -> Iterator[tuple[Row, Row]]:
    """Streams pairs of rows of two tables, where row n of one belongs to row n of the other.

    Raises RequestError, with the number of rows of both, if one of them is longer.
    """
    walk = zip_longest(rows(first, default_columns, cache), rows(second, default_columns, cache))
    for done, (left, right) in enumerate(walk):
        if left is not None and right is not None:
            yield left, right
            continue
        unpaired = left or right
        assert unpaired is not None
        longer = done + 1 + sum(1 for _ in walk)
        counts = (longer, done) if unpaired is left else (done, longer)
        raise RequestError(
            f"row n of {first.name} should belong to row n of {second.name}, but the first has {counts[0]:,} rows "
            f"and the second {counts[1]:,}: line {unpaired.line:,} of {unpaired.file} has no partner. "
            "Find the line that is missing or too many; it may be earlier."
        )


def rows(
    table: Table,
    default_columns: Sequence[str | int],
    cache: Cache | None = None,
    optional: Sequence[str] = (),
) -> Iterator[Row]:
    """Streams every row of `table` in order, usable or not.

    optional: names, in lower case, of columns that a file or record may lack and may write in any case; their values
        come last, `ABSENT` for a missing column.
    Missing values are None here. Raises as `read` does for faults of the whole table.
    """
    columns = table.columns or default_columns
    if table.path is None:
        stream: Iterator[Row] = hub_rows(table, columns, cache, optional)
    else:
        stream = READERS[table.file_format](table, columns, optional)
    first = next(stream, None)
    if first is None:
        raise RequestError(f"{table.name} has no records. Check that it is the right one and complete.")
    yield first
    yield from stream
