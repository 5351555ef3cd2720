"""What is learnt from and judged by: the notes of each stay of a cohort, and whether a return followed it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bertrelay.errors import RequestError
from domain.clinical.cohorts.cohort import COHORT
from domain.clinical.cohorts.flow import Flow
from domain.clinical.cohorts.splits import SPLITS
from domain.clinical.ids import canonical_ids
from domain.clinical.notes.notes import NOTES_FILE

ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class LabelledNotes:
    """The stays that have notes, in the order of their file.

    table: hadm_id, subject_id, split, readmitted, characters of the text. flow: how many came to be left.
    """

    file: Path
    table: pd.DataFrame
    flow: Flow

    def __len__(self) -> int:
        return len(self.table)

    @property
    def readmitted(self) -> NDArray[np.bool_]:
        return self.table["readmitted"].to_numpy(np.bool_)

    def is_in(self, split: str) -> NDArray[np.bool_]:
        """Which stays are in `split`, (stays,)."""
        return (self.table["split"] == split).to_numpy()

    def texts(self, wanted: NDArray[np.bool_] | None = None) -> Iterator[str]:
        """The texts of all stays, or of those that are `wanted`, as a stream."""
        place = 0
        for batch in pq.ParquetFile(self.file).iter_batches(ROWS_AT_ONCE, columns=["text"]):
            texts = batch["text"]
            if wanted is not None:
                texts = texts.filter(pa.array(wanted[place : place + len(texts)]))
            yield from texts.to_pylist()
            place += batch.num_rows

    def with_shuffled_labels(self, seed: int) -> "LabelledNotes":
        """The labels of train, and those of validation, dealt out anew; those of test stay."""
        labels, generator = self.readmitted.copy(), np.random.default_rng(seed)
        for split in ("train", "validation"):
            labels[self.is_in(split)] = generator.permutation(labels[self.is_in(split)])
        return replace(self, table=self.table.assign(readmitted=labels))


def read_labelled_notes(notes: Path, cohort: Path) -> LabelledNotes:
    """The notes in the folder `notes` with the labels of the folder `cohort`.

    Raises RequestError for folders that other stages wrote, for notes of another cohort, and where train, validation
    or test has not both labels.
    """
    file = _there(notes / NOTES_FILE, "notes", "domain.notes")
    stays = _read(_there(cohort / COHORT, "cohort", "domain.cohort"), ["hadm_id", "subject_id", "readmitted", "split"])
    flow = Flow()
    flow.count("of the cohort", stays)
    known = _read(file, ["hadm_id", "split"]).assign(characters=_lengths(file))
    table = known.merge(stays, "left", "hadm_id", suffixes=("_of_notes", ""))
    strangers = int(((table["split"] != table["split_of_notes"]) | table["readmitted"].isna()).sum())
    if strangers:
        raise RequestError(
            f"notes: of {len(table):,} stays in {file}, {strangers:,} are not in the cohort of {cohort}, or in another "
            "split of it. Give the cohort that these notes were put together for."
        )
    blank = int((table["characters"] == 0).sum())
    if blank:
        raise RequestError(f"notes: expected a text for every stay, found none for {blank:,} in {file}")
    table = flow.count("with notes", table.assign(readmitted=table["readmitted"].astype(bool)))
    for split in SPLITS:
        part = flow.count(split, table[table["split"] == split])
        returned = flow.count(f"{split}, readmitted", part[part["readmitted"]])
        _check_both(split, len(part), len(returned))
    return LabelledNotes(file, table.drop(columns="split_of_notes"), flow)


def _there(file: Path, setting: str, stage: str) -> Path:
    if not file.is_file():
        raise RequestError(f"{setting}: expected the folder that {stage} wrote, found no {file.name} in {file.parent}")
    return file


def _read(file: Path, columns: list[str]) -> pd.DataFrame:
    """These columns, ids in their one form. Raises RequestError where one is missing or the file is damaged."""
    try:
        table = pq.read_table(file, columns=columns)
    except (pa.ArrowException, OSError) as error:
        raise RequestError(f"{file} cannot be read as Parquet ({type(error).__name__}); run its stage again") from error
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise RequestError(f"{file}: expected columns {', '.join(columns)}, found none named {', '.join(missing)}")
    for name in ("hadm_id", "subject_id"):
        if name in columns:
            table = table.set_column(columns.index(name), name, canonical_ids(table[name]))
    frame: pd.DataFrame = table.to_pandas()
    return frame


def _lengths(file: Path) -> NDArray[Any]:
    """The characters of each text."""
    batches = pq.ParquetFile(file).iter_batches(ROWS_AT_ONCE, columns=["text"])
    parts = [pc.utf8_length(batch["text"]).to_numpy(zero_copy_only=False) for batch in batches]
    return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)


def _check_both(split: str, stays: int, returned: int) -> None:
    if returned in (0, stays):
        raise RequestError(
            f"cohort: expected stays with and without a return in {split}, found {returned:,} with one of {stays:,}. "
            "Take a larger cohort, or larger shares of it for validation and test."
        )
