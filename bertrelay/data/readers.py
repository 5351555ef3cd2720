"""Rows of CSV, TSV, JSONL, plain lines, Parquet and data sets of the hub, as a stream."""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from bertrelay.data.tables import (
    Record,
    Table,
    Unusable,
    check_column,
    find_columns,
    names_of,
    reach,
    same_but_for_case,
)
from bertrelay.errors import RequestError, WorkError
from bertrelay.privacy import is_sensitive

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST_FIELD = 16 << 20
"""Characters of a CSV field at most. The usual limit of `csv`, 131,072, is less than a long note has; without any, a
quote left open would swallow the rest of the file into memory."""

Fault = tuple[str, str]
"""What is wrong with a line: a reason to count by, and a detail for an error."""


def line_rows(table: Table, columns: Sequence[str | int]) -> Iterator[Record | Unusable]:
    """Each line is a row with one value, blank ones too."""
    if len(columns) != 1:
        raise RequestError(
            f"{table.name} is read as plain lines, one value each; expected one column, found {len(columns)}. "
            "Give its `format` (csv, tsv, jsonl or parquet)."
        )
    if table.columns and table.columns[0] != 0:
        raise RequestError(
            f"{table.name} is read as plain lines, whose one column is 0; found {table.columns[0]!r}. Leave the column "
            "out, or give its `format` (csv, tsv, jsonl or parquet)."
        )
    lines = _Lines(table.name)
    for line in lines:
        fault = lines.take_fault()
        yield Unusable(table.name, lines.number, *fault) if fault else Record((line,), table.name, lines.number)


def delimited_rows(table: Table, columns: Sequence[str | int]) -> Iterator[Record | Unusable]:
    """Rows of CSV (with quoting) or TSV (without), blank lines left out.

    A CSV row must be as wide as the first one, because a stray comma shifts all that follows it. A TSV row may lack
    trailing fields that no column names, and have more than the first one where there is no header, as STS files do.
    """
    lines = _Lines(table.name)
    is_csv = table.file_format == "csv"
    fields = _csv_fields(lines) if is_csv else _tsv_fields(lines)
    first = _header(table, fields) if table.header else None
    positions = _positions(table, columns, first) if first else []
    for line, values, found_fault in fields:
        fault = found_fault
        if first is None and fault is None:
            first = values
            positions = _positions(table, columns, first)
        if first is not None and fault is None:
            least = len(first) if is_csv else max(positions) + 1
            most = len(first) if is_csv or table.header else len(values)
            fault = _wrong_width(len(values), least, most)
        if fault is None:
            yield Record(tuple(values[position] for position in positions), table.name, line)
        else:
            yield Unusable(table.name, line, *fault)


def jsonl_rows(table: Table, columns: Sequence[str | int]) -> Iterator[Record | Unusable]:
    """One JSON object per line, blank lines left out. The first object must have all the columns."""
    lines = _Lines(table.name)
    names: list[str] = []
    for line in lines:
        fault = lines.take_fault()
        if not line.strip() and fault is None:
            continue
        record, fault = (None, fault) if fault else _json_object(line)
        values: tuple[Any, ...] = ()
        if record is not None:
            names = names or find_columns(table.name, columns, names_of(record))
            values = tuple(reach(record, name) for name in names)
            fault = None if is_unicode(values) else ("not valid Unicode", "half of a surrogate pair")
        yield Unusable(table.name, lines.number, *fault) if fault else Record(values, table.name, lines.number)


@contextmanager
def open_input(file: str) -> Iterator[IO[bytes]]:
    """The bytes of `file`, decompressed where the first bytes are those of gzip, as names are often wrong."""
    try:
        raw = Path(file).open("rb")  # noqa: SIM115 (closed below)
    except FileNotFoundError:
        raise RequestError(f"there is no file {file}. Check the path; in a recipe it counts from its folder.") from None
    except OSError as error:
        raise RequestError(f"{file} cannot be read: {error.strerror}. Give a file that may be read.") from None
    with raw:
        packed = raw.peek(2)[:2] == b"\x1f\x8b"
        yield io.BufferedReader(gzip.GzipFile(fileobj=raw)) if packed else raw


