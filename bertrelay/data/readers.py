"""Readers of CSV, TSV, JSONL, plain lines, Parquet and data sets of the hub: each streams rows."""

import csv
import gzip
import io
import json
import re
import shlex
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from stat import S_ISREG
from typing import IO, TYPE_CHECKING, Any

from bertrelay.cache import Cache
from bertrelay.data.encodings import NOT_UTF8, SAMPLE_BYTES, conversion_hint, refuse_other_formats, remedy, sample_after
from bertrelay.data.tables import (
    ABSENT,
    DEEPEST,
    HEADER_AGAIN,
    Record,
    Rejected,
    Row,
    Table,
    column_names,
    find_columns,
    find_optional,
    reach,
)
from bertrelay.errors import RequestError, WorkError, plural
from bertrelay.inputs import note_input
from bertrelay.privacy import is_sensitive
from bertrelay.progress import log

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST_FIELD = 16 << 20
"""Most characters of a CSV field. Long notes exceed the default limit of `csv`, 131,072; without any limit, an open
quote would read the rest of the file into memory."""
CERTAIN_LINES = 10
"""From so many lines that are not UTF-8, more than UTF-8 lines beyond ASCII, the file is taken for another encoding."""
LONGEST_LINE = 64 << 20
"""Most bytes of a line, or of another text that is held in memory: a longer one has lost its line breaks, or a small
packed file unpacks to it."""
BATCH_ROWS = 1024
QUOTED = re.compile(r'"(?:[^"]|"")*+"', re.DOTALL)

Fields = Iterator[tuple[int, list[str] | Rejected]]
"""(line, fields of the row that begins there)."""


def line_rows(table: Table, columns: Sequence[str | int], optional: Sequence[str] = ()) -> Iterator[Row]:
    """Streams each line, blank ones too, as a row with one value."""
    if len(columns) != 1 or (table.columns and table.columns[0] != 0):
        raise RequestError(
            f"{table.name} is read as plain lines, whose one column is 0; found {', '.join(map(repr, columns))}. Leave "
            "the column out, or give its `format` (csv, tsv, jsonl or parquet)."
        )
    for number, (text, _, fault) in enumerate(_lines(table.name), 1):
        yield fault or Record((text, *[ABSENT] * len(optional)), table.name, number)


def delimited_rows(table: Table, columns: Sequence[str | int], optional: Sequence[str] = ()) -> Iterator[Row]:
    """Streams rows of CSV (with quoting) or TSV (without, unless `quoted`), without blank lines.

    Without a header, default columns are taken by position: the first ones.
    A CSV row must be as wide as the first one, because a stray comma shifts all fields after it. A TSV row may lack
    trailing fields that no column names, and without a header have more than the first row, as STS files do.
    A later row that repeats a header of several columns is no record.
    """
    if table.columns is None and not table.header:
        columns = [position if isinstance(column, str) else column for position, column in enumerate(columns)]
    is_csv, first, positions, min_fields = table.file_format == "csv", None, list[int | None](), 0
    delimiter = "," if is_csv else "\t"
    fields = _csv_fields(table.name, delimiter) if is_csv or table.quoted else _tsv_fields(table.name)

    def column_values(row: Sequence[str]) -> tuple[Any, ...]:
        """The values of the columns, empty where the row is too short."""
        return tuple(ABSENT if index is None else row[index] if index < len(row) else "" for index in positions)

    for line, values in fields:
        if isinstance(values, Rejected):
            if first is None and table.header:
                raise RequestError(
                    f"{table.name}, line {line:,}: the header is {values.reason} ({values.detail}). {remedy(values)}"
                )
            yield replace(values, values=column_values(values.values) if first and values.values else ())
            continue
        if first is None:
            more = find_optional(table.name, optional, values if table.header else [])
            first, positions = values, [*_positions(table, columns, values), *more]
            min_fields = len(first) if is_csv else max(index for index in positions if index is not None) + 1
            if table.header:
                continue
        max_fields = len(first) if is_csv or table.header else len(values)
        if table.header and len(first) > 1 and values == first:
            yield Rejected(HEADER_AGAIN, file=table.name, line=line)
        elif min_fields <= len(values) <= max_fields:
            yield Record(column_values(values), table.name, line)
        else:
            few, expected = ("few", min_fields) if len(values) < min_fields else ("many", max_fields)
            detail = f"expected {expected}, found {len(values)}"
            yield Rejected(f"too {few} fields", detail, file=table.name, line=line, values=column_values(values))
    if first is None and table.header:
        raise RequestError(f"{table.name} has no records, not even a header. Check that it is complete.")


