"""Tables of a cohort as Parquet files: ids as strings, times to the second, nothing of pandas beside them."""

from pathlib import Path
from typing import TYPE_CHECKING

from bertrelay.files import atomic_write

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


def write_parquet(path: Path, table: "pd.DataFrame | pa.Table") -> None:
    """Writes `table` to `path`, which is whole or not there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not isinstance(table, pa.Table):
        table = pa.Table.from_pandas(table, preserve_index=False)
    fields = [pa.field(field.name, _plain(field.type)) for field in table.schema]
    with atomic_write(path) as building:
        pq.write_table(table.cast(pa.schema(fields)), building)


def _plain(kind: "pa.DataType") -> "pa.DataType":
    """Strings as every reader knows them, and times in the largest unit that Parquet has."""
    import pyarrow as pa

    if pa.types.is_large_string(kind) or pa.types.is_string(kind):
        return pa.string()
    return pa.timestamp("ms") if pa.types.is_timestamp(kind) else kind
