"""Parquet datasets of many files, on this machine or in an object store, read and written in shards.

    OUTPUT/part-00042.parquet        the rows of a shard, in their order; column `row` counts them over the whole input
    OUTPUT/_shards/KEY-00042-BYTES   an empty file: this shard is whole, and is so long
    OUTPUT/_manifest.json            what is computed; another model or input restarts
    OUTPUT/_SUCCESS                  all shards are there

Nothing is renamed, as object stores cannot. Readers of datasets leave out names that begin with an underscore.
"""

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from bertrelay.data.shards import ShardStore, Span
from bertrelay.data.tables import BLOCK_SENTENCES, Record, table_format
from bertrelay.errors import RequestError, WorkError
from bertrelay.files import NO_SPACE, atomic_write, sync
from bertrelay.fingerprint import fingerprint, visible_files
from bertrelay.inputs import changed, check_inputs, note_input
from bertrelay.locks import locked_output
from bertrelay.privacy import close_if_sensitive, is_sensitive
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, check_shared, on_main
from bertrelay.progress import log

HIDDEN = re.compile(r"(^|/)[_.]")
URL = re.compile(r"[a-z][a-z0-9+.-]*://")
PARQUET, ROW = ".parquet", "row"
SHARD_ROWS = 100_000
FILES_AT_ONCE = 16
MANIFEST, SUCCESS, MARKERS, UNFINISHED = "_manifest.json", "_SUCCESS", "_shards", "_unfinished-"
MANIFEST_KEY = "spans"  # which the manifests of all our datasets have
LISTED_SECONDS = 30.0
"""How long a store may take to list what has been written to it."""


def is_address(name: str) -> bool:
    """True for an address, such as `s3://bucket/folder`."""
    return bool(URL.match(name))


def is_dataset(name: str) -> bool:
    """True for an input or output that is a dataset and no file: a URL, a folder, or a name that ends in `/`."""
    return is_address(name) or name.endswith("/") or (name != "" and os.path.isdir(name))  # noqa: PTH112 (raises)


def writes_dataset(source: str, output: str) -> bool:
    """True if the output is a dataset and the input Parquet: an address, a file, or a folder with one."""
    path = Path(source)
    is_parquet = _is_parquet(source) or (path.is_dir() and any(map(_is_parquet, map(str, visible_files(path)))))
    return is_address(output) or (is_dataset(output) and (is_address(source) or is_parquet))


def _is_parquet(name: str) -> bool:
    return table_format(name) == "parquet"


def check_outside(output: str | Path, source: str | Path) -> None:
    """Raises RequestError for an output in the folder of its input, of which it would be read as a part."""
    inner, outer = (
        Path(name) if is_address(name) else Path(os.path.expanduser(name)).resolve()  # noqa: PTH111
        for name in map(_without_options, (str(output), str(source)))
    )
    if inner.is_relative_to(outer):
        raise RequestError(f"output: expected a folder outside of the input {source}, found {output}; name another")


def _without_options(url: str) -> str:
    """Cuts the options after `?` off an address; in a path `?` is a letter."""
    return url.partition("?")[0] if is_address(url) else url


