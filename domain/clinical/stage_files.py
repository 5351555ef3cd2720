"""Files that the clinical stages write for each other: names, splits, the flow table, Parquet with ids as text.

A Parquet file of a stage is marked with its format, and its ids are trusted. Ids of a user's own file, which has no
mark, are brought to one form where it is read.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bertrelay.data.records import canonical_id
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, write_text
from bertrelay.inputs import note_input
from domain.clinical.settings import in_words

COHORT, STAYS, MEMBERS = "cohort.parquet", "stays.parquet", "members.parquet"
CHARACTERISTICS = "characteristics.parquet"
COHORT_FACTS = "cohort.json"
"""`window_days`, within which a return counts; `deaths_counted`, true where a death within it counts as one."""
NOTES_FILE = "notes.parquet"
SPLITS = ("train", "validation", "test")

FEWEST = 10
"""Admissions or patients whose number is shown in reports and cards; of fewer it may point to a patient."""

STAY = "stay_hadm_id"
"""Column of the first admission of a stay, which names the stay."""
ID_COLUMNS = ("subject_id", "hadm_id", STAY)
FORMAT_KEY, FORMAT = b"bertrelay.clinical", b"1"
"""Key and value in the metadata of a Parquet file whose ids are text in one form."""


def write_parquet(path: Path, table: pd.DataFrame | pa.Table) -> None:
    """Writes `table` to `path`, complete or not at all, marked with the format of the clinical stages."""
    if not isinstance(table, pa.Table):
        table = pa.Table.from_pandas(table, preserve_index=False)
    schema = table.schema
    for number, column in enumerate(schema):  # strings as every reader has them, times in Parquet's largest unit
        if pa.types.is_large_string(column.type):
            schema = schema.set(number, column.with_type(pa.string()))
        if pa.types.is_timestamp(column.type):
            schema = schema.set(number, column.with_type(pa.timestamp("ms")))
    with atomic_write(path) as building:
        pq.write_table(table.cast(marked(schema)), building)


def marked(schema: pa.Schema) -> pa.Schema:
    """Returns `schema` with the mark of the format, and no other metadata."""
    return schema.with_metadata({FORMAT_KEY: FORMAT})


def read_columns(file: Path, columns: Sequence[str], optional: Sequence[str] = ()) -> pd.DataFrame:
    """Reads `columns` of a table of stays or admissions, and those of `optional` that it has; ids are text.

    Raises RequestError for a missing column, a damaged file, a file of another format, an id that is none, and an
    admission in two rows, by their numbers.
    """
    note_input(file)
    try:
        schema = pq.read_schema(file)
        missing = [name for name in columns if name not in schema.names]
        if missing:
            raise RequestError(f"{file}: expected columns {', '.join(columns)}, found none named {', '.join(missing)}")
        table = pq.read_table(file, columns=[*columns, *(name for name in optional if name in schema.names)])
    except (pa.ArrowException, OSError) as error:
        raise RequestError(f"{file} cannot be read as Parquet ({type(error).__name__}); run its stage again") from error
    mark = (schema.metadata or {}).get(FORMAT_KEY)
    if mark not in (None, FORMAT):
        raise RequestError(
            f"{file}: expected format {FORMAT.decode()} of the clinical stages, found {mark.decode(errors='replace')}; "
            "another version of this program wrote it. Run its stage again"
        )
    frame: pd.DataFrame = table.to_pandas()
    if mark is None:
        try:
            frame = frame.assign(**{name: frame[name].map(canonical_id) for name in ID_COLUMNS if name in frame})
        except ValueError as error:
            raise RequestError(f"{file}: expected ids of admissions and subjects, found {error}") from None
    copies = np.flatnonzero(frame["hadm_id"].duplicated())
    if len(copies):  # its texts would be shifted against labels
        first = frame["hadm_id"].tolist().index(frame["hadm_id"].iloc[copies[0]])
        raise RequestError(
            f"{file}: expected each hadm_id once, found that of row {first + 1:,} again in row {copies[0] + 1:,}. "
            "Leave one of them out"
        )
    return frame


WORDS_SHOWN = frozenset(["", "0", "1", "f", "false", "n", "no", "t", "true", "y", "yes"])
SHOWN_VALUES = 8


def as_label(column: pd.Series, cohort: Path) -> NDArray[np.bool_]:
    """A column as booleans. Raises RequestError for all else than booleans and 0 or 1, with the counts of values.

    Values are shown where they are numbers or words for yes and no: another column may hold a patient's text.
    """
    is_label = column.map(
        lambda value: isinstance(value, bool | np.bool_) or (isinstance(value, Real) and value in (0, 1))
    )
    if is_label.all():
        return column.to_numpy(np.bool_)
    others = column[~is_label].map(
        lambda value: repr(value) if isinstance(value, Real) or _is_word(value) else "other text"
    )
    counts = ", ".join(f"{count:,} × {value}" for value, count in others.value_counts().head(SHOWN_VALUES).items())
    raise RequestError(
        f"cohort: expected {column.name} in {cohort} as booleans, or 0 and 1, found {len(others):,} of "
        f"{len(column):,} otherwise: {counts}. Text is no label, as any would be true: write booleans"
    )


def _is_word(value: object) -> bool:
    return isinstance(value, str) and value.strip().casefold() in WORDS_SHOWN


def shown_count(count: float) -> str:
    """A count for people, as `1,234`; `<10` for 1 to 9, which may point to a patient."""
    return f"<{FEWEST}" if 0 < count < FEWEST else f"{count:,.0f}"


def read_flow(file: Path) -> tuple[list[str], list[list[str]]]:
    """The columns of a flow table in words, and its rows with counts as `shown_count` gives them."""
    with file.open(encoding="utf-8", newline="") as lines:
        head, *rows = csv.reader(lines)
    shown = [[shown_count(int(cell)) if cell.isdecimal() else cell for cell in row] for row in rows]
    return [in_words(name) for name in head], shown


class FlowStep(NamedTuple):
    """A row of `flow.csv`; what is not counted is None."""

    step: str
    admissions: int
    subjects: int
    left_out: int | None = None
    with_outcome: int | None = None


@dataclass
class Flow:
    """The steps of a selection in their order, with their counts; once stays are joined, an admission is such a stay.

    outcome: the column that is true for the stays with the outcome; None counts none.
    """

    outcome: str | None = None
    steps: list[FlowStep] = field(default_factory=list)

    def count(self, step: str, stays: pd.DataFrame) -> pd.DataFrame:
        """Records the counts after `step`; returns `stays`."""
        self.steps.append(FlowStep(step, len(stays), stays["subject_id"].nunique()))
        return stays

    def keep(
        self, step: str, stays: pd.DataFrame, is_kept: "pd.Series[bool]", has_outcome: bool = True
    ) -> pd.DataFrame:
        """Returns the stays that `step` keeps; records their counts, those of the others, and of these the outcomes.

        has_outcome: the outcome of the others is known.
        """
        remaining, others = stays[is_kept], stays[~is_kept]
        is_counted = has_outcome and self.outcome in stays
        with_outcome = int(others[self.outcome].eq(True).sum()) if is_counted else None
        self.steps.append(FlowStep(step, len(remaining), remaining["subject_id"].nunique(), len(others), with_outcome))
        return remaining

    def exclusions(self) -> str:
        """Lists the steps that leave something out, as in `"not newborn" 812 (0 readmitted)`."""
        listed = []
        for step in self.steps:
            if step.left_out:
                label = in_words(self.outcome or "")
                outcomes = "" if step.with_outcome is None else f" ({step.with_outcome:,} {label})"
                listed.append(f'"{step.step}" {step.left_out:,}{outcomes}')
        return "; ".join(listed)

    def write(self, path: Path) -> None:
        """Writes the table as CSV."""
        columns = ["step", "admissions", "subjects", "left_out", f"left_out_{self.outcome or 'with_outcome'}"]
        write_text(path, pd.DataFrame(self.steps, columns=columns, dtype=object).to_csv(index=False))
