"""The settings of bitext mining; free of torch."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from bertrelay.data.tables import Table
from bertrelay.settings import RUN_ONLY, ModelSource, Positive, Settings

Method = Literal["auto", "exact", "approximate"]
MinedFormat = Literal["tsv", "csv", "jsonl", "parquet"]

NEIGHBOURS = 4
"""The k of Artetxe & Schwenk (2019)."""

EXACT_PAIRS = 10**11
"""Up to so many pairs all are compared: some minutes' work, and a graph would take longer. Memory sets no limit."""


def work_beside(output: Path) -> Path:
    """The folder of what is found until `output` is written."""
    return output.with_name(output.name + ".work")


class MineSettings(Settings):
    """Sentences of two tables that translate one another.

    source, target: a column of text each: `columns`, else `text`, or the whole line of plain lines.
    k: so many nearest neighbours of a sentence say what is near for it.
    threshold: pairs with a lower margin are left out; 1 is as near as to the neighbours.
    gold: the true pairs, in columns `source_line` and `target_line`, from which precision, recall and F1 are told, and
        the threshold of the highest F1 is taken when none is given. Lines count from 1, a header included.
    method: exact compares all with all; approximate goes through a graph (HNSW); auto is exact up to 10¹¹ pairs.
    output: what kind of file `mined` is.
    max_rejects: the share of records that may be unusable.
    """

    model: ModelSource
    source: Table
    target: Table
    k: Positive = NEIGHBOURS
    threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None
    gold: Table | None = None
    method: Method = "auto"
    output: MinedFormat = "tsv"
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    batch_tokens: Annotated[Positive | None, RUN_ONLY] = None
    max_rejects: Annotated[float, Field(ge=0, le=1)] = 0.01
