"""The frame of every command that writes a dataset: of Parquet files, here or in an object store, or of Lance.

LanceDB opens a dataset of Lance as a table. It is written from the Parquet dataset of the same rows, when whole.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds

from bertrelay.cache import Cache
from bertrelay.compute.engine import LOCAL, Engine
from bertrelay.data.parquet import (
    MANIFEST_KEY,
    ROW,
    DatasetShards,
    Location,
    ParquetInput,
    check_outside,
    is_address,
    is_lance,
)
from bertrelay.data.shards import Compute, Span
from bertrelay.device import ComputePrecision, default_device
from bertrelay.errors import RequestError
from bertrelay.fingerprint import Digests, fingerprint, note_folder
from bertrelay.inputs import unchanged_inputs
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, on_main
from bertrelay.progress import Bar
from bertrelay.sources import model_folder

LANCE_KEY = b"bertrelay"  # in a schema's metadata: what the rows are of

ComputeColumns = Callable[[pa.Table], Mapping[str, list[Any]]]
"""The values of the columns that a model adds to a block of rows."""


class WrittenDataset(NamedTuple):
    """What was written: `rows_per_second` counts what was computed now, and is None where that is nothing."""

    rows: int
    rows_per_second: float | None


def fill_dataset(
    output: str | Path,
    spans: Sequence[Span],
    columns: Sequence[pa.Field],
    manifest: dict[str, object],
    start: Callable[[], Compute],
    *,
    description: str,
    unit: str,
    read: Callable[[Span], Any] | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
    engine: Engine,
    overwrite: bool = False,
) -> WrittenDataset:
    """Writes the dataset `output`, a shard for each of `spans`; this process is connected to `engine`.

    columns: besides ROW, which is the first.
    output: a folder or an address; one that ends in `.lance` is a dataset of Lance, which LanceDB opens.
    manifest: what decides the rows; one that is finished is left as it is.
    start, description, unit, read: as of `SpanOutputs.fill`; the contents are tables of all columns.
    overwrite: replace a finished dataset of another manifest, which is an error otherwise.
    """
    output = os.path.expanduser(output)  # noqa: PTH111 (may be an address)
    manifest = {**manifest, MANIFEST_KEY: fingerprint({"rows": [span[:2] for span in spans]})}
    as_lance, key, rate = is_lance(output), fingerprint(manifest), None
    schema, place = pa.schema([pa.field(ROW, pa.int64()), *columns]), _unfinished(output) if as_lance else output
    shards = DatasetShards(place, spans, schema, process_group, engine)

    def is_done() -> bool:
        return _is_written(output, key, overwrite) if as_lance else shards.is_finished(manifest)

    if not on_main(is_done, process_group):  # a finished output is not written, so it is not locked
        with shards.locked():
            if not on_main(lambda: shards.is_finished(manifest), process_group):
                shards.begin(manifest, overwrite or as_lance)
                rate = shards.fill(start, description, unit, read).rate
                on_main(shards.finish, process_group)
            if as_lance:
                on_main(lambda: _move_to_lance(Location(shards.location), output, key), process_group)
    return WrittenDataset(sum(span.size for span in spans), rate)


def _lance() -> Any:
    try:
        import lance
    except ImportError as error:
        raise RequestError("output: expected Lance, which is not installed: pip install 'bertrelay[lance]'") from error
    return lance


def _unfinished(url: str) -> str:
    """Where the rows of the Lance dataset `url` are until it is written."""
    return f"{url.rstrip('/')}.partial"


def _is_written(output: str, key: str, overwrite: bool) -> bool:
    """Whether the Lance dataset of this key is there. Raises RequestError for one of another, unless `overwrite`."""
    there, rows = _lance_key(output), Location(_unfinished(output))
    if there not in (None, key) and not overwrite:
        raise RequestError(f"{output} is a finished dataset of another model or input; overwrite it, or name another")
    if there == key and rows.names():  # the call that wrote it was killed before it removed them
        _remove(rows)
    return there == key


def _lance_key(url: str) -> str | None:
    """The key in the Lance dataset `url`, "" if another program wrote it; None if there is none.

    Raises RequestError for an address with options, which Lance does not know, and for one that cannot be read.
    """
    if is_address(url) and "?" in url:
        raise RequestError(f"output: expected an address of Lance without options, found {url}; it reads $AWS_ENDPOINT")
    lance = _lance()
    try:
        metadata = lance.dataset(url).schema.metadata or {}
    except (OSError, ValueError) as error:
        first = (str(error).splitlines() or [""])[0]
        if "not found" in first.lower():
            return None
        raise RequestError(f"{url} cannot be read: {first}. Check the address and permissions") from error
    return bytes(metadata.get(LANCE_KEY, b"")).decode()


def _move_to_lance(source: Location, url: str, key: str) -> None:
    """Writes the finished shards to the Lance dataset `url`, in their order, then removes them.

    Replaces a dataset that is there, which stays readable as the version before. Lance commits once all files are
    written, so that readers see all rows or none.
    """
    rows = ds.dataset(source.path(), filesystem=source.filesystem, format="parquet")
    schema = rows.schema.with_metadata({LANCE_KEY: key.encode()})
    batches = (batch.replace_schema_metadata(schema.metadata) for batch in rows.to_batches())
    try:
        _lance().write_dataset(pa.RecordBatchReader.from_batches(schema, batches), url, mode="overwrite")
    except OSError as error:
        first = (str(error).splitlines() or [""])[0]
        raise RequestError(f"{url} cannot be written: {first}. Check the address, permissions and space") from error
    _remove(source)


def _remove(rows: Location) -> None:
    with rows.errors("removed"):
        rows.filesystem.delete_dir(rows.path())


def read_rows(output: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Streams these columns of a finished dataset."""
    place = Location(output)
    with place.errors("read"):
        if is_lance(output):
            rows = _lance().dataset(output)
        else:
            rows = ds.dataset(place.path(), filesystem=place.filesystem, format="parquet")
        for batch in rows.to_batches(columns=list(columns)):
            yield from batch.to_pylist()


