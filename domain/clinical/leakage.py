"""The stage `domain.audit`: subjects, admissions, equal texts and near-duplicate texts that splits share.

Findings have counts and rows, never a text or an identifier. The overlap of two texts is the Jaccard index of their
shingles, runs of five words (Broder 1997). Near-duplicates are searched by MinHash and LSH, in 16 bands of 4 values,
of which texts of 0.8 share at least one in 9,998 cases of 10,000, and reported only when their exact overlap is high.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pandas.util import hash_array

from bertrelay.data.records import canonical_id, is_missing, rows
from bertrelay.data.tables import ABSENT, Table
from bertrelay.errors import RequestError, WorkError
from bertrelay.files import write_json
from bertrelay.privacy import sensitive_data
from bertrelay.progress import log
from bertrelay.stage import Metrics, StageContext
from domain.checks import EXAMPLES, Finding, Occurrences, Place, Severity, findings_json
from domain.clinical.settings import NEAR, AuditSettings
from domain.clinical.sources.mimic_tables import IDS
from domain.sampling import mixed

WORDS_OF_SHINGLE = 5
BANDS, ROWS_OF_BAND = 16, 4
CANDIDATES = 8  # of each text, those that seem most similar
FEWEST_WORDS = 20
COLUMNS = {"subject_id": "subjects", "hadm_id": "admissions", "text": "texts"}
HINT = "Give cohort.parquet, notes.parquet or files like them."

Shingles = NDArray[np.uint32]


def shingles_of(text: str) -> Shingles:
    """The hashes of distinct shingles, sorted: of five words in lower case each, or all words where there are fewer."""
    words = hash_array(np.array(text.lower().split(), object), categorize=False)  # Python's own change with every run
    length = min(WORDS_OF_SHINGLE, len(words))
    hashes = np.zeros(len(words) - length + 1 if len(words) else 0, np.uint64)
    for offset in range(length):
        hashes = mixed(hashes + words[offset : offset + len(hashes)])
    return np.unique((hashes >> np.uint64(32)).astype(np.uint32))  # datasketch permutes 32 bits


def jaccard(first: Shingles, second: Shingles) -> float:
    """The Jaccard index of two sets of shingles."""
    shared = len(np.intersect1d(first, second, assume_unique=True))
    return shared / (len(first) + len(second) - shared)


class Text(NamedTuple):
    """A text to compare: its split, a hash that equal texts share, and its place."""

    split: str
    digest: int
    file: str
    row: int


def candidate_pairs(texts: Sequence[Text], signatures: Sequence[Any]) -> list[tuple[int, int]]:
    """Pairs of different texts of two splits, by their numbers: for each text the eight that seem most similar.

    Only texts outside the largest split are in the index, to which all others are compared: patients of a test set are
    few. Time grows with the square of the number of texts of one template.
    signatures: the MinHash of each text.
    """
    from datasketch import MinHashLSH

    splits = [text.split for text in texts]
    largest = max(set(splits), key=splits.count, default="")
    index = MinHashLSH(num_perm=BANDS * ROWS_OF_BAND, params=(BANDS, ROWS_OF_BAND))
    for number, signature in enumerate(signatures):
        if splits[number] != largest:
            index.insert(number, signature, check_duplication=False)
    values = np.array([signature.hashvalues for signature in signatures])
    pairs = set[tuple[int, int]]()
    for number, signature in enumerate(signatures):
        split, digest = texts[number][:2]
        others = [other for other in index.query(signature) if texts[other].split != split]
        others = sorted(other for other in others if texts[other].digest != digest)
        agreeing = (values[others] == values[number]).sum(axis=1)  # (others,)
        for rank in np.argsort(-agreeing, kind="stable")[:CANDIDATES].tolist():
            pairs.add((min(number, others[rank]), max(number, others[rank])))
    return sorted(pairs)


def run(settings: AuditSettings, context: StageContext) -> Metrics:
    """Writes `audit.json`; returns the counts of what is shared. Raises WorkError at a leak, if they stop the run."""
    if not context.process_group.is_main:
        return {}
    findings = find_split_leakage(settings.files, settings.near)
    write_json(context.output / "audit.json", findings_json(findings))
    for finding in findings:
        log(f"{finding.severity}  {finding.summary}")
    leaks = [
        f"{finding.summary}, such as {next(iter(finding.examples.values()))}"
        for finding in findings
        if finding.severity == "fail"
    ]
    if leaks and settings.leaks == "stop":
        raise WorkError(
            f"the splits share what they should not: {'; '.join(leaks)}. Split by subject with the stage "
            'domain.cohort, or set leaks = "report" to continue'
        )
    return {finding.check: finding.total for finding in findings}


@sensitive_data()
def find_split_leakage(files: Sequence[str | Path], near: float = NEAR) -> list[Finding]:
    """Checks Parquet files with a column `split`, all of them together, for what their splits share.

    Columns are matched in any case (`SUBJECT_ID`); those that the files do not have are not checked.
    near: the smallest overlap of near-duplicates.
    Raises RequestError for a file that cannot be read, or has none of the columns, and for a row that has no split, or
    an id or text that is none.
    """
    from datasketch import LeanMinHash, MinHash

    paths = [Path(file) for file in files]
    occurrences = {column: Occurrences(name.removesuffix("s")) for column, name in COLUMNS.items()}
    texts, signatures, short, columns = list[Text](), list[Any](), 0, set[str]()
    empty = MinHash(num_perm=BANDS * ROWS_OF_BAND, hashfunc=int)
    for row in _rows(paths):
        columns |= row.values.keys() - {"split"}
        split = row.values["split"]
        for column in IDS:
            if row.values.get(column):
                occurrences[column].add(split, row.values[column], row.file, row.number)
        words = row.values.get("text", "").lower().split()
        if len(words) < FEWEST_WORDS:
            short += "text" in row.values
            continue
        digest = hash(" ".join(words))
        if occurrences["text"].add(split, digest, row.file, row.number):
            texts.append(Text(split, digest, row.file, row.number))
            signature = empty.copy()
            signature.update_batch(shingles_of(row.values["text"]).tolist())
            signatures.append(LeanMinHash(signature))
    findings = [_shared(name, occurrences[column]) for column, name in COLUMNS.items() if column in columns]
    if "text" in columns:
        candidates = candidate_pairs(texts, signatures)
        findings.append(_near_duplicates(texts, _similar(paths, texts, candidates, near), short))
    return findings


class FileRow(NamedTuple):
    """The checked columns of a row, empty where a value is missing; `number` counts from 1."""

    file: str
    number: int
    values: dict[str, str]


def _rows(files: Sequence[Path]) -> Iterator[FileRow]:
    """Yields the rows of all files. Raises RequestError for a file that cannot be read or has nothing to check."""
    columns = ("split", *COLUMNS)
    for file in files:
        table = Table.model_validate({"path": str(file), "format": "parquet"})
        for record in rows(table, [], optional=columns):
            existing = {name: value for name, value in zip(columns, record.values, strict=True) if value is not ABSENT}
            if "split" not in existing or len(existing) == 1:
                raise RequestError(
                    f"{file}: expected a column split and one of {', '.join(COLUMNS)} (in any case), found "
                    f"{', '.join(existing) or 'none of them'}. {HINT}"
                )
            yield FileRow(str(file), record.line, _checked(existing, file, record.line))


def _checked(values: dict[str, Any], file: Path, row: int) -> dict[str, str]:
    """The values of a row as text, ids in their one form, empty where missing. Raises RequestError with the place."""
    texts = {}
    for column, value in values.items():
        try:
            is_id = column in IDS or (column == "split" and not is_missing(value))  # a split may be a number
            text = canonical_id(value) if is_id else "" if is_missing(value) else value
            if not isinstance(text, str):
                raise ValueError("something other than text")
            if column == "split" and not text:
                raise ValueError("none")
        except ValueError as error:
            raise RequestError(f"{file} row {row:,}: expected {column} as text, found {error}. {HINT}") from None
        texts[column] = text
    return texts


def _shared(name: str, values: Occurrences) -> Finding:
    shared = values.shared()
    severity: Severity = "fail" if shared.count else "good"
    summary = f"{name} in two splits or more: {shared.count:,}" if shared.count else f"no {name} in two splits"
    return Finding(f"shared_{name}", severity, summary, {"count": shared.count}, shared.places)


def _similar(
    files: Sequence[Path], texts: Sequence[Text], pairs: Sequence[tuple[int, int]], near: float
) -> list[tuple[int, int]]:
    """The pairs whose exact overlap is at least `near`; reads the files again for their texts."""
    numbers = {(texts[number].file, texts[number].row): number for pair in pairs for number in pair}
    shingles = {
        numbers[row.file, row.number]: shingles_of(row.values["text"])
        for row in (_rows(files) if pairs else ())
        if (row.file, row.number) in numbers
    }
    return [(first, other) for first, other in pairs if jaccard(shingles[first], shingles[other]) >= near]


def _near_duplicates(texts: Sequence[Text], pairs: Sequence[tuple[int, int]], short: int) -> Finding:
    """Texts that have a near-duplicate in another split; equal ones are in another finding."""
    similar = {number for pair in pairs for number in pair}
    summary = "no near-duplicate texts in two splits"
    if similar:
        summary = f"texts with a near-duplicate in another split: {len(similar):,}"
    summary += f" ({short:,} texts of fewer than {FEWEST_WORDS} words were not compared)" if short else ""
    examples = [
        Place("near-duplicate texts", texts[number].file, texts[number].row, group=group)
        for group, pair in enumerate(pairs[:EXAMPLES], 1)
        for number in pair
    ]
    severity: Severity = "warn" if similar else "good"
    return Finding("near_duplicates", severity, summary, {"count": len(similar)}, examples)