def jsonl_rows(table: Table, columns: Sequence[str | int], optional: Sequence[str] = ()) -> Iterator[Row]:
    """Streams one JSON object per line, without blank lines. The first must have all columns except optional ones."""
    names: list[str] = []
    for line, (text, _, fault) in enumerate(_lines(table.name), 1):
        if fault is not None:
            yield fault
        elif text.strip():
            if line == 1 and text.lstrip().startswith("["):
                raise RequestError(
                    f"{table.name}: expected one JSON object per line, found an array. Write each of its objects on a "
                    "line, with jq -c '.[]' for example."
                )
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                if line == 1 and text.rstrip().endswith(("{", "[", ",", ":")):
                    raise RequestError(
                        f"{table.name}: expected one JSON object per line, found one over several lines. Write each on "
                        f"a line, with jq -c . {shlex.quote(table.name)} for example."
                    ) from None
                yield Rejected("not JSON", "expected one JSON object per line", file=table.name, line=line)
                continue
            if not isinstance(value, dict):
                yield Rejected("not a JSON object", f"found {type(value).__name__}", file=table.name, line=line)
                continue
            if not names:
                names = _names(table, columns, column_names(value))
            more = _optional_values(table, optional, value) if optional else ()
            values = (*(reach(value, name) for name in names), *more)
            if is_unicode(values):
                yield Record(values, table.name, line)
            else:
                yield Rejected("not valid Unicode", "half of a surrogate pair", file=table.name, line=line)


@contextmanager
def open_input(file: str) -> Iterator[IO[bytes]]:
    """Opens the bytes of `file`, decompressed where they begin like gzip, as names are often wrong."""
    try:
        if S_ISREG(Path(file).stat().st_mode):
            note_input(file)
        elif not Path(file).is_dir():  # opening a pipe would wait for its other end, and a device may never end
            raise RequestError(
                f"{file}: expected a file, found a pipe or a device, which cannot be read again. Write it to a file, "
                "or give - where a command reads standard input."
            )
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
    """Raises RequestError where the gzip data of `file`, read inside, is cut off or damaged."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise RequestError(f"{file} is cut off or damaged ({type(error).__name__}). Fetch or pack it again.") from None


def _lines(file: str) -> Iterator[tuple[str, str, Rejected | None]]:
    with open_input(file) as stream:
        yield from text_lines(file, stream)


def bounded_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Streams the lines of `stream` with their line breaks; a line that `is_too_long` is cut and its rest skipped."""
    while line := stream.readline(LONGEST_LINE + 1):
        part = line
        while is_too_long(part):
            part = stream.readline(LONGEST_LINE + 1)
        yield line


def is_too_long(line: bytes) -> bool:
    """True if a line from `bounded_lines` was cut at `LONGEST_LINE`."""
    return len(line) > LONGEST_LINE and not line.endswith(b"\n")


def text_lines(file: str, stream: IO[bytes]) -> Iterator[tuple[str, str, Rejected | None]]:
    r"""Streams text, line break and fault of each line, split only at \n: U+2028, U+0085 and the like are text.

    Raises RequestError for a file of another encoding or format, and where the stream ends before its file does.
    """
    number = offset = beyond_ascii = 0
    damaged = _DamagedLines(file, stream)
    try:
        for number, raw in enumerate(bounded_lines(stream), 1):
            if offset == 0:
                refuse_other_formats(file, raw)
            if number == 1 and raw.count(b"\r", 0, -1) > 1 and not raw.endswith(b"\n"):
                raise RequestError(f"{file}: expected lines that end in \\n, found \\r alone. Convert it.")
            fault = None
            if is_too_long(raw):
                yield (
                    "",
                    "\n",
                    Rejected("a line too long", f"more than {LONGEST_LINE >> 20} MiB", file=file, line=number),
                )
                offset += len(raw)
                continue
            try:
                line = raw.decode()
                beyond_ascii += not raw.isascii()
            except UnicodeDecodeError as error:
                position = f"byte {offset + error.start:,} of the file, counted from 0"
                fault = Rejected(NOT_UTF8, position + damaged.add(raw, beyond_ascii), file=file, line=number)
                line = raw.decode(errors="replace")
            if "\0" in line:
                fault = Rejected("a NUL character", "is this a text file?", file=file, line=number)
            if offset == 0:
                line = line.removeprefix("\ufeff")
            text = line.removesuffix("\n").removesuffix("\r")
            yield text, line[len(text) :], fault
            offset += len(raw)
    except (EOFError, OSError, zlib.error) as error:
        raise RequestError(
            f"{file} is cut off or damaged after line {number:,} ({type(error).__name__}). Fetch or pack it again."
        ) from None


