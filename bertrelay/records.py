"""Records of any table (plain lines, CSV, TSV, JSONL, Parquet, `.gz` too, data sets of the hub), read as a stream.

A row that cannot be used never disappears: it stops the reading, or it is counted and listed by `Rejects`.
No text of a record ever stands in an error or in a rejects file, because records may be clinical.
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from bertrelay.arrow_tables import hub_rows, parquet_rows
from bertrelay.errors import RequestError
from bertrelay.rejects import Rejects
from bertrelay.tables import Column, Format, Record, Table, Unusable
from bertrelay.text_tables import delimited_rows, jsonl_rows, line_rows

__all__ = ["Column", "Format", "Record", "Rejects", "Row", "Table", "Unusable", "aligned_rows", "read", "rows"]

Row = Record | Unusable


def read(
    table: Table,
    default_columns: Sequence[str | int],
    context_cache: Path | None = None,
    rejects: Rejects | None = None,
) -> Iterator[Record]:
    """Streams the records of `table`: of its own columns, else of `default_columns`.

    Blank lines are skipped, but in plain lines each one is a record. Of a file without header, default columns
    given by name are the first ones. Values are text in CSV, TSV and lines, and elsewhere what the file holds.

    rejects: counts and lists rows that cannot be used (too few fields, a missing value, invalid UTF-8, …); without it
    the first one raises RequestError. The caller counts the used ones with `rejects.used()`.
    Raises RequestError for what concerns the whole table: no such file, a damaged one, no such column, no records.
    """
    for row in rows(table, default_columns, context_cache):
        if isinstance(row, Record) and all(value is not None for value in row.values):
            yield row
            continue
        fault = row if isinstance(row, Unusable) else Unusable(row.file, row.line, "a missing value")
        if rejects is None:
            detail = f" ({fault.detail})" if fault.detail else ""
            raise RequestError(f"{fault.file}, line {fault.line:,}: {fault.reason}{detail}. Mend or remove this line.")
        rejects.add(fault.file, fault.line, fault.reason)


def aligned_rows(
    first: Table, second: Table, default_columns: Sequence[str | int], context_cache: Path | None = None
) -> Iterator[tuple[Row, Row]]:
    """Two tables side by side, where row n of one belongs to row n of the other; as `rows` gives them.

    Raises RequestError, with the rows of both, when one of them is longer.
    """
    walk = zip_longest(rows(first, default_columns, context_cache), rows(second, default_columns, context_cache))
    for done, (left, right) in enumerate(walk):
        if left is not None and right is not None:
            yield left, right
        else:
            raise _unaligned(first, second, left or right, shorter=done, longer=done + 1 + sum(1 for _ in walk))


def _unaligned(first: Table, second: Table, alone: Row | None, shorter: int, longer: int) -> RequestError:
    assert alone is not None
    counts = (longer, shorter) if alone.file == first.name else (shorter, longer)
    return RequestError(
        f"row n of {first.name} should belong to row n of {second.name}, but the first has {counts[0]:,} rows "
        f"and the second {counts[1]:,}: line {alone.line:,} of {alone.file} has no partner. "
        "Find the line that is missing or too many; it may stand earlier."
    )


def rows(table: Table, default_columns: Sequence[str | int], context_cache: Path | None = None) -> Iterator[Row]:
    """Every row in its place, usable or not.

    Missing values are None here. Raises as `read` does for what concerns the whole table.
    """
    empty = True
    for row in _rows_by_format(table, table.columns or default_columns, context_cache):
        empty = False
        yield row
    if empty:
        raise RequestError(f"{table.name} holds no records. Check that it is the right one and complete.")


def _rows_by_format(table: Table, columns: Sequence[str | int], context_cache: Path | None) -> Iterator[Row]:
    if table.path is None:
        return hub_rows(table, columns, context_cache)
    match table.file_format:
        case "lines":
            return line_rows(table, columns)
        case "csv" | "tsv":
            if table.columns is None and not table.header:
                columns = [place if isinstance(column, str) else column for place, column in enumerate(columns)]
            return delimited_rows(table, columns)
        case "jsonl":
            return jsonl_rows(table, columns)
        case "parquet":
            return parquet_rows(table, columns)