@dataclass(frozen=True)
class Location:
    """A folder on this machine, or an address such as `s3://bucket/folder`; a process opens it when it needs it.

    Addresses are those of pyarrow's file systems, else of fsspec.
    """

    url: str

    @cached_property
    def _opened(self) -> tuple[fs.FileSystem, str]:
        if not URL.match(self.url):
            return fs.LocalFileSystem(), str(Path(os.path.expanduser(self.url)).absolute())  # noqa: PTH111 (raises)
        from fsspec.core import url_to_fs

        with self.errors("opened"):
            try:
                filesystem, path = fs.FileSystem.from_uri(self.url)
            except pa.ArrowInvalid:  # none of pyarrow's own
                try:
                    opened, path = url_to_fs(self.url)
                except (ValueError, ImportError) as error:
                    raise OSError(str(error)) from error
                filesystem = fs.PyFileSystem(fs.FSSpecHandler(opened))
        return filesystem, path.rstrip("/")

    def __getstate__(self) -> dict[str, str]:
        return {"url": self.url}

    @property
    def filesystem(self) -> fs.FileSystem:
        return self._opened[0]

    def path(self, *names: str) -> str:
        """A path of its file system."""
        return "/".join([self._opened[1], *names])

    @property
    def is_local(self) -> bool:
        return isinstance(self.filesystem, fs.LocalFileSystem)

    @contextmanager
    def errors(self, action: str) -> Iterator[None]:
        """Turns whatever a store refuses into one error that names it. action: `written`, `read`, … in the error."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            may_quote = is_sensitive() and not isinstance(error, OSError)  # as Arrow does what it cannot convert
            first = type(error).__name__ if may_quote else (str(error).splitlines() or [type(error).__name__])[0]
            kind = WorkError if getattr(error, "errno", None) in NO_SPACE else RequestError
            where, rights = ("the address", "credentials, ") if is_address(self.url) else ("that it is whole", "")
            raise kind(
                f"{self.url} cannot be {action}: {first}. Check {where}, that it is there, and that you may do so "
                f"({rights}permissions, space); the same command resumes"
            ) from error

    def names(self, folder: str = "") -> dict[str, fs.FileInfo]:
        """The files of a folder of it by their names; none where there is no such folder."""
        entries = self._listed(self.path(folder) if folder else self.path())
        return {entry.base_name: entry for entry in entries if entry.type == fs.FileType.File}

    def foreign_entries(self) -> int:
        """Counts the files and folders that no call which was killed before its manifest was whole has left."""
        ours = (MARKERS, UNFINISHED, f".{MANIFEST}")
        return sum(not entry.base_name.startswith(ours) for entry in self._listed())

    def _listed(self, path: str | None = None, recursive: bool = False) -> list[fs.FileInfo]:
        selector = fs.FileSelector(path or self.path(), allow_not_found=True, recursive=recursive)
        with self.errors("listed"):
            entries: list[fs.FileInfo] = self.filesystem.get_file_info(selector)
        return entries

    def files_below(self) -> dict[str, fs.FileInfo]:
        """All files below it by their paths from here, also links to nothing, without names that begin with _ or ."""
        if self.is_local:  # Arrow does not list links to nothing
            with self.errors("listed"):
                entries = self.filesystem.get_file_info([str(path) for path in visible_files(Path(self.path()))])
        else:
            entries = [entry for entry in self._listed(recursive=True) if entry.type != fs.FileType.Directory]
        named = {entry.path.removeprefix(f"{self.path()}/"): entry for entry in entries}
        return {path: named[path] for path in sorted(named) if not HIDDEN.search(path)}

    def read(self, name: str) -> bytes | None:
        """The content of a small file; None where there is none."""
        with self.errors("read"):
            if self.filesystem.get_file_info(self.path(name)).type != fs.FileType.File:
                return None
            with self.filesystem.open_input_file(self.path(name)) as file:
                content: bytes = file.read()
                return content

    def write(self, name: str, content: bytes) -> None:
        """Writes a small file, whole or not at all."""
        with self.errors("written"):
            if self.is_local:
                with atomic_write(Path(self.path(name)), is_result=False) as building:
                    building.write_bytes(content)
            else:
                with self.filesystem.open_output_stream(self.path(name)) as file:
                    file.write(content)


@dataclass(frozen=True)
class RowGroups:
    """Row groups [first, end) of a file, which become one shard; `row` is the number of their first row."""

    file: str
    first: int
    end: int
    row: int
    rows: int


class ParquetInput:
    """The rows of all Parquet files below a folder or address, in the order of their paths, or of one file.

    texts: the columns of text that are computed from. keep: further columns that are read. added: the columns that the
        output has besides, if any, whose names these may not have.
    Raises RequestError where there is no Parquet file or column, for columns of other types, and for a text that is
    missing, if the files' statistics say so.
    """

    def __init__(
        self, url: str | Path, texts: Sequence[str], keep: Sequence[str] = (), added: Sequence[str] = ()
    ) -> None:
        self.location, self.texts, self.keep = Location(str(url)), list(texts), list(keep)
        self.name, self.columns = str(url), [*keep, *texts]
        if added and (taken := {ROW, *added}.intersection([*texts, *keep])):
            raise RequestError(f"{', '.join(taken)}: the output has a column of that name; rename that of the input")
        note_input(self.name, self._state)
        files = self._files()
        with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
            footers = list(pool.map(self._footer, files.values()))
        self.names = footers[0].schema.to_arrow_schema().names  # of all columns
        self.schema = self._schema(list(files.values()), footers)
        for file, footer in zip(files.values(), footers, strict=True):
            self._check_texts(file, footer)
        self.row_groups = list(self._row_groups(list(files.values()), footers))
        self.rows = sum(groups.rows for groups in self.row_groups)
        if not self.rows:
            raise RequestError(f"{url}: expected rows, found {len(files):,} Parquet files without any")
        shapes = [[footer.row_group(i).num_rows for i in range(footer.num_row_groups)] for footer in footers]
        stated = zip(files.items(), shapes, strict=True)
        facts = [[name, file.size, file.mtime_ns, shape] for (name, file), shape in stated]
        self.digest = fingerprint({"files": facts, "texts": self.texts, "keep": self.keep})

    def _state(self) -> list[tuple[str, int, int]]:
        """Gives what must stay the same while the input is read: its files, their sizes and times."""
        return [(name, file.size, file.mtime_ns) for name, file in self._files().items()]

    def _files(self) -> dict[str, fs.FileInfo]:
        """The Parquet files by their paths in the folder, in order."""
        with self.location.errors("read"):
            whole = self.location.filesystem.get_file_info(self.location.path())
        if whole.type == fs.FileType.File:
            return {whole.base_name: whole}
        listed = self.location.files_below()
        files = {path: file for path, file in listed.items() if _is_parquet(path)}
        if not files and whole.type == fs.FileType.NotFound:
            raise RequestError(f"there is no folder {self.location.url}. Check the path")
        if not files:
            raise RequestError(f"{self.location.url}: expected Parquet files, found none and {len(listed):,} others")
        if broken := [file.path for file in files.values() if file.type != fs.FileType.File]:
            raise RequestError(f"{broken[0]}: expected a Parquet file, found a link to nothing or no file; remove it")
        return files

    def _footer(self, file: fs.FileInfo) -> pq.FileMetaData:
        with self.location.errors(f"read ({file.base_name})"):
            try:
                return pq.read_metadata(file.path, filesystem=self.location.filesystem)
            except UnicodeDecodeError as error:
                raise RequestError(
                    f"{file.path}: expected names of columns in UTF-8, found other bytes; write the file again"
                ) from error
            except pa.ArrowInvalid as error:
                raise RequestError(
                    f"{file.path}: expected a Parquet file, as a dataset is made of them, found a damaged one or "
                    "another format. Copy it again, or give a file as output and not a dataset"
                ) from error

    @staticmethod
    def _check_unicode(groups: RowGroups, texts: pa.ChunkedArray) -> None:
        """Raises RequestError for text that is not UTF-8; the format does not see to it."""
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid:
            raise RequestError(
                f"{groups.file}, row groups {groups.first} to {groups.end - 1}: expected text in UTF-8, found other "
                "bytes; write the file again from text that was decoded"
            ) from None

    def _schema(self, files: Sequence[fs.FileInfo], footers: Sequence[pq.FileMetaData]) -> pa.Schema:
        """The columns that are read, which all files have."""
        first = footers[0].schema.to_arrow_schema()
        for file, footer in zip(files, footers, strict=True):
            schema = footer.schema.to_arrow_schema()
            for name in (*self.texts, *self.keep):
                if schema.names.count(name) != 1:
                    names = ", ".join(schema.names)
                    raise RequestError(f"{file.path}: expected a column {name!r}, found {names}")
                if self._kind(schema, name) != self._kind(first, name):
                    raise RequestError(
                        f"{file.path}: expected {name} to be {self._kind(first, name)} as in {files[0].base_name}, "
                        f"found {schema.field(name).type}"
                    )
        for name in self.texts:
            if not (pa.types.is_string(kind := self._kind(first, name)) or pa.types.is_large_string(kind)):
                raise RequestError(f"{files[0].path}: expected {name} to be text, found {kind}; name a column of text")
        return pa.schema([pa.field(name, self._kind(first, name)) for name in dict.fromkeys(self.columns)])

    def _kind(self, schema: pa.Schema, name: str) -> pa.DataType:
        """The type that a column is read as: text is text, however a file has it."""
        kind = schema.field(name).type
        if name in self.texts and pa.types.is_dictionary(kind):
            kind = kind.value_type
        return pa.string() if name in self.texts and pa.types.is_string_view(kind) else kind

    def _check_texts(self, file: fs.FileInfo, footer: pq.FileMetaData) -> None:
        """Raises RequestError where the file's statistics count a text that is missing."""
        schema = footer.schema.to_arrow_schema()
        ends = accumulate(map(_leaves, schema.types))  # a file has the columns inside structs, and not these
        columns = [end - 1 for name, end in zip(schema.names, ends, strict=True) if name in self.texts]
        for group in range(footer.num_row_groups):
            for chunk in map(footer.row_group(group).column, columns):
                if chunk.statistics is not None and chunk.statistics.null_count:
                    raise RequestError(
                        f"{file.path}, row group {group}: expected text in {chunk.path_in_schema!r}, found none in "
                        f"{chunk.statistics.null_count:,} of {footer.row_group(group).num_rows:,} rows; leave such "
                        "rows out"
                    )

    @staticmethod
    def _row_groups(files: Sequence[fs.FileInfo], footers: Sequence[pq.FileMetaData]) -> Iterator[RowGroups]:
        """Row groups of a file, as many as bring a shard to SHARD_ROWS."""
        row = 0
        for file, footer in zip(files, footers, strict=True):
            first, rows = 0, 0
            for group in range(footer.num_row_groups):
                rows += footer.row_group(group).num_rows
                if rows and (rows >= SHARD_ROWS or group + 1 == footer.num_row_groups):
                    yield RowGroups(file.path, first, group + 1, row, rows)
                    first, row, rows = group + 1, row + rows, 0

    @property
    def spans(self) -> list[Span]:
        """The rows of each shard."""
        return [Span(groups.row, groups.row + groups.rows, groups.rows) for groups in self.row_groups]

    def records(self) -> Iterator[Record]:
        """All rows of the columns in the order of `columns`, with the file and, from 1, the number of the row in it."""
        first_rows = dict[str, int]()
        for groups, span in zip(self.row_groups, self.spans, strict=True):
            first = first_rows.setdefault(groups.file, groups.row)
            for block in self.blocks(span):
                rows = zip(*(block[name].to_pylist() for name in (ROW, *self.columns)), strict=True)
                for row, *values in rows:
                    yield Record(tuple(values), groups.file, row - first + 1)

    def blocks(self, span: Span) -> Iterator[pa.Table]:
        """The rows of a shard as tables of BLOCK_SENTENCES, with their numbers in the column `row`; reads nothing else.

        Raises RequestError for a text that is missing, with file and row.
        """
        groups = next(groups for groups in self.row_groups if groups.row == span.first)
        with (
            self.location.errors(f"read ({groups.file})"),
            pq.ParquetFile(groups.file, filesystem=self.location.filesystem, pre_buffer=True) as file,
        ):
            row = groups.row
            for batch in file.iter_batches(
                BLOCK_SENTENCES, row_groups=list(range(groups.first, groups.end)), columns=self.schema.names
            ):
                table = pa.Table.from_batches([batch]).select(self.schema.names).cast(self.schema)
                for texts in map(table.column, self.texts):
                    self._check_unicode(groups, texts)
                    if texts.null_count:
                        position = row - groups.row + texts.is_null().index(True).as_py()
                        raise RequestError(
                            f"{groups.file}, row {position + 1:,} of row groups {groups.first} to {groups.end - 1}: "
                            "expected text, found none; leave such rows out"
                        )
                rows = pa.array(range(row, row + len(batch)), pa.int64())
                yield table.add_column(0, ROW, rows)
                row += len(batch)
        if row != span.end:
            raise changed(groups.file)