@contextmanager
def refuse_damaged(file: str) -> Iterator[None]:
    """Raises RequestError where reading `file`, packed with gzip, ends before the file does or finds other bytes."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise RequestError(f"{file} is cut off or damaged ({type(error).__name__}). Fetch or pack it again.") from None


class _Lines:
    r"""Iterates the decoded lines of a file, split at \n alone: U+2028, U+0085 and the like are text.

    number: of the last line, from 1. ending: its line break; empty where the file ends without one.
    `take_fault` gives what went wrong since it was last called.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self.number = 0
        self.ending = ""
        self._fault: Fault | None = None

    def __iter__(self) -> Iterator[str]:
        offset = 0
        with open_input(self.file) as stream:
            for raw in self._whole(stream):
                self.number += 1
                yield self._decoded(raw, offset)
                offset += len(raw)

    def take_fault(self) -> Fault | None:
        fault, self._fault = self._fault, None
        return fault

    def _whole(self, stream: IO[bytes]) -> Iterator[bytes]:
        try:
            yield from stream
        except (EOFError, OSError, zlib.error) as error:
            raise RequestError(
                f"{self.file} is cut off or damaged after line {self.number:,} ({type(error).__name__}). "
                "Fetch or pack it again."
            ) from None

    def _decoded(self, raw: bytes, offset: int) -> str:
        if offset == 0 and raw.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise RequestError(f"{self.file}: expected UTF-8, found UTF-16. Convert it, with iconv for example.")
        try:
            line = raw.decode()
        except UnicodeDecodeError as error:
            self._fault = ("not valid UTF-8", f"byte {offset + error.start:,} of the file, counted from 0")
            line = raw.decode(errors="replace")
        if "\0" in line:
            self._fault = ("a NUL character", "is this a text file?")
        if offset == 0:
            line = line.removeprefix("\ufeff")
        text = line.removesuffix("\n").removesuffix("\r")
        self.ending = line[len(text) :]
        return text


class _Fields(NamedTuple):
    line: int
    values: list[str]
    fault: Fault | None


def _tsv_fields(lines: _Lines) -> Iterator[_Fields]:
    for line in lines:
        fault = lines.take_fault()
        if line or fault:
            yield _Fields(lines.number, line.split("\t"), fault)


def _csv_fields(lines: _Lines) -> Iterator[_Fields]:
    reader = csv.reader((line + lines.ending for line in lines), strict=True)  # inside quotes the ending is text
    while True:
        first = lines.number + 1
        try:
            values = _next_row(reader)
        except StopIteration:
            return
        except csv.Error:
            _check_open_quote(lines, first)
            yield _Fields(first, [], lines.take_fault() or ("not a CSV row", "quotes or a line break inside a field"))
            continue
        fault = lines.take_fault()
        if values or fault:
            yield _Fields(first, values, fault)


def _next_row(reader: Iterator[list[str]]) -> list[str]:
    """The next row. `csv` has one limit for all readers of a process; it is restored at once."""
    usual = csv.field_size_limit(LONGEST_FIELD)
    try:
        return next(reader)
    finally:
        csv.field_size_limit(usual)


def _check_open_quote(lines: _Lines, first: int) -> None:
    """Stops at a quote left open: it has swallowed the lines after it, so nothing that follows can be trusted."""
    if lines.number > first:
        raise RequestError(
            f"{lines.file}, line {first:,}: a quoted field starts here and does not end properly by line "
            f'{lines.number:,}. Double the quotes inside fields (""), or give format = "tsv" if it is one.'
        ) from None


def _header(table: Table, fields: Iterator[_Fields]) -> list[str]:
    first = next(fields, None)
    if first is None:
        raise RequestError(f"{table.name} has no records, not even a header. Check that it is complete.")
    if first.fault is not None:
        reason, detail = first.fault
        raise RequestError(f"{table.name}, line {first.line:,}: the header is {reason} ({detail}). Fix the header.")
    return first.values


def _positions(table: Table, columns: Sequence[str | int], first: list[str]) -> list[int]:
    """The positions of `columns`, by the names in the first row when it is a header."""
    for column in columns:
        if isinstance(column, str) and not table.header:
            raise RequestError(
                f"{table.name} is read without a header, so its columns go by position, 0 to {len(first) - 1}; "
                f"found {column!r}."
            )
        if isinstance(column, int):
            check_column(table.name, column, first)
        elif column not in first:
            raise RequestError(f"{table.name} has no column {column!r}. {_expected_header(column, first)}")
        elif first.count(column) > 1:
            raise RequestError(f"{table.name}: column {column!r} is there more than once. Give its position.")
    return [column if isinstance(column, int) else first.index(column) for column in columns]


def _expected_header(column: str, first: list[str]) -> str:
    """Shows nothing of the first row but its size and a name that differs in case: it may be a record."""
    same = same_but_for_case(column, first)
    hint = f" Did you mean {same[0]!r}?" if same else ""
    return (
        f"A header was expected in its first row, found {len(first)} columns of other names.{hint} "
        "Name columns that are there; if that row is a record, read the file without a header and its columns by "
        "position (in a recipe header = false)."
    )


