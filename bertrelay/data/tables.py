"""Tables, their rows, and the search for their columns by name or position."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from bertrelay.errors import RequestError
from bertrelay.settings import DataSource, HubDataset, InputFile, Settings, UsedWith, refuse_idle

Format = Literal["lines", "csv", "tsv", "jsonl", "parquet"]
BLOCK_ROWS = 4096
"""Rows, texts or vectors that are read, computed or written at once; no result depends on it."""
BLOCK_SENTENCES = 8_192
"""Sentences from which batches of like length are made; with another number, vectors differ by rounding."""
ABSENT: Any = ...
"""The value of an optional column that the table lacks."""

Column = str | Annotated[int, Field(ge=0)]
"""A column by name (`score`; `translation.de` reaches into a nested object) or by position from 0."""

FORMATS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".parq": "parquet",
    ".pq": "parquet",
}

TRANSLATION_FILES = "only a source of parallel text reads translation files; for sentences, write them one a line"
TO_TABLE = "libreoffice --headless --convert-to 'csv:Text - txt - csv (StarCalc):44,34,76'"
TO_TEXT = "libreoffice --headless --convert-to 'txt:Text (encoded):UTF8'"
TRANSLATIONS = (".tmx", ".xlf", ".xliff", ".po", ".mo")
AS_LINES = "write its text one sentence a line"
NO_LINES = {
    **dict.fromkeys(TRANSLATIONS, TRANSLATION_FILES),
    **dict.fromkeys((".xml", ".nxml"), f"only a source of documents reads XML, of PubMed and PMC; else {AS_LINES}"),
    **dict.fromkeys((".html", ".htm", ".epub", ".srt", ".vtt"), AS_LINES),
    **dict.fromkeys((".sdlxliff", ".mxliff"), f"export it as .tmx or .xliff: {TRANSLATION_FILES}"),
    **dict.fromkeys((".docx", ".doc", ".odt", ".rtf", ".pptx", ".ppt"), f"convert it with {TO_TEXT}, then {AS_LINES}"),
    **dict.fromkeys((".hwp", ".hwpx"), f"save it as a text document in UTF-8 from Hangul, then {AS_LINES}"),
    ".pdf": f"convert it with pdftotext, then {AS_LINES}",
    **dict.fromkeys((".xlsx", ".xlsm", ".xls", ".ods"), f"save it as CSV in UTF-8, with {TO_TABLE} for example"),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar"), "unpack it; only .gz is unpacked"),
    **dict.fromkeys((".npy", ".npz", ".arrow", ".safetensors", ".pt", ".pkl"), "it has numbers; name its texts"),
}
"""Suffixes of files whose lines are no sentences, with what reads or converts them."""

COLUMN_NAME = re.compile(r"[^\W\d][\w.-]{0,39}")
COLUMNS_SHOWN = 20
USUAL_NAME = re.compile(
    r"(id|(row|hadm|subject|sentence|source|target|query|question|document)_?id|texts?|notes?|sentences?|source|target"
    r"|english|other|labels?|scores?|query|question|context|answers?|anchor|positive|negative|passage|title|category"
    r"|split|lang|language|[a-z]{2})_?\d*",
    re.IGNORECASE,
)
"""Names that columns have and texts hardly ever are, so that an error may quote them from the first row of any file."""
HEADER_AGAIN = "the header again, as in a table that was appended to another"
DEEPEST = 20  # levels of nested objects in which a column is looked for


class TableSource(DataSource):
    """A source of a table: a file, or a split of a data set of the hub."""

    path: InputFile | None = None
    """File, or `@stage/path`."""
    hub: HubDataset | None = None
    """Data set of the hub, owner/name or owner/name@revision; in place of `path`."""
    config: Annotated[str | None, UsedWith("hub")] = None
    """Configuration of the data set."""
    split: Annotated[str, UsedWith("hub")] = "train"
    """Split of the data set."""
    format: Annotated[Format | None, UsedWith("path")] = None
    """Format of the file; by its suffix (before `.gz`) when absent, where an unknown one means plain lines."""
    header: Annotated[bool, UsedWith("path")] = True
    """A CSV or TSV file begins with the names of its columns."""
    quoted: Annotated[bool, UsedWith("path")] = False
    """Fields of a TSV file may stand in quotes, as those of CSV do; else quotes are text."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.hub is None):
            raise ValueError("expected either `path` (a file) or `hub` (a data set), and exactly one of them")
        if self.path is not None:
            if self.format is None:
                refuse_no_lines(self.path)
            refuse_idle_header(self, [self.file_format])
        return self

    @property
    def name(self) -> str:
        """Its name in errors and rejects."""
        if self.path is not None:
            return str(self.path)
        return ":".join(filter(None, ["hub", self.hub, self.config, self.split]))

    @property
    def file_format(self) -> Format:
        return self.format or table_format(self.path or "")


class Table(TableSource):
    """A table from which records are read."""

    columns: Annotated[list[Column], Field(min_length=1, strict=False)] | None = None
    """Columns to read, by name or by position from 0; those that the reader expects when absent."""

    def tables_read(self) -> Sequence["Table"]:
        return [self] if self.columns else []


def table_format(path: str) -> Format:
    return FORMATS.get(inner_suffix(path), "lines")


def refuse_no_lines(path: str) -> None:
    """Raises ValueError for a file that is no table by its suffix, with what reads or converts it."""
    if remedy := NO_LINES.get(suffix := inner_suffix(path)):
        raise ValueError(
            f"expected lines of text or a table, found a {suffix} file: {path}; {remedy}. To read its lines all the "
            'same, give the format "lines"'
        )