def _leaves(kind: pa.DataType) -> int:
    """Counts the columns that a file has for a column of this type."""
    return sum(_leaves(kind.field(position).type) for position in range(kind.num_fields)) if kind.num_fields else 1


class DatasetShards(ShardStore[Iterable[pa.Table]]):
    """Writes the shards of a Parquet dataset, each from tables.

    url: a folder or an address. schema: of every shard.
    """

    def __init__(
        self, url: str, spans: Sequence[Span], schema: pa.Schema, process_group: ProcessGroup = SINGLE_PROCESS
    ) -> None:
        super().__init__(spans, process_group)
        self._location, self._schema, self._key = Location(url), schema, ""

    @property
    def location(self) -> str:
        return self._location.url

    def is_visible(self) -> bool:
        return not self._poll(lambda: _key_of(self._manifest()) != self._key)

    def is_finished(self, manifest: dict[str, object]) -> bool:
        """True if all shards of this manifest are written already."""
        self._key = _key_of(manifest)
        return self._manifest() == manifest and SUCCESS in self._location.names() and not self.missing()

    def begin(self, manifest: dict[str, object], overwrite: bool = False) -> None:
        """Makes the folder, or resumes one of the same manifest; one of another restarts.

        overwrite: a finished one too, which is an error otherwise.
        Raises RequestError for a folder that has anything else in it, and where it may not be written.
        """
        self._key = _key_of(manifest)
        on_main(lambda: self._make(manifest, overwrite), self.process_group)
        if self._location.is_local:
            check_shared(Path(self._location.path()), self.process_group)

    def _make(self, manifest: dict[str, object], overwrite: bool) -> None:
        manifest_there, names = self._manifest(), self._location.names()
        if manifest_there is None and (others := self._location.foreign_entries()):
            raise RequestError(
                f"{self.location}: expected nothing, or what an unfinished call left there, found {others:,} files or "
                "folders and no manifest of one. Name another output, or move them away"
            )
        if manifest_there == manifest:
            self._remove([SUCCESS])  # a shard was removed or damaged since
        elif manifest_there is not None:
            if SUCCESS in names and not overwrite:
                raise RequestError(
                    f"{self.location} is a finished dataset of another model or input; overwrite it, or name another"
                )
            log(f"{self.location} is of another model or input: restarting")
            shards = (name for name in names if re.fullmatch(r"part-\d+\.parquet", name))
            self._remove([SUCCESS, *(f"{MARKERS}/{name}" for name in self._location.names(MARKERS)), *shards])
        with self._location.errors("written"):
            self._location.filesystem.create_dir(self._location.path(MARKERS), recursive=True)
            if self._location.is_local:
                close_if_sensitive(Path(self._location.path()))
        if manifest_there != manifest:
            self._location.write(MANIFEST, json.dumps(manifest, indent=2).encode())

    def _manifest(self) -> dict[str, object] | None:
        """The manifest of one of our datasets; None where there is none, also where another program's is."""
        content = self._location.read(MANIFEST) or b"null"
        try:
            manifest = json.loads(content)
        except (ValueError, RecursionError):
            return None
        return manifest if isinstance(manifest, dict) and MANIFEST_KEY in manifest else None

    def _remove(self, names: Iterable[str]) -> None:
        with self._location.errors("written"):
            for name in names:
                if self._location.filesystem.get_file_info(self._location.path(name)).type == fs.FileType.File:
                    self._location.filesystem.delete_file(self._location.path(name))

    def _name(self, number: int) -> str:
        return f"part-{number:05}{PARQUET}"

    def missing(self) -> list[int]:
        """The numbers of the shards that are not there, or not as long as a marker states, in order."""
        marked = re.compile(rf"{self._key}-(\d+)-(\d+)")
        markers = (marked.fullmatch(name) for name in self._location.names(MARKERS))
        stated = {(int(match[1]), int(match[2])) for match in markers if match}  # several where one was written again
        files = self._location.names()
        whole = {number for number, size in stated if (file := files.get(self._name(number))) and file.size == size}
        return [number for number in range(len(self.spans)) if number not in whole]

    def still_missing(self) -> int:
        return self._poll(lambda: len(self.missing()))

    def _poll(self, left: Callable[[], int]) -> int:
        """Counts with `left` until it is 0, or for LISTED_SECONDS: a store may list late what has been written."""
        until = time.monotonic() + LISTED_SECONDS
        while (count := left()) and not self._location.is_local and time.monotonic() < until:
            time.sleep(1)
        return count

    def write(self, number: int, content: Iterable[pa.Table], writer: str = "") -> None:
        """Writes a shard from its tables, then its marker.

        It is written to a file here first, so that a store gets it whole or not at all.
        """
        name, local = self._name(number), self._location.is_local
        errors = partial(self._location.errors, f"written ({name})")
        with errors():
            beside = self._location.path() if local else None
            folder = tempfile.TemporaryDirectory(dir=beside, prefix=UNFINISHED + writer)
        with folder:
            building = Path(folder.name) / name
            rows = self._build(building, content, errors)
            if rows != self.spans[number].size:
                raise WorkError(f"{self.location}/{name}: expected {self.spans[number].size:,} rows, found {rows:,}")
            size = building.stat().st_size
            with errors():
                if local:
                    sync(building)
                    building.replace(self._location.path(name))
                else:
                    store = self._location.filesystem
                    fs.copy_files(str(building), self._location.path(name), fs.LocalFileSystem(), store)
        self._location.write(f"{MARKERS}/{self._key}-{number:05}-{size}", b"")

    def _build(
        self, path: Path, content: Iterable[pa.Table], errors: Callable[[], AbstractContextManager[None]]
    ) -> int:
        """Writes a Parquet file with a row group of each table; its rows. errors: around what is done with the file."""
        with errors():
            file, rows = pq.ParquetWriter(path, self._schema), 0
        try:
            for table in content:
                with errors():
                    file.write_table(table.cast(self._schema))
                rows += len(table)
        finally:
            with errors():
                file.close()
        return rows

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps a folder of this machine to one call; a store has no lock."""
        if not self._location.is_local:
            yield
            return
        folder = Path(self._location.path())
        with self._location.errors("written"):
            folder.parent.mkdir(parents=True, exist_ok=True)
        with locked_output(folder, self.process_group):
            yield

    def finish(self) -> None:
        """Counts the rows of all shards, then says that they are whole.

        Raises WorkError where any is not, and where an input has changed.
        """
        check_inputs()
        for number, span in enumerate(self.spans):
            with self._location.errors(f"read ({self._name(number)})"):
                path = self._location.path(self._name(number))
                rows = pq.read_metadata(path, filesystem=self._location.filesystem).num_rows
            if rows != span.size:
                raise WorkError(f"{self.location}/{self._name(number)}: expected {span.size:,} rows, found {rows:,}")
        self._location.write(SUCCESS, json.dumps({"rows": sum(span.size for span in self.spans)}).encode())
        if self._location.is_local:  # what was written when a process was killed
            for left in Path(self._location.path()).glob(f"{UNFINISHED}*"):
                shutil.rmtree(left, ignore_errors=True)


def _key_of(manifest: dict[str, object] | None) -> str:
    """Gives the prefix of the markers of this manifest's shards."""
    return "" if manifest is None else fingerprint(manifest)[:16]