def _wrong_width(found: int, least: int, most: int) -> Fault | None:
    if found < least:
        return "too few fields", f"expected {least}, found {found}"
    if found > most:
        return "too many fields", f"expected {most}, found {found}"
    return None


def _json_object(line: str) -> tuple[dict[str, Any] | None, Fault | None]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None, ("not JSON", "expected one JSON object per line")
    if not isinstance(found, dict):
        return None, ("not a JSON object", f"found {type(found).__name__}")
    return found, None


def is_unicode(values: tuple[Any, ...]) -> bool:
    r"""False for text that JSON can escape (`\ud800`) and no file can hold."""
    try:
        for value in values:
            if isinstance(value, str):
                value.encode()
    except UnicodeEncodeError:
        return False
    return True


BATCH_ROWS = 1024


def parquet_rows(table: Table, columns: Sequence[str | int]) -> Iterator[Record]:
    """The rows of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    done = 0
    with open_input(table.name) as stream:
        try:
            file = pq.ParquetFile(stream)
            names, tops = _columns(table.name, columns, file.schema_arrow)
            for batch in file.iter_batches(BATCH_ROWS, columns=tops, use_threads=False):
                yield from _records(batch, names, table.name, done)
                done += batch.num_rows
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise RequestError(
                f"{table.name} cannot be read as Parquet after row {done:,} ({type(error).__name__}). "
                "Check its format, or write it again."
            ) from None


def hub_rows(table: Table, columns: Sequence[str | int], context_cache: Path | None) -> Iterator[Record]:
    """The rows of a split of a data set of the hub, kept under `context_cache / "hub"`."""
    dataset = _load(table, context_cache)
    names, tops = _columns(table.name, columns, dataset.features.arrow_schema)
    done = 0
    for batch in dataset.select_columns(tops).with_format("arrow").iter(BATCH_ROWS):
        yield from _records(batch, names, table.name, done)
        done += batch.num_rows


def _load(table: Table, context_cache: Path | None) -> Any:
    if context_cache is None or table.hub is None:
        raise RequestError(f"{table.name}: a data set of the hub needs a cache folder to be kept in.")
    import datasets

    folder = context_cache / "hub"
    try:
        with _hub_downloads_in(folder):
            return datasets.load_dataset(
                table.hub.hub_id,
                table.config,
                split=table.split,
                revision=table.hub.revision,
                cache_dir=str(folder / "datasets"),
            )
    except (FileNotFoundError, ValueError) as error:
        raise RequestError(
            f"{table.name} cannot be loaded: {_first_line(error)}. Check its name, config and split."
        ) from None
    except (OSError, datasets.exceptions.DatasetsError) as error:
        raise WorkError(
            f"{table.name} cannot be fetched: {_first_line(error)}. Check the network and the space in {folder}, "
            "or download the data and give its `path`."
        ) from None


@contextmanager
def _hub_downloads_in(folder: Path) -> Iterator[None]:
    """Sends the hub's downloads to `folder`: `load_dataset` has no argument for them and takes the home folder."""
    from huggingface_hub import constants

    before = constants.HF_HUB_CACHE
    constants.HF_HUB_CACHE = str(folder)
    try:
        yield
    finally:
        constants.HF_HUB_CACHE = before


def _first_line(error: Exception) -> str:
    """A library's message; of sensitive data the kind of error alone, as the message may quote a value."""
    if is_sensitive():
        return type(error).__name__
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _columns(file: str, columns: Sequence[str | int], schema: "pa.Schema") -> tuple[list[str], list[str]]:
    """The names of `columns`, and the top-level columns that hold them."""
    names = find_columns(file, columns, _schema_names(schema))
    tops = [name if name in schema.names else name.partition(".")[0] for name in names]
    return names, list(dict.fromkeys(tops))


def _schema_names(fields: "Iterable[pa.Field]") -> list[str]:
    import pyarrow as pa

    structs = [field for field in fields if pa.types.is_struct(field.type)]
    nested = [f"{field.name}.{inner}" for field in structs for inner in _schema_names(field.type)]
    return [field.name for field in fields] + nested


def _records(batch: "pa.RecordBatch", names: list[str], file: str, done: int) -> Iterator[Record]:
    for line, row in enumerate(batch.to_pylist(), done + 1):
        yield Record(tuple(reach(row, name) for name in names), file, line)
