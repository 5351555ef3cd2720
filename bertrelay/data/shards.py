"""Sharded outputs: numbered shards that survive a kill, are shared by processes, and then become one file.

    OUTPUT.partial/manifest.json    describes what is computed; another model or input restarts
    OUTPUT.partial/000000.jsonl     a shard, written beside and renamed: whole or absent

Knows no executor: `bertrelay.inference.run_model` fills shards. Loads neither torch nor NumPy.
"""

import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from bertrelay.data.writing import write_lines
from bertrelay.errors import RequestError, WorkError
from bertrelay.files import WRITING, atomic_write, read_json, refuse_symlink, write_error, write_json
from bertrelay.locks import locked_output
from bertrelay.privacy import close_if_sensitive
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, check_shared
from bertrelay.progress import log

MANIFEST = "manifest.json"

AnyRecord = TypeVar("AnyRecord")
Content = TypeVar("Content", contravariant=True)


class Span(NamedTuple):
    """The items [first, end) of an input, which become one shard. size: what its progress is counted in."""

    first: int
    end: int
    size: int


def cut_spans(items: Iterable[tuple[int, int]], limit: int) -> list[Span]:
    """Cuts items of (weight, size) into spans; a span ends with the item that brings its weight to `limit`.

    Weights 3, 1, 4 with sizes 1, 1, 1 and a limit of 4 make [Span(0, 2, 2), Span(2, 3, 1)].
    """
    spans, first, end, weight, size = list[Span](), 0, 0, 0, 0
    for end, (item_weight, item_size) in enumerate(items, 1):
        weight, size = weight + item_weight, size + item_size
        if weight >= limit:
            spans.append(Span(first, end, size))
            first, weight, size = end, 0, 0
    return spans if first == end else [*spans, Span(first, end, size)]


def even_spans(count: int, step: int) -> list[Span]:
    """Cuts `count` items into spans of `step` items; the last one may be shorter."""
    return [Span(first, min(first + step, count), min(step, count - first)) for first in range(0, count, step)]


class SpanReader(Generic[AnyRecord]):
    """Reads the records of one span after the other. Rising spans take one pass; an earlier span begins another.

    records: begins a pass. source: the name of the file in errors.
    size: progress units of one record, where they must add up to the size of the span.
    """

    def __init__(
        self,
        records: Callable[[], Iterator[AnyRecord]],
        source: str | Path,
        size: Callable[[AnyRecord], int] | None = None,
    ) -> None:
        self._begin, self._source, self._size = records, source, size
        self._records: Iterator[AnyRecord] = iter(())
        self._position: int | None = None

    def read(self, span: Span) -> list[AnyRecord]:
        """Reads the records of `span`.

        Raises WorkError where the source has fewer records than before, or their sizes add up to another size.
        """
        if self._position is None or span.first < self._position:
            self._records, self._position = self._begin(), 0
        records = list(islice(self._records, span.first - self._position, span.end - self._position))
        self._position = span.end
        is_short = len(records) < span.end - span.first
        if is_short or (self._size and sum(map(self._size, records)) != span.size):
            change = "became shorter" if is_short else "changed"
            raise WorkError(f"{self._source} {change} while it was read; run the same command again")
        return records


class ShardStore(ABC, Generic[Content]):
    """Holds a shard for each of `spans`, in a folder or a store that all processes and workers see.

    process_group: the processes that share the work.
    """

    def __init__(self, spans: Sequence[Span], process_group: ProcessGroup = SINGLE_PROCESS) -> None:
        self.spans, self.process_group = spans, process_group

    @property
    @abstractmethod
    def location(self) -> str:
        """The folder or address, for errors."""

    @abstractmethod
    def is_visible(self) -> bool:
        """True if this process, perhaps on another node, sees the folder or store."""

    @abstractmethod
    def missing(self) -> list[int]:
        """Lists the numbers of the shards that are not written, in order."""

    def still_missing(self) -> int:
        """Counts the shards that are missing after all have been written; a store may list them late."""
        return len(self.missing())

    @abstractmethod
    def write(self, number: int, content: Content, writer: str = "") -> None:
        """Writes a shard, whole or not at all. writer: names the worker, where several may write the same shard."""