class _DamagedLines:
    """Lines of a file that are not UTF-8, from which its encoding is guessed."""

    def __init__(self, file: str, stream: IO[bytes]) -> None:
        self._file, self._stream, self._count, self._sample = file, stream, 0, b""

    def add(self, raw: bytes, beyond_ascii: int) -> str:
        """Adds a line; for the first one returns `conversion_hint`, to append to the position of the fault.

        beyond_ascii: the number of lines that are UTF-8 and not ASCII.
        Raises RequestError as soon as the lines show that the whole file is in another encoding.
        """
        self._count += 1
        if self._count == 1:
            return conversion_hint(self._file, sample_after(raw, self._stream))
        if self._count <= CERTAIN_LINES:
            self._sample = (self._sample + raw)[:SAMPLE_BYTES]
        is_certain = self._count == CERTAIN_LINES > beyond_ascii
        if is_certain and (conversion := conversion_hint(self._file, self._sample)):
            raise RequestError(f"{self._file}: expected UTF-8, found another encoding{conversion}")
        return ""


def _tsv_fields(file: str) -> Fields:
    quotes = QuotedFields(file)
    for number, (text, _, fault) in enumerate(_lines(file), 1):
        if fault:
            yield number, fault
        elif text:
            fields = text.split("\t")
            quotes.add(fields)
            yield number, fields
    quotes.warn()


class QuotedFields:
    """Counts the quoted fields of a TSV file, whose quotes are read as text."""

    def __init__(self, file: str) -> None:
        self._file, self._rows, self._whole_rows, self._fields, self._doubled = file, 0, 0, 0, 0

    def add(self, fields: Sequence[str]) -> None:
        """Counts the fields of a row."""
        self._rows += 1
        if any('"' in field for field in fields):
            quoted = [field for field in fields if QUOTED.fullmatch(field)]
            self._fields += len(quoted)
            self._whole_rows += len(quoted) == len(fields)
            self._doubled += any('""' in field[1:-1] for field in quoted)

    def warn(self) -> None:
        """Logs their number where the quotes seem to mark fields: some have doubled quotes, or all are quoted."""
        if self._rows and (self._doubled or self._whole_rows == self._rows):
            log(
                f"{self._file}: warning: quotes around {self._fields:,} {plural(self._fields, 'field', 'fields')} are "
                "read as text; where they only mark fields, as a spreadsheet writes them, set quoted = true (--quoted)"
            )


def _csv_fields(file: str, delimiter: str) -> Fields:
    faults: list[Rejected] = []  # in the lines of the current row

    def texts() -> Iterator[str]:
        for text, ending, fault in _lines(file):
            faults.extend([fault] if fault else [])
            yield text + ending  # inside quotes a line break is text

    hint = 'give format = "tsv" if it is one' if delimiter == "," else "leave quoted out"
    reader = csv.reader(texts(), strict=True, delimiter=delimiter)
    while True:
        first, values = reader.line_num + 1, list[str]()
        faults.clear()
        usual_limit = csv.field_size_limit(LONGEST_FIELD)  # it holds for the whole process: restored at once
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error:
            if reader.line_num > first:  # the open quote took the lines after it for text
                raise RequestError(
                    f"{file}, line {first:,}: a quoted field starts here and does not end properly by line "
                    f'{reader.line_num:,}. Double the quotes inside fields (""), or {hint}.'
                ) from None
            if not faults:
                faults.append(Rejected("not a CSV row", "quotes or a line break inside a field", file=file, line=first))
        finally:
            csv.field_size_limit(usual_limit)
        if values or faults:
            yield first, replace(faults[0], line=first, values=tuple(values)) if faults else values


def _positions(table: Table, columns: Sequence[str | int], first: list[str]) -> list[int]:
    """The positions of `columns`, by name if the `first` row is a header."""
    by_name = [column for column in columns if isinstance(column, str)]
    if by_name and not table.header:
        raise RequestError(
            f"{table.name} is read without a header, so its columns go by position, 0 to {len(first) - 1}; "
            f"found {by_name[0]!r}."
        )
    return find_columns(table.name, columns, first, may_be_record=True)


def _names(table: Table, columns: Sequence[str | int], names: list[str]) -> list[str]:
    return [names[position] for position in find_columns(table.name, columns, names)]


def _optional_values(table: Table, optional: Sequence[str], record: dict[str, Any]) -> Iterator[Any]:
    positions, values = find_optional(table.name, optional, [*record]), [*record.values()]
    return (ABSENT if position is None else values[position] for position in positions)


