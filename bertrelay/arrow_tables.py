"""Rows of Parquet files and of data sets of the hub, batch by batch. A row's line is its number, from 1."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertrelay.errors import RequestError, WorkError
from bertrelay.privacy import is_sensitive
from bertrelay.tables import Record, Table, find_columns, reach
from bertrelay.text_tables import opened

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 1024


def parquet_rows(table: Table, columns: Sequence[str | int]) -> Iterator[Record]:
    """The rows of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    done = 0
    with opened(table.name) as stream:
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
    """What a library says, of sensitive data only what kind of error it is: its words may quote a value."""
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
