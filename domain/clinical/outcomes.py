"""The labels of an outcome, and the notes of stays with them."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bertrelay.errors import RequestError
from bertrelay.files import read_json
from bertrelay.inputs import note_input
from bertrelay.progress import log, spinner
from domain.clinical.note_store import digest_of
from domain.clinical.settings import (
    DIAGNOSES,
    GROUPS,
    LENGTH_OF_STAY,
    NOTES_ABOUT,
    READMISSION,
    PatientOutcome,
    in_words,
)
from domain.clinical.stage_files import (
    CHARACTERISTICS,
    COHORT,
    COHORT_FACTS,
    NOTES_FILE,
    SPLITS,
    STAYS,
    Flow,
    as_label,
    read_columns,
)
from domain.sampling import unit_hash

CATEGORIES = {
    9: re.compile(r"(\d{3}|V\d\d)\d{0,2}|(E\d{3})\d?"),
    10: re.compile(r"([A-Z]\d[0-9A-Z])[0-9A-Z]{0,4}"),
}
"""By the version of ICD. An ICD-9 E code names the cause of an injury, and has a character more."""

RECORDED = ("input", "radiology", "cut", "window_days", "deaths_counted")
"""Facts of the folders of notes and cohort that a model keeps."""
FEWEST_STAYS = 10
ROWS_AT_ONCE = 256


def group_of(code: str, version: int) -> str | None:
    """`ICD-9 428` for `4280`; None for what is no code of that version.

    With its version, as `V58` is aftercare in the one and an accident with a pick-up in the other.
    """
    category = CATEGORIES.get(version)
    match = category.fullmatch(code.strip().replace(".", "").upper()) if category else None
    return f"ICD-{version} {next(filter(None, match.groups()))}" if match else None


SHORT_DAYS, LONG_DAYS = 3, 7
Labels = tuple[tuple[str, ...], NDArray[np.bool_]]
"""The names of labels, and whether each is true of each stay, (stays, labels)."""


def labels_of(outcome: PatientOutcome, stays: pd.DataFrame, cohort: Path, groups: int | Sequence[str]) -> Labels:
    """The labels of `stays`, a row each, from the folder `cohort`.

    groups: of diagnoses, so many of the commonest of train, or their names.
    """
    if outcome is DIAGNOSES:
        return _diagnoses(stays, cohort, groups)
    columns = ["length_of_stay_days"] if outcome is LENGTH_OF_STAY else list(outcome.labels)
    unknown = int(stays[columns].isna().any(axis=1).sum())
    if unknown:
        raise RequestError(
            f"cohort: expected {', '.join(columns)} of every stay in {cohort}, found {unknown:,} of {len(stays):,} "
            "without. Leave these stays out, or make the cohort again."
        )
    if outcome is LENGTH_OF_STAY:
        if not pd.api.types.is_numeric_dtype(stays["length_of_stay_days"]) or (stays["length_of_stay_days"] < 0).any():
            raise RequestError(f"cohort: expected length_of_stay_days in {cohort} as numbers from 0, found others")
        days = stays["length_of_stay_days"].to_numpy(np.float64)
        bands = [days < SHORT_DAYS, (days >= SHORT_DAYS) & (days <= LONG_DAYS), days > LONG_DAYS]
        return outcome.labels, np.stack(bands, axis=1)
    return outcome.labels, np.stack([as_label(stays[name], cohort) for name in columns], axis=1)


def _diagnoses(stays: pd.DataFrame, cohort: Path, groups: int | Sequence[str]) -> Labels:
    """The commonest groups of train, of equally common ones the first by name. Groups of fewer than `FEWEST_STAYS`
    cannot be trained on, and a model's folder would name them.
    """
    file = _there(cohort / CHARACTERISTICS, "cohort", "domain.cohort")
    codes = read_columns(file, ["hadm_id", "diagnoses"]).set_index("hadm_id")["diagnoses"]
    if codes.isna().all():
        raise RequestError(
            f"cohort: expected diagnoses in {file}, found none. Put the table DIAGNOSES_ICD beside the others and make "
            "the cohort again."
        )
    listed = codes.reindex(stays["hadm_id"]).tolist()
    of_stays = [{group for code in codes if (group := group_of(code["code"], code["version"]))} for codes in listed]
    uncoded = sum(not groups_of_stay for groups_of_stay in of_stays)
    if uncoded:
        log(f"diagnoses: {uncoded:,} of {len(of_stays):,} stays have no code of ICD-9 or ICD-10, and so no diagnosis")
    names = _commonest(of_stays, stays, file)[:groups] if isinstance(groups, int) else tuple(groups)
    return names, np.array([[group in of_stay for group in names] for of_stay in of_stays], bool)


def _commonest(of_stays: Sequence[set[str]], stays: pd.DataFrame, file: Path) -> tuple[str, ...]:
    """The groups that ten stays of train or more have, the commonest first."""
    is_train = (stays["split"] == "train").tolist()
    counts = Counter(group for groups in compress(of_stays, is_train) for group in groups)
    commonest = sorted(
        (group for group in counts if counts[group] >= FEWEST_STAYS), key=lambda group: (-counts[group], group)
    )
    if not commonest:
        raise RequestError(
            f"cohort: expected groups of ICD-9 or ICD-10 in {file}, found none that ten stays of train have."
        )
    return tuple(commonest)


def texts_of(file: Path) -> Iterator[str]:
    """The texts of all stays, as a stream."""
    note_input(file)
    for batch in pq.ParquetFile(file).iter_batches(ROWS_AT_ONCE, columns=["text"]):
        yield from batch["text"].to_pylist()


class Resplit(NamedTuple):
    """A split of a cohort into validation and test, by a keyed hash of the subject; nobody is in train.

    validation_share: the fraction of the subjects in validation.
    """

    validation_share: float
    key: str

    def of_subjects(self, subjects: pd.Series) -> list[str]:
        """The splits of `subjects`, (stays,)."""
        hashes = (unit_hash(subject, self.key) for subject in subjects)
        return ["validation" if value < self.validation_share else "test" for value in hashes]


@dataclass(frozen=True)
class LabelledNotes:
    """The stays that have notes, in the order of their file.

    about: what the folders say of these notes and labels, as far as they do: `input`, `radiology`, `cut`,
        `window_days` and `deaths_counted`.
    table: hadm_id, subject_id, split, characters of the text. flow: counts of stays after each step.
    names: of the labels. labels: whether each is true of each stay, (stays, labels).
    """

    outcome: PatientOutcome
    file: Path
    about: Mapping[str, Any]
    table: pd.DataFrame
    flow: Flow
    names: tuple[str, ...]
    labels: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.table)

    def is_in(self, split: str) -> NDArray[np.bool_]:
        """Marks the stays in `split`, (stays,)."""
        return (self.table["split"] == split).to_numpy()

    def texts(self, rows: NDArray[np.bool_] | None = None) -> Iterator[str]:
        """The texts of all stays, or of those that `rows` marks, (stays,), as a stream."""
        return texts_of(self.file) if rows is None else compress(texts_of(self.file), rows)

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


@spinner("reading notes")
def read_labelled_notes(
    notes: Path,
    cohort: Path,
    outcome: PatientOutcome = READMISSION,
    groups: int | Sequence[str] = GROUPS,
    splits: Sequence[str] = SPLITS,
    resplit: Resplit | None = None,
) -> LabelledNotes:
    """The notes in the folder `notes` with the labels that the folder `cohort` has for `outcome`.

    groups: of diagnoses, how many at most, or their names. splits: those that are used. resplit: gives the splits in
    place of the cohort, which then needs none.
    Raises RequestError for folders that other stages wrote, for notes of another cohort or that leak the outcome,
    and where the labels of a split that is used are all alike.
    """
    file = _there(notes / NOTES_FILE, "notes", "domain.notes")
    about = read_json(notes / NOTES_ABOUT) or {}
    name, columns, step = COHORT, list(outcome.labels), "of the cohort"
    if outcome.early_only:
        name, columns, step = STAYS, ["died_in_hospital", "length_of_stay_days"], "of all stays"
        remedy = 'Set input = "early" and stays = "all" in their stage, domain.notes.'
        if about.get("input") != "early":
            raise RequestError(
                f"notes: {outcome.name} is predicted from early notes only, as a discharge summary leaks it; expected "
                f"them in {notes}, found notes of input {about.get('input', f'none named in {NOTES_ABOUT}')}. {remedy}"
            )
        if about.get("stays") != "all":
            raise RequestError(
                f"notes: {outcome.name} is predicted for all stays, those that end in death among them; expected their "
                f"notes in {notes}, found those of stays that a readmission can follow. {remedy}"
            )
    flow = Flow(outcome.labels[0] if outcome.kind == "binary" else None)
    of_cohort = _there(cohort / name, "cohort", "domain.cohort")
    ids = ["hadm_id", "subject_id"] if resplit else ["hadm_id", "subject_id", "split"]
    stays = flow.count(step, read_columns(of_cohort, [*ids, *columns]))
    _refuse_unusable(stays, of_cohort)
    table = _matched(file, stays, cohort)
    if resplit:
        table = table.assign(split=resplit.of_subjects(table["subject_id"]))
    flow.keep("with notes", stays, stays["hadm_id"].isin(table["hadm_id"]))
    if left_out := flow.exclusions():
        log(f"{outcome.name}: {len(table):,} of {len(stays):,} stays; left out by each step: {left_out}")
    _refuse_shared(table, cohort)
    names, labels = labels_of(outcome, table, cohort, groups)
    for split in splits:
        is_in = (table["split"] == split).to_numpy()
        part = flow.count(split, table[is_in])
        if outcome.kind == "binary":
            flow.count(f"{split}, {in_words(names[0])}", part[labels[is_in, 0]])
        counts = labels[is_in].sum(0)
        alike = np.flatnonzero((counts == 0) | (counts == len(part)))
        # Of several labels that may be true together, one that differs between stays is enough.
        if len(alike) and (outcome.kind != "multi-label" or len(alike) == len(counts)):
            raise RequestError(
                f"cohort: expected stays with {in_words(names[alike[0]])!r} and without in {split}, found "
                f"{counts[alike[0]]:,} of {len(part):,} with it. Take a larger cohort, or a larger fraction of it for "
                "that split."
            )
    facts = about | ((read_json(cohort / COHORT_FACTS) or {}) if outcome is READMISSION else {})
    recorded = {name: facts[name] for name in RECORDED if name in facts}
    return LabelledNotes(outcome, file, recorded, table.drop(columns="digest"), flow, names, labels)


def _refuse_unusable(stays: pd.DataFrame, file: Path) -> None:
    """Raises RequestError for stays without a subject, which nobody could keep in one split, and of another split."""
    unknown = int((stays["subject_id"] == "").sum())
    if unknown:
        raise RequestError(
            f"{file}: expected a subject_id of every stay, found none of {unknown:,} of {len(stays):,}. Without it a "
            "patient may be in two splits"
        )
    others = 0 if "split" not in stays else int((~stays["split"].isin(SPLITS)).sum())
    if others:
        raise RequestError(
            f"{file}: expected {', '.join(SPLITS)} in split, found {others:,} of {len(stays):,} stays otherwise. Name "
            "the splits so, and leave out stays of no split"
        )


def _refuse_shared(table: pd.DataFrame, cohort: Path) -> None:
    """Raises RequestError where a subject is in two splits; logs the number of texts that are."""
    of_subjects = table.groupby("subject_id")["split"].nunique()
    shared = int((of_subjects > 1).sum())
    if shared:
        raise RequestError(
            f"cohort: expected each subject in one split, found {shared:,} of {len(of_subjects):,} in two or more in "
            f"{cohort}, so that a model would be tested on patients it was trained on. Split by subject, as the stage "
            "domain.cohort does; `bertrelay data audit` names the rows."
        )
    texts = int((table.groupby("digest")["split"].nunique() > 1).sum())
    if texts:
        log(f"{texts:,} texts of the notes stand in two splits or more; `bertrelay data audit` names their rows")


def _matched(file: Path, stays: pd.DataFrame, cohort: Path) -> pd.DataFrame:
    """The stays that `file` has notes of, in its order."""
    notes = read_columns(file, ["hadm_id", "split"] if "split" in stays else ["hadm_id"])
    texts = [(len(text), digest_of(text)) for text in texts_of(file)]
    table = notes.assign(characters=[size for size, _ in texts], digest=[digest for _, digest in texts])
    table = table.merge(stays, "left", "hadm_id", suffixes=("_of_notes", ""))
    is_unmatched = table["subject_id"].isna()
    if "split" in stays:
        is_unmatched |= table["split"] != table["split_of_notes"]
    if unmatched := int(is_unmatched.sum()):
        raise RequestError(
            f"notes: of {len(table):,} stays in {file}, {unmatched:,} are not in the cohort of {cohort}, or in another "
            "split of it. Give the cohort that these notes were put together for."
        )
    blank = int((table["characters"] == 0).sum())
    if blank:
        raise RequestError(f"notes: expected a text for every stay, found none for {blank:,} in {file}")
    return table.drop(columns="split_of_notes", errors="ignore").infer_objects()


def _there(file: Path, setting: str, stage: str) -> Path:
    if not file.is_file():
        raise RequestError(f"{setting}: expected the folder that {stage} wrote, found no {file.name} in {file.parent}")
    return file