def inner_suffix(path: str | Path) -> str:
    """The suffix in lower case; of `a.TSV.gz` it is `.tsv`."""
    inner = Path(path)
    return (inner.with_suffix("") if inner.suffix.lower() == ".gz" else inner).suffix.lower()


def refuse_idle_header(settings: Settings, formats: Sequence[Format]) -> None:
    """Raises ValueError for `header` or `quoted` in the settings of files none of which has them."""
    named = " and ".join(dict.fromkeys(formats))
    if "tsv" not in formats:
        refuse_idle(settings, "quoted", because=f"only tsv may have quotes or not, and this is read as {named}")
    if not {"csv", "tsv"}.intersection(formats):
        refuse_idle(
            settings, "header", because=f"only csv and tsv have one, and this is read as {named} (see `format`)"
        )


class Record(NamedTuple):
    """The values of the requested columns, with file and line.

    line: from 1, a header included; of a record over several lines the first; in Parquet and hub tables the row.
    """

    values: tuple[Any, ...]
    file: str
    line: int


@dataclass(unsafe_hash=True)
class Rejected(Exception):
    """A record that is not used: raised where it is parsed, and yielded in its place by readers.

    reason: one of a few phrases, by which rejects are counted. detail: more for an error, without any text of the row.
    file, line: its place, which the reader adds with `at` to what is raised.
    record: the id of the record, where a line does not identify it.
    values: those of the requested columns that could be read, for a reader that can use a part of them.
    is_fault: false for a sound record that is not read, such as a relation.
    """

    reason: str
    detail: str = ""
    file: str = ""
    line: int = 0
    record: str = ""
    values: tuple[Any, ...] = ()
    is_fault: bool = True

    def at(self, file: str, line: int, record: str = "") -> "Rejected":
        """A copy at this place; one that was raised would hold the variables of its traceback."""
        return replace(self, file=file, line=line, record=record)

    @property
    def place(self) -> str:
        """File and line, and the id of the record where a line may hold several."""
        return f"{self.file}, line {self.line:,}" + (f", record {self.record}" if self.record else "")

    @property
    def note(self) -> str:
        """The detail in brackets, behind a space; empty without one."""
        return f" ({self.detail})" if self.detail else ""

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}{self.note}"


Row = Record | Rejected


def column_names(record: dict[str, Any], depth: int = DEEPEST) -> list[str]:
    """The keys of `record`, then those of its nested objects, dotted, at most `depth` levels deep."""
    objects = [(key, value) for key, value in record.items() if depth and isinstance(value, dict)]
    return [*record, *(f"{key}.{inner}" for key, value in objects for inner in column_names(value, depth - 1))]


def reach(record: dict[str, Any], column: str) -> Any:
    """The value of `column`, dotted or not; None where it or an object that should contain it is missing."""
    if column in record:
        return record[column]
    outer, _, inner = column.partition(".")
    nested = record.get(outer)
    return reach(nested, inner) if inner and isinstance(nested, dict) else None


def find_columns(
    file: str, columns: Sequence[str | int], names: Sequence[str], may_be_record: bool = False
) -> list[int]:
    """The positions of `columns` among `names`. Raises RequestError for a missing one, with the names to choose from.

    may_be_record: `names` are the first row of a file, perhaps a record, which no error may quote.
    """
    for column in columns:
        if isinstance(column, int) and column >= len(names):
            raise RequestError(
                f"{file} has no column {column}: it has {len(names)}, counted from 0. Check the position and the "
                "format."
            )
        if isinstance(column, str) and column not in names:
            raise RequestError(f"{file} has no column {column!r}. {_choices(column, names, may_be_record)}")
        if may_be_record and isinstance(column, str) and names.count(column) > 1:
            raise RequestError(f"{file}: column {column!r} occurs more than once. Give its position.")
    return [column if isinstance(column, int) else names.index(column) for column in columns]


def find_optional(file: str, columns: Sequence[str], names: Sequence[str]) -> list[int | None]:
    """The positions of `columns` among `names` in any case; None for a missing one.

    Raises RequestError for a column that occurs more than once.
    """
    folded = [name.strip().casefold() for name in names]
    positions = {name: position for position, name in enumerate(folded)}
    if len(positions) < len(folded) and (twice := next((name for name in columns if folded.count(name) > 1), None)):
        raise RequestError(f"{file}: expected one column {twice!r} (in any case), found several. Rename the others.")
    return list(map(positions.get, columns))


def _choices(column: str, names: Sequence[str], may_be_record: bool) -> str:
    near = [name for name in names if name.casefold() == column.casefold()]
    if not may_be_record and not all(map(COLUMN_NAME.fullmatch, names)):  # keys that may be text of a record
        return f"It has {len(names)}, under names that may be text and are not shown."
    if not may_be_record:
        near = near or get_close_matches(column, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    if any(name.startswith('"') for name in names):
        hint = " They stand in quotes: read it with quoted = true (--quoted)."
    if len(names) == 1 and (other := re.search(r"[;\t|]", names[0])):
        hint = f" It has {other[0]!r} between them perhaps: write it with commas, or with tabs as .tsv."
    if may_be_record:
        usual = [name for name in names if USUAL_NAME.fullmatch(name)]
        near = near or get_close_matches(column, usual, n=1)
        hint = hint or (f" Did you mean {near[0]!r}?" if near else "")
        among = f" ({', '.join(usual[:COLUMNS_SHOWN])} among them)" if usual else ""
        return (
            f"A header was expected in its first row, found {len(names)} columns of other names{among}.{hint} Name "
            "columns that are there; if that row is a record, read the file without a header (header = false, of a "
            "command --no-header) and its columns by position, from 0."
        )
    more = ", …" if len(names) > COLUMNS_SHOWN else ""
    return f"Its columns are {', '.join(names[:COLUMNS_SHOWN])}{more}.{hint}"