def is_unicode(values: tuple[Any, ...]) -> bool:
    r"""False if a text has half of a surrogate pair, which JSON can escape (`\ud800`) and no file can contain."""
    try:
        return all(value.encode() is not None for value in values if isinstance(value, str))
    except UnicodeEncodeError:
        return False


def parquet_rows(table: Table, columns: Sequence[str | int], optional: Sequence[str] = ()) -> Iterator[Record]:
    """Streams the rows of a Parquet file, in batches of row groups."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    done = 0
    with open_input(table.name) as stream:
        try:
            file = pq.ParquetFile(stream)
            names, tops = _arrow_columns(table, columns, file.schema_arrow, optional)
            batches = file.iter_batches(BATCH_ROWS, columns=tops, use_threads=False)
            for record in _arrow_records(table, names, batches):
                yield record
                done = record.line
        except UnicodeDecodeError:
            raise RequestError(
                f"{table.name}, after row {done:,}: expected text and names of columns in UTF-8, found other bytes. "
                "Write the file again from text that was decoded."
            ) from None
        except (pa.ArrowException, OSError) as error:
            raise RequestError(
                f"{table.name} cannot be read as Parquet after row {done:,} ({type(error).__name__}). "
                "Check its format, or write it again."
            ) from None


def hub_rows(
    table: Table, columns: Sequence[str | int], cache: Cache | None, optional: Sequence[str] = ()
) -> Iterator[Record]:
    """Streams the rows of a split of a data set of the hub, downloaded into the cache."""
    with _hub(table, cache) as (datasets, options):
        dataset: Any = datasets.load_dataset(name=table.config, split=table.split, **options)
    names, tops = _arrow_columns(table, columns, dataset.features.arrow_schema, optional)
    yield from _arrow_records(table, names, dataset.select_columns(tops).with_format("arrow").iter(BATCH_ROWS))


def hub_configs(table: Table, cache: Cache | None) -> list[str]:
    with _hub(table, cache) as (datasets, options):
        names: list[str] = datasets.get_dataset_config_names(**options)
    return names


@contextmanager
def _hub(table: Table, cache: Cache | None) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Gives the library `datasets` and the arguments of its calls; its errors become the project's."""
    if cache is None or table.hub is None:
        raise RequestError(f"{table.name}: a data set of the hub needs a cache folder to be downloaded into.")
    import datasets
    from huggingface_hub import constants

    hub, home = cache.hub, constants.HF_HUB_CACHE
    constants.HF_HUB_CACHE = str(hub)  # `load_dataset` has no argument for downloads, and takes the home folder
    try:
        source = {"path": table.hub.hub_id, "revision": table.hub.revision}
        yield datasets, {**source, "cache_dir": str(hub / "datasets")}
    except RequestError:
        raise
    except (FileNotFoundError, ValueError) as error:
        raise RequestError(
            f"{table.name} cannot be loaded: {_first_line(error)}. Check its name, config and split."
        ) from None
    except (OSError, datasets.exceptions.DatasetsError) as error:
        raise WorkError(
            f"{table.name} cannot be fetched: {_first_line(error)}. Check the network and the space in {hub}, "
            "or download the data and give its `path`."
        ) from None
    finally:
        constants.HF_HUB_CACHE = home


def _arrow_columns(
    table: Table, columns: Sequence[str | int], schema: "pa.Schema", optional: Sequence[str]
) -> tuple[list[str | None], list[str]]:
    """The names of `columns` and optional ones, None for a missing one, and the top-level columns to read for them."""
    positions = find_optional(table.name, optional, schema.names)
    more = [None if position is None else schema.names[position] for position in positions]
    names = [*_names(table, columns, _schema_names(schema)), *more]
    tops = (name if name in schema.names else name.partition(".")[0] for name in names if name is not None)
    return names, list(dict.fromkeys(tops))


def _arrow_records(
    table: Table, names: list[str | None], batches: "Iterable[pa.Table | pa.RecordBatch]"
) -> Iterator[Record]:
    for line, row in enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), 1):
        yield Record(tuple(ABSENT if name is None else reach(row, name) for name in names), table.name, line)


def _schema_names(fields: "Iterable[pa.Field]", depth: int = DEEPEST) -> list[str]:
    import pyarrow as pa

    fields = list(fields)
    structs = [field for field in fields if depth and pa.types.is_struct(field.type)]
    nested = [f"{field.name}.{inner}" for field in structs for inner in _schema_names(field.type, depth - 1)]
    return [field.name for field in fields] + nested


def _first_line(error: Exception) -> str:
    """A library's message; with sensitive data only the type of the error, as the message may quote a value."""
    if is_sensitive():
        return type(error).__name__
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