class ShardFiles(ShardStore[Any]):
    """Keeps the shards of `output` as files of a folder beside it, until they are assembled.

    suffix, write: the suffix of a shard, and the function that writes its content to a path.
    """

    def __init__(
        self,
        output: Path,
        spans: Sequence[Span],
        process_group: ProcessGroup = SINGLE_PROCESS,
        suffix: str = ".jsonl",
        write: Callable[[Path, Any], None] = write_lines,
    ) -> None:
        super().__init__(spans, process_group)
        self.suffix = suffix
        self._write = write
        self._manifest: dict[str, object] | None = None
        self.folder = output.with_name(output.name + ".partial")

    @property
    def location(self) -> str:
        return str(self.folder)

    def is_visible(self) -> bool:
        return read_json(self.folder / MANIFEST) == self._manifest

    def begin(self, manifest: dict[str, object]) -> None:
        """Makes the folder, or resumes one of the same manifest; one of another manifest restarts.

        Returns when every process sees the main process's folder. Raises RequestError for a folder with other
        content, for a symbolic link, and where the processes do not share the folder.
        """
        self._manifest = manifest
        if self.process_group.is_main:
            self._make_folder(manifest)
        check_shared(self.folder, self.process_group)

    def _make_folder(self, manifest: dict[str, object]) -> None:
        _check_ours(self.folder)
        try:
            if self.folder.is_dir() and (earlier := read_json(self.folder / MANIFEST)) != manifest:
                if earlier is not None:
                    log(f"{self.folder} is of another model or input: restarting")
                _remove(self.folder)
            self.folder.mkdir(exist_ok=True)
            close_if_sensitive(self.folder)
            write_json(self.folder / MANIFEST, manifest)
        except OSError as error:
            raise write_error(self.folder, error) from error

    def path(self, number: int) -> Path:
        return self.folder / f"{number:06}{self.suffix}"

    def missing(self) -> list[int]:
        # One listing is up to date on a network disk, where a single name may be remembered as absent.
        names = set(os.listdir(self.folder))  # noqa: PTH208
        return [number for number in range(len(self.spans)) if self.path(number).name not in names]

    def complete(self) -> list[Path]:
        """Lists the files of all shards, in order. Raises WorkError where one is missing."""
        if missing := self.missing():
            raise WorkError(
                f"{self.folder}: expected all {len(self.spans):,} shards, {len(missing):,} are missing; run the same "
                "command again"
            )
        return [self.path(number) for number in range(len(self.spans))]

    def rows(self, numbers: Iterable[int] | None = None) -> Iterator[dict[str, Any]]:
        """Streams the rows of shards of JSON lines, in order: of all shards, or of those with these `numbers`."""
        for path in self.complete() if numbers is None else map(self.path, numbers):
            with path.open(encoding="utf-8") as lines:
                yield from map(json.loads, lines)

    def join(self, output: Path) -> None:
        """Writes `output` from the bytes of all shards, in order."""
        with atomic_write(output) as building, building.open("wb") as file:
            for path in self.complete():
                with path.open("rb") as shard:
                    shutil.copyfileobj(shard, file)

    def write(self, number: int, content: Any, writer: str = "") -> None:
        with atomic_write(self.path(number), writer, is_result=False) as building:
            self._write(building, content)

    def remove(self) -> None:
        """Removes the folder, when its shards are assembled or no longer wanted."""
        if self.folder.is_dir():
            _remove(self.folder)


def work_beside(output: Path) -> Path:
    """The folder of what is computed before `output` is written."""
    return output.with_name(output.name + ".work")


@contextmanager
def work_folder(output: Path, process_group: ProcessGroup = SINGLE_PROCESS, keep: Path | None = None) -> Iterator[Path]:
    """Locks `output`, and gives the folder of what is computed before it is written, from which another call resumes.

    keep: this folder, never removed. None: `work_beside(output)`, removed on success; after an error it stays only if
        it holds vectors, which take hours.
    Raises RequestError as `locked_output`, and for a folder beside `output` that has other content.
    """
    beside = work_beside(output)
    folder = keep or beside
    with locked_output(output, process_group):
        if process_group.is_main:
            if folder == beside:
                _check_ours(folder)
            try:
                folder.mkdir(parents=True, exist_ok=True)
                close_if_sensitive(folder)
                if folder == beside:
                    write_json(folder / MANIFEST, {"output": output.name})
            except OSError as error:
                raise write_error(folder, error) from error
        is_removed = process_group.is_main and keep is None
        try:
            yield folder
        except BaseException:
            if is_removed and not any(folder.rglob("*.npy*")):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        if is_removed:
            _remove(folder)


def _check_ours(folder: Path) -> None:
    """Raises RequestError for a symbolic link, and for a folder with content that no call has written."""
    refuse_symlink(folder)
    if folder.exists() and not _is_ours(folder):
        raise RequestError(
            f"{folder}: expected nothing, or what an unfinished call left there, found something else. Move it away, "
            "or name another output."
        )


def _remove(folder: Path) -> None:
    """Removes a folder under another name, so that a worker taken for lost can write no further file into it."""
    removed = folder.with_name(f".{folder.name}{WRITING}-removed")
    shutil.rmtree(removed, ignore_errors=True)  # of a killed call
    folder.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def _is_ours(folder: Path) -> bool:
    """True for a folder that a call made; one killed before it wrote the manifest has left only hidden files."""
    return folder.is_dir() and (
        (folder / MANIFEST).is_file() or all(path.name.startswith(".") for path in folder.iterdir())
    )
