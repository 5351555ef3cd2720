"""The notes of stays with the labels of an outcome."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from bertrelay.files import read_json
from bertrelay.progress import log
from domain.clinical.admissions import Flow
from domain.clinical.cohort import CHARACTERISTICS, COHORT, SPLITS, STAYS
from domain.clinical.ids import canonical_ids
from domain.clinical.notes import ABOUT_FILE, NOTES_FILE
from domain.clinical.outcomes import DIAGNOSES, LENGTH_OF_STAY, READMISSION, Input, PatientOutcome, in_words
from domain.clinical.settings import GROUPS

CATEGORIES = {
    9: re.compile(r"(\d{3}|V\d\d)\d{0,2}|(E\d{3})\d?"),
    10: re.compile(r"([A-Z]\d[0-9A-Z])[0-9A-Z]{0,4}"),
}
"""By the version of ICD. An ICD-9 E code names the cause of an injury, and has a character more."""

FEWEST_STAYS = 10


def group_of(code: str, version: int) -> str | None:
    """`ICD-9 428` for `4280`; None for what is no code of that version.

    With its version, as `V58` is aftercare in the one and an accident with a pick-up in the other.
    """
    category = CATEGORIES.get(version)
    found = category.fullmatch(code.strip().replace(".", "").upper()) if category else None
    return f"ICD-{version} {next(filter(None, found.groups()))}" if found else None


def groups_of_stay(codes: Iterable[Mapping[str, Any]]) -> set[str]:
    """The groups of a stay's codes, each {code, version}, as `characteristics.parquet` has them."""
    return {group for each in codes if (group := group_of(each["code"], each["version"]))}


def commonest(stays: Iterable[set[str]], count: int, fewest: int = FEWEST_STAYS) -> tuple[str, ...]:
    """The `count` groups that most stays have, the commonest first; of equally common ones the first by name.

    fewest: stays that a group must have. Fewer cannot be trained on, and a model's folder would name them.
    """
    counts = Counter(group for groups in stays for group in groups)
    known = [group for group in counts if counts[group] >= fewest]
    return tuple(sorted(known, key=lambda group: (-counts[group], group))[:count])


def indicators(stays: Sequence[set[str]], groups: Sequence[str]) -> NDArray[np.bool_]:
    """Whether each stay has each of `groups`, (stays, groups)."""
    return np.array([[group in of_stay for group in groups] for of_stay in stays], bool).reshape(-1, len(groups))


SHORT_DAYS, LONG_DAYS = 3, 7
Labels = tuple[tuple[str, ...], NDArray[np.bool_]]
"""The names of labels, and whether each is true of each stay, (stays, labels)."""


def labels_of(outcome: PatientOutcome, stays: pd.DataFrame, cohort: Path, groups: int) -> Labels:
    """The labels of `stays`, a row each; of diagnoses the `groups` commonest of train, from the folder `cohort`."""
    if outcome is LENGTH_OF_STAY:
        return outcome.labels, by_length(stays["length_of_stay_days"].to_numpy(np.float64))
    if outcome is DIAGNOSES:
        return _diagnoses(stays, cohort, groups)
    return outcome.labels, stays[list(outcome.labels)].to_numpy(np.bool_)


