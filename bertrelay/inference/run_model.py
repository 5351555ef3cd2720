"""The frame of all that runs a model over items: items → shards → one file, or a Parquet dataset.

It alone knows manifest, lock, resume, process group and engine. A task gives a `Work`, and assembles the shards:

    with open_run(output, model, scan, span_limit=…, precision="auto") as run:
        rate = run.fill(Work(reader.read, partial(start, run.folder, run.precision), "tagging", "words")).rate
        if run.is_main:
            run.shards.join(output)

While it runs, `OUTPUT.lock` keeps other calls away and `OUTPUT.partial/` has the shards (`bertrelay.data.shards`).
Killed and called again, with as many processes or others, it computes the shards that are missing.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.dataset as ds

from bertrelay.cache import Cache
from bertrelay.compute import ray
from bertrelay.compute.engine import LOCAL, Engine
from bertrelay.compute.local import LocalExecutor
from bertrelay.compute.work import Compute, Content, Executor, Item, Work, whole_span
from bertrelay.data.parquet import MANIFEST_KEY, ROW, DatasetShards, Location, ParquetInput, check_outside
from bertrelay.data.shards import ShardFiles, ShardStore, Span
from bertrelay.device import ComputePrecision, default_device
from bertrelay.errors import RequestError
from bertrelay.fingerprint import Digests, fingerprint, note_folder
from bertrelay.inputs import check_inputs, unchanged_inputs
from bertrelay.locks import locked_output
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, gather, on_main, wait_for_all
from bertrelay.progress import Bar, log, progress
from bertrelay.sources import model_folder

BLOCK_CHARACTERS = 400_000
"""Characters of text in a shard, about 60,000 words; a process that is killed loses at most the work on one shard."""
DIGITS = 6
"""Decimal places of the probabilities in outputs; further places change with the number of threads."""

Columns = Callable[[pa.Table], Mapping[str, list[Any]]]
"""Gives the values of the columns that a model adds to a block of rows."""


class FillResult(NamedTuple):
    """size: of the shards that were missing, in progress units. seconds: that it took to compute them."""

    size: int
    seconds: float

    @property
    def rate(self) -> float | None:
        """Progress units in a second; None where nothing was missing."""
        return self.size / self.seconds if self.size else None


def connect(engine: Engine, process_group: ProcessGroup = SINGLE_PROCESS) -> AbstractContextManager[Executor]:
    """Gives the executor of `engine`, connected to its cluster; raises RequestError where none answers or fits."""
    return nullcontext(LocalExecutor(process_group)) if engine.is_local else ray.connect(engine)


def fill(shards: ShardStore[Content], work: Work[Item, Content], executor: Executor) -> FillResult:
    """Computes the missing `shards`, and returns when all processes have written theirs.

    Raises RequestError where a process does not see a shard that was written.
    """
    started, total = time.monotonic(), sum(span.size for span in shards.spans)
    missing = on_main(shards.missing, executor.process_group)  # the same in all, before any of them writes
    to_do = sum(shards.spans[number].size for number in missing)
    if 0 < to_do < total:
        log(f"{work.description}: resuming after {total - to_do:,} of {total:,} {work.unit}")
    with progress(work.description, total, work.unit, total - to_do) as bar:
        executor.compute(shards, missing, work, bar)
    wait_for_all(executor.process_group)
    # Nobody returns before all have counted, as the main process then assembles and removes the shards.
    if absent := max(gather(shards.still_missing(), executor.process_group)):
        raise RequestError(
            f"{shards.location}: expected all {len(shards.spans):,} shards when each had been written, {absent:,} are "
            "missing. The folder must be one that all processes share; the same command then computes what is missing"
        )
    return FillResult(to_do, time.monotonic() - started)


def fill_shards(
    output: Path,
    spans: Sequence[Span],
    manifest: dict[str, object],
    work: Work[Item, Content],
    *,
    suffix: str,
    write: Callable[[Path, Content], None],
    executor: Executor | None = None,
) -> ShardFiles:
    """Fills shard files beside `output`, or resumes those of the same manifest; the caller assembles and removes them.

    suffix, write: as of `ShardFiles`. executor: this process alone when None.
    """
    executor = executor or LocalExecutor()
    shards = ShardFiles(output, spans, executor.process_group, suffix, write)
    shards.begin(manifest)
    fill(shards, work, executor)
    return shards


class Scan(NamedTuple):
    """The result of one pass over an input.

    digest: sha256 of all that decides the output. rejected: number of records that cannot be used.
    """

    spans: list[Span]
    digest: str
    rejected: int = 0

    @property
    def items(self) -> int:
        return self.spans[-1].end

    @property
    def size(self) -> int:
        """The progress units of all spans."""
        return sum(span.size for span in self.spans)


class Scanned(Protocol):
    @property
    def spans(self) -> list[Span]: ...

    @property
    def digest(self) -> str: ...


AnyScan = TypeVar("AnyScan", bound=Scanned)


@dataclass(frozen=True)
class ModelRun(Generic[AnyScan]):
    """A run of the model of `folder` over the input that `scan` describes."""

    folder: Path
    precision: ComputePrecision
    scan: AnyScan
    shards: ShardFiles
    executor: Executor

    @property
    def is_main(self) -> bool:
        return self.executor.process_group.is_main

    def fill(self, work: Work[Item, Iterable[str]]) -> FillResult:
        """Computes the shards that are missing; returns in all processes when all shards are written."""
        return fill(self.shards, work, self.executor)


@dataclass(frozen=True)
class OpenedModel:
    """The folder of a model, the digest of its files, and the precision in which it is computed."""

    folder: Path
    digest: str
    precision: ComputePrecision

    @classmethod
    def find(cls, model: str | Path, precision: str, cache: Cache | None, executor: Executor) -> "OpenedModel":
        """Finds the folder in the main process, and notes it as an input of this call."""
        folder = on_main(lambda: model_folder(model, cache=cache), executor.process_group)
        note_folder(folder)
        return cls(folder, Digests().of_folder(folder), executor.precision(precision, default_device()))


@contextmanager
def open_run(
    output: Path,
    model: str | Path,
    scan: Callable[[], AnyScan],
    *,
    span_limit: object,
    precision: str,
    cache: Cache | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
    engine: Engine | str = LOCAL,
    decisive: Mapping[str, object] | None = None,
) -> Iterator[ModelRun[AnyScan]]:
    """Locks `output`, reads the input through, and opens the shards; removes them when the block that assembles ends.

    scan: reads the input through, in the main process only.
    span_limit: the size at which `scan` ends a span. With the model's files, the scan's digest, precision and the
        `decisive` settings it is the manifest: shards of another manifest are not resumed.
    Raises RequestError when another process writes `output`, TypeError for a `decisive` key `model` or `input`.
    """
    where = Engine.of(engine, process_group)
    with unchanged_inputs(), locked_output(output, process_group), connect(where, process_group) as executor:
        opened = OpenedModel.find(model, precision, cache, executor)
        scanned = on_main(scan, process_group)
        shards = ShardFiles(output, scanned.spans, process_group)
        key = fingerprint(dict(model=opened.digest, input=scanned.digest, **(decisive or {})))
        shards.begin({"key": key, "precision": opened.precision, "block": span_limit})
        yield ModelRun(opened.folder, opened.precision, scanned, shards, executor)
        if process_group.is_main:
            check_inputs()
            shards.remove()
        wait_for_all(process_group)


class WrittenDataset(NamedTuple):
    """rows_per_second: counts the rows that this call computed; None where none were missing."""

    rows: int
    rows_per_second: float | None


def fill_dataset(
    output: str | Path,
    spans: Sequence[Span],
    columns: Sequence[pa.Field],
    manifest: dict[str, object],
    work: Work[Item, Iterable[pa.Table]],
    executor: Executor,
    *,
    overwrite: bool = False,
) -> WrittenDataset:
    """Writes the Parquet dataset `output`, a shard for each of `spans`, each computed as tables of all columns.

    columns: besides ROW, which is the first.
    output: a folder or an address.
    manifest: decides the rows; a finished dataset of the same manifest is left as it is.
    overwrite: replace a finished dataset of another manifest, which is an error otherwise.
    """
    output = os.path.expanduser(output)  # noqa: PTH111 (may be an address)
    manifest = {**manifest, MANIFEST_KEY: fingerprint({"rows": [span[:2] for span in spans]})}
    group, rate = executor.process_group, None
    shards = DatasetShards(output, spans, pa.schema([pa.field(ROW, pa.int64()), *columns]), group)
    if not on_main(lambda: shards.is_finished(manifest), group):  # a finished output is not written, so not locked
        with shards.locked():
            if not on_main(lambda: shards.is_finished(manifest), group):
                shards.begin(manifest, overwrite)
                rate = fill(shards, work, executor).rate
                on_main(shards.finish, group)
    return WrittenDataset(sum(span.size for span in spans), rate)


@unchanged_inputs()
def add_columns(
    model: str | Path,
    source: str | Path,
    output: str | Path,
    texts: Sequence[str],
    added: Sequence[pa.Field],
    load: Callable[[Path, ComputePrecision], Columns],
    *,
    keep: Sequence[str],
    precision: str,
    description: str,
    cache: Cache | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
    engine: Engine | str = LOCAL,
    overwrite: bool = False,
    decisive: Mapping[str, object] | None = None,
) -> WrittenDataset:
    """Writes the rows of `source` to the dataset `output`, with the columns `added` that a model computes of `texts`.

    load: (folder, precision) -> a function from a block of rows to the columns, in the process that computes.

    For example, with texts ["note"], keep ["id"] and added [length: int64], the row {id: 7, note: "fever"} of `source`
    becomes {row: 0, id: 7, note: "fever", length: 5}, where load(folder, precision) returns
    `lambda block: {"length": [len(text) for text in block["note"].to_pylist()]}`.

    decisive: settings that decide the columns besides model, input and precision.
    Raises TypeError for a `decisive` key `model`, `source` or `precision`.
    """
    check_outside(output, source)
    names = [field.name for field in added]
    inputs = on_main(lambda: ParquetInput(source, texts, keep, names), process_group)
    with connect(Engine.of(engine, process_group), process_group) as executor:
        opened = OpenedModel.find(model, precision, cache, executor)
        manifest = dict(model=opened.digest, source=inputs.digest, precision=opened.precision, **(decisive or {}))
        start = partial(_start_tables, inputs, added, partial(load, opened.folder, opened.precision))
        work = Work(whole_span, start, description, "rows")
        columns = [*inputs.schema, *added]
        return fill_dataset(output, inputs.spans, columns, manifest, work, executor, overwrite=overwrite)


def _start_tables(
    inputs: ParquetInput, added: Sequence[pa.Field], load: Callable[[], Columns]
) -> Compute[Span, Iterator[pa.Table]]:
    """Loads the model, which then adds columns to the rows of spans."""
    columns_of = load()

    def tables(span: Span, bar: Bar) -> Iterator[pa.Table]:
        for block in inputs.blocks(span):
            columns = columns_of(block)
            for field in added:
                block = block.append_column(field, pa.array(columns[field.name], field.type))
            yield block
            bar.advance(len(block))

    return lambda spans, bar: (tables(span, bar) for span in spans)


def read_dataset(output: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Streams these columns of a finished dataset."""
    location = Location(output)
    with location.errors("read"):
        rows = ds.dataset(location.path(), filesystem=location.filesystem, format="parquet")
        for batch in rows.to_batches(columns=list(columns)):
            yield from batch.to_pylist()
