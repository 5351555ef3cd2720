"""Lance datasets, which LanceDB opens as its tables, written from the Parquet dataset of the same rows."""

from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from bertrelay.data.datasets import Location
from bertrelay.errors import RequestError

KEY = b"bertrelay"
"""In a schema's metadata: what the rows are of."""


def _lance() -> Any:
    try:
        import lance
    except ImportError as error:
        raise RequestError("output: expected Lance, which is not installed: pip install 'bertrelay[lance]'") from error
    return lance


def open_lance(url: str) -> Any:
    """The dataset of Lance at `url`, which reads as one of pyarrow. Raises RequestError where Lance is absent."""
    return _lance().dataset(url)


def unfinished(url: str) -> str:
    """Where the rows of the Lance dataset `url` are until it is written."""
    return f"{url.rstrip('/')}.partial"


def key_of(url: str) -> str | None:
    """The key that `write_lance` stored in the dataset `url`, "" if another program wrote it; None if there is none.

    Raises RequestError for an address with options, which Lance does not know, and for one that cannot be read.
    """
    if "?" in url:
        raise RequestError(f"output: expected an address of Lance without options, found {url}; it reads $AWS_ENDPOINT")
    try:
        metadata = open_lance(url).schema.metadata or {}
    except (OSError, ValueError) as error:
        first = (str(error).splitlines() or [""])[0]
        if "not found" in first.lower():
            return None
        raise RequestError(f"{url} cannot be read: {first}. Check the address and permissions") from error
    return bytes(metadata.get(KEY, b"")).decode()


def write_lance(source: Location, url: str, key: str) -> None:
    """Writes the rows of the Parquet dataset `source`, in their order, to the Lance dataset `url`.

    Replaces a dataset that is there, which stays readable as the version before. Lance commits once all files are
    written, so that readers see all rows or none.
    """
    rows = ds.dataset(source.path(), filesystem=source.filesystem, format="parquet")
    schema = rows.schema.with_metadata({KEY: key.encode()})
    batches = (batch.replace_schema_metadata(schema.metadata) for batch in rows.to_batches())
    try:
        _lance().write_dataset(pa.RecordBatchReader.from_batches(schema, batches), url, mode="overwrite")
    except OSError as error:
        first = (str(error).splitlines() or [""])[0]
        raise RequestError(f"{url} cannot be written: {first}. Check the address, permissions and space") from error
