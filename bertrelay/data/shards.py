"""Sharded outputs: numbered shards survive a kill and are shared by processes, then become one file.

    OUTPUT.partial/manifest.json    what is computed; another model or input restarts
    OUTPUT.partial/000000.jsonl     a shard, written beside and renamed: whole or absent

Loads neither torch nor NumPy.
"""

import json
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from filelock import FileLock, Timeout

from bertrelay.compute.engine import LOCAL_ENGINE, Engine
from bertrelay.data.writing import json_line as json_line
from bertrelay.data.writing import write_lines as write_lines
from bertrelay.device import release_memory
from bertrelay.errors import RequestError, WorkError
from bertrelay.files import atomic_write, read_json, refuse_symlink, write_error, write_json
from bertrelay.privacy import apply_umask, is_sensitive
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, check_shared, gather, wait_for_all
from bertrelay.progress import Bar, log, progress

MANIFEST = "manifest.json"

AnyRecord = TypeVar("AnyRecord")
Compute = Callable[[Any, Bar], Iterator[Any]]
"""Gives the contents of the shards of some spans, in order, or of what was read of each; advances the bar by their
sizes."""


class Span(NamedTuple):
    """The items [first, end) of an input, which become one shard. size: what its progress is counted in."""

    first: int
    end: int
    size: int


def cut_spans(items: Iterable[tuple[int, int]], limit: int) -> list[Span]:
    """The spans of items of which each gives (weight, size); one ends with the item that brings it to `limit`."""
    spans, first, end, weight, size = list[Span](), 0, 0, 0, 0
    for end, (item_weight, item_size) in enumerate(items, 1):
        weight, size = weight + item_weight, size + item_size
        if weight >= limit:
            spans.append(Span(first, end, size))
            first, weight, size = end, 0, 0
    return spans if first == end else [*spans, Span(first, end, size)]


class Filled(NamedTuple):
    """What `Shards.fill` computed: the size of the shards that were missing, and the seconds it took."""

    size: int
    seconds: float

    @property
    def rate(self) -> float | None:
        """Size in a second; None where nothing was missing."""
        return self.size / self.seconds if self.size else None


class SpanReader(Generic[AnyRecord]):
    """The records of one span after the other. Spans that rise are read in one pass; an earlier one begins another.

    records: begins a pass. source: what errors call the file.
    size: of a record, where a span's size is the sum of its records'.
    """

    def __init__(
        self,
        records: Callable[[], Iterator[AnyRecord]],
        source: str | Path,
        size: Callable[[AnyRecord], int] | None = None,
    ) -> None:
        self._begin, self._source, self._size = records, source, size
        self._records: Iterator[AnyRecord] = iter(())
        self._place: int | None = None

    def read(self, span: Span) -> list[AnyRecord]:
        """The records of `span`.

        Raises WorkError where the source has fewer than before, or records of another size in all.
        """
        if self._place is None or span.first < self._place:
            self._records, self._place = self._begin(), 0
        records = list(islice(self._records, span.first - self._place, span.end - self._place))
        self._place = span.end
        is_short = len(records) < span.end - span.first
        if is_short or (self._size and sum(map(self._size, records)) != span.size):
            how = "became shorter" if is_short else "changed"
            raise WorkError(f"{self._source} {how} while it was read; run the same command again")
        return records


class SpanOutputs(ABC):
    """What is computed span by span, by processes and workers that share a folder or a store.

    process_group: process r of n computes every n-th missing span. All of them see one folder or store.
    engine: where they are computed, if not here; the process is connected to it when it fills.
    """

    def __init__(self, spans: Sequence[Span], process_group: ProcessGroup, engine: Engine) -> None:
        self.spans, self.process_group, self.engine = spans, process_group, engine

    @property
    @abstractmethod
    def location(self) -> str:
        """Where they are, for errors."""

    @abstractmethod
    def is_visible(self) -> bool:
        """Whether this process, perhaps on another node, sees where they are written."""

    @abstractmethod
    def missing(self) -> list[int]:
        """The numbers of the spans whose output is not there, in order."""

    def absent(self) -> int:
        """How many are missing when each has been written."""
        return len(self.missing())

    @abstractmethod
    def write(self, number: int, content: Any, writer: str = "") -> None:
        """Writes the output of a span, whole or not at all. writer: names who writes, where others may too."""

    def fill(
        self,
        start: Callable[[], Compute],
        description: str,
        unit: str,
        read: Callable[[Span], Any] | None = None,
    ) -> Filled:
        """Computes the missing spans, each process or worker its own, and returns when all are written.

        start: loads the model in the process that computes; not called where nothing is missing.
        description, unit: of the progress, `tagging` and `words` for example.
        read: reads in this process what the output of a span is computed from; by default that is the span itself.
        Raises RequestError where a process misses one in the end.
        """
        started, missing, total = time.monotonic(), self.missing(), sum(span.size for span in self.spans)
        to_do = sum(self.spans[number].size for number in missing)
        if 0 < to_do < total:
            log(f"{description}: resuming after {total - to_do:,} of {total:,} {unit}")
        with progress(description, total, unit, total - to_do) as bar:
            if self.engine.is_local:
                self._fill_own(missing, start, read, bar)
            elif missing:
                from bertrelay.compute.ray import WorkerPool

                WorkerPool(self, self.engine, start, read).fill(bar)
        wait_for_all(self.process_group)
        # Nobody returns before all have counted, as the main process then assembles and removes the shards.
        if absent := max(gather(self.absent(), self.process_group)):
            raise RequestError(
                f"{self.location}: expected all {len(self.spans):,} shards when each had been written, {absent:,} are "
                "missing. The folder must be one that all processes share; the same command then computes what is "
                "missing"
            )
        return Filled(to_do, time.monotonic() - started)

    def _fill_own(
        self, missing: Sequence[int], start: Callable[[], Compute], read: Callable[[Span], Any] | None, bar: Bar
    ) -> None:
        """Computes those of the missing spans that are this process's; the bar counts those of others as well."""
        own = [number for number in missing if number % self.process_group.size == self.process_group.rank]
        others, spans = set(missing).difference(own), [self.spans[number] for number in own]
        if not own:
            return
        contents = start()(spans if read is None else map(read, spans), bar)
        for number, content in zip(own, contents, strict=True):
            self.write(number, content)
            release_memory()
            if others:
                done = others.difference(self.missing())  # by other processes, since the last shard
                bar.advance(sum(self.spans[number].size for number in done))
                others -= done