@unchanged_inputs()
def add_columns(
    model: str | Path,
    source: str | Path,
    output: str | Path,
    texts: Sequence[str],
    added: Sequence[pa.Field],
    load: Callable[[Path, ComputePrecision], ComputeColumns],
    *,
    keep: Sequence[str],
    precision: str,
    description: str,
    cache: Cache | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
    engine: Engine | str = LOCAL,
    overwrite: bool = False,
    **options: object,
) -> WrittenDataset:
    """Writes the rows of `source` to the dataset `output`, with the columns `added` that a model computes of `texts`.

    load: (folder, precision) -> the columns of a block, in the process that computes.
    options: what decides the columns besides model, input and precision.
    """
    names = [field.name for field in added]
    check_outside(output, source)
    inputs = on_main(lambda: ParquetInput(source, texts, keep, names), process_group)
    where = Engine.of(engine, process_group)
    with where.connected():
        folder = on_main(lambda: model_folder(model, cache=cache), process_group)
        note_folder(folder)
        resolved = where.precision(precision, default_device(), process_group)
        manifest = {"model": Digests().of_folder(folder), "source": inputs.digest, "precision": resolved, **options}
        return fill_dataset(
            output,
            inputs.spans,
            [*inputs.schema, *added],
            manifest,
            partial(_start, inputs, added, partial(load, folder, resolved)),
            description=description,
            unit="rows",
            process_group=process_group,
            engine=where,
            overwrite=overwrite,
        )


def _start(inputs: ParquetInput, added: Sequence[pa.Field], load: Callable[[], ComputeColumns]) -> Compute:
    """Loads the model, and gives the tables of shards."""
    columns_of = load()

    def tables(span: Span, bar: Bar) -> Iterator[pa.Table]:
        for block in inputs.blocks(span):
            columns = columns_of(block)
            for field in added:
                block = block.append_column(field, pa.array(columns[field.name], field.type))
            yield block
            bar.advance(len(block))

    return lambda spans, bar: (tables(span, bar) for span in spans)