def by_length(days: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Under 3 days, 3 to 7, over 7: (stays, 3)."""
    return np.stack([days < SHORT_DAYS, (days >= SHORT_DAYS) & (days <= LONG_DAYS), days > LONG_DAYS], axis=1)


def _diagnoses(stays: pd.DataFrame, cohort: Path, groups: int) -> Labels:
    file = cohort / CHARACTERISTICS
    if not file.is_file():
        raise RequestError(f"cohort: expected the folder that domain.cohort wrote, found no {file.name} in {cohort}")
    codes = pd.read_parquet(file, columns=["hadm_id", "diagnoses"]).set_index("hadm_id")["diagnoses"]
    if codes.isna().all():
        raise RequestError(
            f"cohort: expected diagnoses in {file}, found none. Put the table DIAGNOSES_ICD beside the others and make "
            "the cohort again."
        )
    of_stays = [groups_of_stay(each) for each in codes.reindex(stays["hadm_id"])]
    uncoded = sum(not each for each in of_stays)
    if uncoded:
        log(f"diagnoses: {uncoded:,} of {len(of_stays):,} stays have no code of ICD-9 or ICD-10, and so no diagnosis")
    is_train = (stays["split"] == "train").tolist()
    names = commonest((each for each, wanted in zip(of_stays, is_train, strict=True) if wanted), groups)
    if not names:
        raise RequestError(
            f"cohort: expected groups of ICD-9 or ICD-10 in {file}, found none that ten stays of train have."
        )
    return names, indicators(of_stays, names)


ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class LabelledNotes:
    """The stays that have notes, in the order of their file.

    table: hadm_id, subject_id, split, characters of the text. flow: how many came to be left.
    names: of the labels. labels: whether each is true of each stay, (stays, labels).
    """

    outcome: PatientOutcome
    file: Path
    table: pd.DataFrame
    flow: Flow
    names: tuple[str, ...]
    labels: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.table)

    @property
    def input(self) -> Input | None:
        """Which notes of a stay these are; None where their folder does not name it."""
        return about(self.file.parent).get("input")

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
        """The labels of train, and those of validation, permuted over subjects; those of test stay."""
        labels, generator = self.labels.copy(), np.random.default_rng(seed)
        for split in ("train", "validation"):
            labels[self.is_in(split)] = self.permuted_labels(split, generator)
        return replace(self, labels=labels)

    def permuted_labels(self, split: str, generator: np.random.Generator) -> NDArray[np.bool_]:
        """The labels of `split`, (stays of it, labels), permuted over subjects.

        The labels of all stays of a subject move together, so that most that belonged to one subject still do, and the
        labels of each stay stay together.
        """
        _, numbers = np.unique(self.table.loc[self.is_in(split), "subject_id"], return_inverse=True)
        order = generator.permutation(numbers.max(initial=-1) + 1)
        labels = self.labels[self.is_in(split)]
        permuted = np.empty_like(labels)
        permuted[np.argsort(numbers, kind="stable")] = labels[np.argsort(order[numbers], kind="stable")]
        return permuted


def read_labelled_notes(
    notes: Path, cohort: Path, outcome: PatientOutcome = READMISSION, groups: int = GROUPS
) -> LabelledNotes:
    """The notes in the folder `notes` with the labels that the folder `cohort` has for `outcome`.

    groups: of diagnoses, at most.
    Raises RequestError for folders that other stages wrote, for notes of another cohort or that leak the outcome,
    and where the labels of train, validation or test are all alike.
    """
    file = _there(notes / NOTES_FILE, "notes", "domain.notes")
    if outcome.early_only:
        _check_early(outcome, notes)
    flow = Flow()
    table = _matched(file, _stays(cohort, outcome, flow), cohort)
    flow.count("with notes", table)
    names, labels = labels_of(outcome, table, cohort, groups)
    for split in SPLITS:
        is_in = (table["split"] == split).to_numpy()
        part = flow.count(split, table[is_in])
        if outcome.kind == "binary":
            flow.count(f"{split}, {in_words(names[0])}", part[labels[is_in, 0]])
        _check_both(outcome, split, names, labels[is_in])
    return LabelledNotes(outcome, file, table, flow, names, labels)


def about(notes: Path) -> dict[str, Any]:
    """Which notes of which stays the folder `notes` has."""
    return read_json(notes / ABOUT_FILE) or {}


def _check_early(outcome: PatientOutcome, notes: Path) -> None:
    found = about(notes)
    named = found.get("input", f"none named in {ABOUT_FILE}")
    if named != "early":
        raise RequestError(
            f"notes: {outcome.name} is predicted from early notes alone, as a discharge summary leaks it; expected "
            f'them in {notes}, found notes of input {named}. Set input = "early" and stays = "all" in their stage, '
            "domain.notes."
        )
    if found.get("stays") != "all":
        raise RequestError(
            f"notes: {outcome.name} is predicted for all stays, those that end in death among them; expected their "
            f'notes in {notes}, found those of stays that a readmission can follow. Set stays = "all" in their stage, '
            "domain.notes."
        )


def _stays(cohort: Path, outcome: PatientOutcome, flow: Flow) -> pd.DataFrame:
    """Ids, split, and what the labels are made of."""
    ids = ["hadm_id", "subject_id", "split"]
    if not outcome.early_only:
        file = _there(cohort / COHORT, "cohort", "domain.cohort")
        return flow.count("of the cohort", _read(file, [*ids, *outcome.labels]))
    file = _there(cohort / STAYS, "cohort", "domain.cohort")
    return flow.count("of all stays", _read(file, [*ids, "died_in_hospital", "length_of_stay_days"]))


def _matched(file: Path, stays: pd.DataFrame, cohort: Path) -> pd.DataFrame:
    """The stays that `file` has notes of, in its order."""
    known = _read(file, ["hadm_id", "split"]).assign(characters=_lengths(file))
    table = known.merge(stays, "left", "hadm_id", suffixes=("_of_notes", ""))
    unmatched = int((table["split"] != table["split_of_notes"]).sum())  # a missing split differs from any
    if unmatched:
        raise RequestError(
            f"notes: of {len(table):,} stays in {file}, {unmatched:,} are not in the cohort of {cohort}, or in another "
            "split of it. Give the cohort that these notes were put together for."
        )
    blank = int((table["characters"] == 0).sum())
    if blank:
        raise RequestError(f"notes: expected a text for every stay, found none for {blank:,} in {file}")
    return table.drop(columns="split_of_notes").infer_objects()


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


def _check_both(outcome: PatientOutcome, split: str, names: tuple[str, ...], labels: NDArray[np.bool_]) -> None:
    """Of several labels that may be true together, one that differs between stays is enough."""
    counts = labels.sum(0)
    alike = [place for place, count in enumerate(counts) if count in (0, len(labels))]
    if alike and (outcome.kind != "multi-label" or len(alike) == len(counts)):
        raise RequestError(
            f"cohort: expected stays with {in_words(names[alike[0]])!r} and without in {split}, found "
            f"{counts[alike[0]]:,} of {len(labels):,} with it. Take a larger cohort, or larger shares of it for "
            "validation and test."
        )
