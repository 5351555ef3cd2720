"""The stage `domain.audit`: subjects, admissions, equal texts and near-duplicate texts that splits share.

Findings have counts and row numbers, never a text or an identifier. Near-duplicates are found by MinHash and LSH, and
reported only when their exact overlap is high. The overlap of two texts is the Jaccard index of their shingles, runs
of five words (Broder 1997). Texts agree in one value of a MinHash as often as they are alike, so that those of 0.8 and
more share one of 16 bands of 4 values in 9,998 cases of 10,000.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pandas.util import hash_array

from bertrelay.data.records import canonical_id, is_missing
from bertrelay.data.tables import find_optional
from bertrelay.errors import RequestError, WorkError
from bertrelay.files import write_json
from bertrelay.privacy import sensitive_data
from bertrelay.progress import log, progress
from bertrelay.stage import Metrics, StageContext
from domain.checks import EXAMPLES, Finding
from domain.clinical.mimic import IDS
from domain.clinical.settings import NEAR, AuditSettings
from domain.sampling import mixed

WORDS_OF_SHINGLE = 5
BANDS, ROWS_OF_BAND = 16, 4
PARTNERS = 8  # of another split one is enough
MOST_COMPARED = 256  # a template may make thousands of texts alike
SURE_BANDS = 12  # texts of 0.75 share so many in one case of 2,000, and those of 0.95 in nine of ten

Shingles = NDArray[np.uint64]


def shingles_of(text: str) -> Shingles:
    """The hashes of distinct shingles, sorted: of five words in lower case each, or all words where there are fewer."""
    words = hash_array(np.array(text.lower().split(), object), categorize=False)  # Python's own change with every run
    length = min(WORDS_OF_SHINGLE, len(words))
    hashes = np.zeros(len(words) - length + 1 if len(words) else 0, np.uint64)
    for place in range(length):
        hashes = mixed(hashes + words[place : place + len(hashes)])
    return np.unique(hashes)


def band_keys(shingles: Shingles) -> Shingles:
    """A key for each band (bands,): texts with one key in common are worth comparing. There must be a shingle."""
    factors = mixed(np.arange(1, BANDS * ROWS_OF_BAND + 1, dtype=np.uint64)) | np.uint64(1)
    smallest = np.multiply.outer(factors, shingles).min(axis=1)  # odd factors reorder 64 bits without losing any
    bands = smallest.reshape(BANDS, ROWS_OF_BAND)
    keys = np.zeros(BANDS, np.uint64)
    for column in bands.T:
        keys = mixed(keys + column)
    return keys


def jaccard(first: Shingles, second: Shingles) -> float:
    """The Jaccard index of two sets of shingles."""
    shared = len(np.intersect1d(first, second, assume_unique=True))
    return shared / (len(first) + len(second) - shared)


def candidate_pairs(keys: Shingles, splits: Sequence[str], texts: Sequence[object]) -> list[tuple[int, int]]:
    """The pairs of other texts of different splits, by their places, that share most bands, up to eight for each.

    keys: (texts, bands), of `band_keys`. texts: equal where texts are, which are no pair.
    """
    numbers = np.stack([np.unique(np.array(each), return_inverse=True)[1] for each in (splits, texts)], axis=1)
    partners: dict[int, dict[int, int]] = defaultdict(dict)  # of each text others, with the bands that they share
    for group in _sharing(keys, np.arange(len(keys))):
        for split in np.unique(numbers[group, 0]).tolist():
            is_of_split = numbers[group, 0] == split
            others = group[~is_of_split][:MOST_COMPARED]
            for place in group[is_of_split].tolist() if len(others) else ():
                if sum(shared >= SURE_BANDS for shared in partners[place].values()) == PARTNERS:
                    continue
                shared = (keys[others] == keys[place]).sum(1) * (numbers[others, 1] != numbers[place, 1])
                most = np.argsort(-shared, kind="stable")[:PARTNERS]
                found = partners[place] | dict(zip(others[most].tolist(), shared[most].tolist(), strict=True))
                partners[place] = dict(sorted(found.items(), key=itemgetter(1), reverse=True)[:PARTNERS])
    pairs = ((place, other) for place, found in partners.items() for other, shared in found.items() if shared)
    return sorted({(min(pair), max(pair)) for pair in pairs})


def _sharing(keys: Shingles, places: NDArray[np.int64], first_band: int = 0) -> Iterator[NDArray[np.int64]]:
    """Groups of texts that share a band, as their places.

    A group of more than `MOST_COMPARED`, as texts of one template are, is divided by each later band: near-duplicates
    share many bands, so that they meet in one of these, and time does not grow with the square of such a group.
    """
    for band in range(first_band, BANDS):
        order = places[np.argsort(keys[places, band], kind="stable")]
        borders = np.flatnonzero(keys[order[1:], band] != keys[order[:-1], band]) + 1
        starts, ends = np.append(0, borders), np.append(borders, len(order))
        for start, end in zip(starts[ends - starts > 1], ends[ends - starts > 1], strict=True):
            group = np.sort(order[start:end])
            if len(group) <= MOST_COMPARED or first_band:
                yield group
            else:
                yield from _sharing(keys, group, band + 1)


COLUMNS = (*IDS, "text")
FEWEST_WORDS = 20
ROWS_OF_BATCH = 512
SHARED = {"subject_id": "subjects", "hadm_id": "admissions", "digest": "texts"}
HINT = "Give cohort.parquet, notes.parquet or files like them."


def run(settings: AuditSettings, context: StageContext) -> Metrics:
    """Writes `audit.json`; returns the counts of what is shared. Raises WorkError at a leak, if they stop the run."""
    if not context.process_group.is_main:
        return {}
    findings = find_split_leakage(settings.files, settings.near)
    write_json(context.output / "audit.json", {"findings": [finding_json(finding) for finding in findings]})
    for finding in findings:
        log(f"{finding.severity}  {finding.summary}")
    leaks = [finding.summary for finding in findings if finding.severity == "fail"]
    if leaks and settings.leaks == "stop":
        raise WorkError(
            f"the splits share what they should not: {'; '.join(leaks)}. Split by subject with the stage "
            'domain.cohort, or set leaks = "tell" to continue'
        )
    return {finding.check: finding.total for finding in findings}


def finding_json(finding: Finding) -> dict[str, Any]:
    """A finding as `audit.json` and the command line have it."""
    about = {"level": finding.severity, "name": finding.check, "summary": finding.summary}
    return about | {"count": finding.total, "rows": list(finding.examples)}


@sensitive_data()
def find_split_leakage(files: Sequence[str | Path], near: float = NEAR) -> list[Finding]:
    """Checks Parquet files with a column `split`, all of them together, for what their splits share.

    Columns are found in any case (`SUBJECT_ID`); those that the files do not have are not checked.
    Raises RequestError for a file that cannot be read, or has none of the columns, and for a row that has no split, or
    an id or text that is none.
    """
    paths = [Path(file) for file in files]
    batches = [_digested(batch) for batch in _batches(paths)]
    if not batches:
        raise RequestError(f"expected rows to check, found none in {', '.join(map(str, paths))}. {HINT}")
    rows = pd.concat(batches, ignore_index=True)
    findings = [_shared(name, rows, column) for column, name in SHARED.items() if column in rows]
    return [*findings, *([_near(paths, near, rows)] if "digest" in rows else [])]


def _batches(files: Sequence[Path]) -> Iterator[pd.DataFrame]:
    """The columns that are checked, some hundred rows at a time, with the `place` of each: its file and row, from 1.

    Raises RequestError for a file that cannot be read or has nothing to check.
    """
    for file in files:
        if not file.is_file():
            raise RequestError(f"there is no file {file}. {HINT}")
        try:
            table = pq.ParquetFile(file)
            there, wanted = table.schema_arrow.names, ("split", *COLUMNS)
            found = zip(wanted, find_optional(str(file), wanted, there), strict=True)
            names = {name: there[position] for name, position in found if position is not None}
            if "split" not in names or len(names) == 1:
                raise RequestError(
                    f"{file}: expected a column split and one of {', '.join(COLUMNS)} (in any case), found "
                    f"{len(there)} columns without. {HINT}"
                )
            numbers = count(1)
            with progress("audit", table.metadata.num_rows, "rows") as bar:
                for batch in table.iter_batches(ROWS_OF_BATCH, columns=[*names.values()]):
                    places = [f"{file} row {row:,}" for row in islice(numbers, batch.num_rows)]
                    columns = {name: _checked(name, batch[own].to_pylist(), places) for name, own in names.items()}
                    yield pd.DataFrame(columns | {"place": places}, dtype=object)
                    bar.advance(batch.num_rows)
        except (pa.ArrowException, OSError) as error:
            raise RequestError(
                f"{file}: expected a Parquet file, found one that cannot be read ({type(error).__name__}). Run the "
                f"stage that wrote it again. {HINT}"
            ) from None


def _checked(column: str, values: list[Any], places: Sequence[str]) -> list[str]:
    """The values of a column as text, ids in their one form, empty where missing. Raises RequestError with a place."""
    found = []
    for value, place in zip(values, places, strict=True):
        try:
            has_one_form = column in IDS or (column == "split" and not is_missing(value))  # a split may be a number
            found.append(canonical_id(value) if has_one_form else "" if is_missing(value) else value)
            if not isinstance(found[-1], str):
                raise ValueError("something other than text")
            if column == "split" and not found[-1]:
                raise ValueError("none")
        except ValueError as error:
            raise RequestError(f"{place}: expected {column} as text, found {error}. {HINT}") from None
    return found


def _digested(batch: pd.DataFrame) -> pd.DataFrame:
    """The rows of a batch with a digest of their text, and its band keys, in place of it; none of a short text."""
    if "text" not in batch:
        return batch
    keys, digests = [], []
    for text in batch["text"]:
        words = text.lower().split()
        is_long = len(words) >= FEWEST_WORDS
        keys.append(band_keys(shingles_of(text)) if is_long else None)
        digests.append(hashlib.blake2b(" ".join(words).encode(), digest_size=16).digest() if is_long else "")
    return batch.drop(columns="text").assign(digest=digests, keys=pd.Series(keys, batch.index, dtype=object))


def _shared(name: str, rows: pd.DataFrame, column: str) -> Finding:
    """What is in several splits."""
    known = rows[rows[column].fillna("") != ""].drop_duplicates([column, "split"])
    leaks = known[known.duplicated(column, keep=False)].groupby(column, sort=False)
    if not leaks.ngroups:
        return Finding(f"shared_{name}", "good", f"no {name} in two splits", {"count": 0})
    examples = [group["place"].tolist() for _, group in islice(leaks, EXAMPLES)]
    summary = f"{name} in two splits or more: {leaks.ngroups:,}, such as {' and '.join(examples[0])}"
    return Finding(f"shared_{name}", "fail", summary, {"count": leaks.ngroups}, examples)


def _near(files: Sequence[Path], least: float, rows: pd.DataFrame) -> Finding:
    """Texts that have a near-duplicate in another split; equal ones are in another finding."""
    long = rows[rows["keys"].notna()].drop_duplicates(["digest", "split"], ignore_index=True)
    keys = np.array(long["keys"].tolist(), np.uint64).reshape(-1, BANDS)
    candidates = candidate_pairs(keys, long["split"].tolist(), long["digest"].tolist())
    wanted = {long["place"][number]: number for pair in candidates for number in pair}
    shingles = dict[int, Shingles]()
    for batch in (batch for batch in _batches(files) if "text" in batch) if wanted else ():
        for place, text in zip(batch["place"], batch["text"], strict=True):
            if place in wanted:
                shingles[wanted[place]] = shingles_of(text)
    alike = [pair for pair in candidates if jaccard(shingles[pair[0]], shingles[pair[1]]) >= least]
    texts = {number for pair in alike for number in pair}
    short = int((rows["digest"] == "").sum())
    note = f" ({short:,} texts of fewer than {FEWEST_WORDS} words were not compared)" if short else ""
    if not alike:
        return Finding("near_duplicates", "good", f"no near-duplicate texts in two splits{note}", {"count": 0})
    examples = [[long["place"][number] for number in pair] for pair in alike[:EXAMPLES]]
    summary = f"texts with a near-duplicate in another split: {len(texts):,}, such as {' and '.join(examples[0])}{note}"
    return Finding("near_duplicates", "warn", summary, {"count": len(texts)}, examples)