class Shards(SpanOutputs):
    """The shards of `output`, one for each of `spans`, in a folder beside it until they are assembled.

    suffix, write: the kind of a shard, and what writes its content to a path.
    process_group, engine: as of `SpanOutputs`.
    """

    def __init__(
        self,
        output: Path,
        spans: Sequence[Span],
        process_group: ProcessGroup = SINGLE_PROCESS,
        suffix: str = ".jsonl",
        write: Callable[[Path, Any], None] = write_lines,
        engine: Engine = LOCAL_ENGINE,
    ) -> None:
        super().__init__(spans, process_group, engine)
        self.output = output
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
        """Makes the folder, or resumes one of the same manifest; returns when every process sees the main one's.

        One of another manifest restarts. Raises RequestError for a folder of anything else, for a symbolic link,
        and where the processes do not share it.
        """
        self._manifest = manifest
        if self.process_group.is_main:
            self._make_folder(manifest)
        check_shared(self.folder, self.process_group)

    def _make_folder(self, manifest: dict[str, object]) -> None:
        refuse_symlink(self.folder)
        if self.folder.exists() and not _is_ours(self.folder):
            raise RequestError(
                f"{self.folder}: expected nothing, or what an unfinished call left there, found something else. Move "
                "it away, or name another output."
            )
        try:
            if self.folder.is_dir() and read_json(self.folder / MANIFEST) != manifest:
                log(f"{self.folder} is of another model or input: restarting")
                _remove(self.folder)
            self.folder.mkdir(exist_ok=True)
            if is_sensitive():  # an earlier folder may be open to more people
                apply_umask(self.folder)
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
        """The files of all shards, in order. Raises WorkError where one is missing."""
        if missing := self.missing():
            raise WorkError(
                f"{self.folder}: expected all {len(self.spans):,} shards, {len(missing):,} are missing; run the same "
                "command again"
            )
        return [self.path(number) for number in range(len(self.spans))]

    def rows(self, numbers: Iterable[int] | None = None) -> Iterator[dict[str, Any]]:
        """The rows of these shards of JSON lines, in order; by default of all, which raises as `complete` does."""
        for path in self.complete() if numbers is None else map(self.path, numbers):
            with path.open(encoding="utf-8") as lines:
                yield from map(json.loads, lines)

    def join(self, output: Path) -> None:
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


@contextmanager
def locked_output(output: Path, process_group: ProcessGroup = SINGLE_PROCESS, wait: bool = False) -> Iterator[None]:
    """Keeps `output` to the processes of this call; the system lets go of it even when they are killed.

    wait: for another call that writes it, as where both fill a cache; the lock's file then stays.
    Raises RequestError when another call writes it, or it may not be written.
    """
    if not process_group.is_main:
        yield
        return
    lock = FileLock(output.with_name(output.name + ".lock"))
    try:
        lock.acquire(blocking=wait)
    except Timeout as error:
        raise RequestError(f"output: another process is writing {output}; wait for it, or name another file") from error
    except OSError as error:
        raise write_error(output, error) from error
    try:
        yield
    finally:
        if not wait:
            Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def _remove(folder: Path) -> None:
    """The manifest goes last, so that what a kill leaves is still known as such."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name == MANIFEST):
        path.unlink()
    folder.rmdir()


def _is_ours(folder: Path) -> bool:
    """Whether a call made it; one that was killed before it wrote the manifest has left hidden files alone."""
    return folder.is_dir() and (
        (folder / MANIFEST).is_file() or all(path.name.startswith(".") for path in folder.iterdir())
    )
