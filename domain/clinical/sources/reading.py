"""Rows of any table in blocks: ids in one form, faults beside the values."""

from collections.abc import Iterable, Iterator, Sequence

import pandas as pd

from bertrelay.blocks import blocks_of
from bertrelay.data.records import canonical_id
from bertrelay.data.tables import ABSENT, Record, Row
from domain.clinical.sources.form import BLOCK_ROWS, FAULT, ROW, Reject

IDS = ("subject_id", "hadm_id")


def frames(
    stream: Iterable[Row], file: str, names: Sequence[str], essential: Sequence[str] | None, reject: Reject
) -> Iterator[pd.DataFrame]:
    """Yields rows in blocks with the columns `names`, `row` and `fault`; ids in one form, null for absent columns.

    file: their name, for rejects.
    essential: columns without which a row is rejected; a fault of others costs only their values. None: all columns.
    """
    needed = [position for position, name in enumerate(names) if essential is None or name in essential]
    for block in blocks_of(stream, BLOCK_ROWS):
        records = []
        for row in block:
            values, fault = row.values, "" if isinstance(row, Record) else row.reason
            if fault and (essential is None or not values or not all(values[position] for position in needed)):
                reject(row.file, row.line, fault)
            else:
                records.append((row.line, fault, *(None if value is ABSENT else value for value in values)))
        frame = pd.DataFrame(records, columns=[ROW, FAULT, *names], dtype=object).astype({ROW: int})
        for name in (name for name in IDS if name in names):
            ids = frame[name].map(_exact_id)
            is_wrong = ids.isna()
            if essential is None or name in essential:
                for number in frame.loc[is_wrong, ROW]:
                    reject(file, number, f"{name} is no id but a rounded number, as 1.23E+11 is")
                frame, ids = frame[~is_wrong], ids[~is_wrong]
            else:
                frame = frame.assign(fault=first_fault(frame[FAULT], is_wrong, f"{name} is no id"))
            frame = frame.assign(**{name: ids.fillna("")})
        yield frame


def _exact_id(value: object) -> str | None:
    try:
        return canonical_id(value)
    except ValueError:
        return None


def first_fault(
    faults: "pd.Series[str]", is_wrong: "pd.Series[bool]", fault: "str | pd.Series[str]"
) -> "pd.Series[str]":
    """Adds a fault to the rows that are wrong and have none."""
    return faults.mask(is_wrong & (faults == ""), fault)
