"""Near-duplicate texts of different splits: found by MinHash and LSH, and told only when their exact overlap is high.

The likeness of two texts is the Jaccard index of their shingles, runs of five words (Broder 1997). Texts agree in one
value of a MinHash as often as they are alike, so that those of 0.8 and more share one of 16 bands of 4 values in 9,998
cases of 10,000.
"""

import hashlib
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertrelay.errors import RequestError, WorkError
from bertrelay.files import write_json
from bertrelay.privacy import sensitive_data
from bertrelay.progress import Bar, log, progress
from bertrelay.stage import Metrics, StageContext
from domain.clinical.ids import canonical_ids
from domain.clinical.settings import NEAR, AuditSettings
from domain.draws import mixed
from domain.findings import EXAMPLES, Finding

if TYPE_CHECKING:
    import pyarrow.parquet as pq

WORDS_OF_SHINGLE = 5
BANDS, ROWS_OF_BAND = 16, 4
PARTNERS = 8  # a template may make thousands of texts alike, and one of another split is enough

Shingles = NDArray[np.uint64]


class Pair(NamedTuple):
    """Two texts of different splits by their places, and the share of shingles that they have in common."""

    first: int
    second: int
    likeness: float


class Shingler:
    """Texts to hashes of their shingles; it remembers the hashes of words."""

    def __init__(self) -> None:
        self._words = _WordHashes()

    def __call__(self, text: str) -> Shingles:
        """The distinct shingles, sorted: of five words in lower case each, or all words where there are fewer."""
        found = text.lower().split()
        words = np.fromiter(map(self._words.__getitem__, found), np.uint64, len(found))
        length = min(WORDS_OF_SHINGLE, len(words))
        hashes = np.zeros(len(words) - length + 1 if found else 0, np.uint64)
        for place in range(length):
            hashes = mixed(hashes + words[place : place + len(hashes)])
        return np.unique(hashes)


class _WordHashes(dict[str, int]):
    def __missing__(self, word: str) -> int:
        data = word.encode()
        value = self[word] = zlib.crc32(data) << 32 | zlib.adler32(data)  # Python's own hash changes with every run
        return value


def band_keys(shingles: Shingles) -> Shingles:
    """A key for each band (bands,): texts with one key in common are worth comparing. There must be a shingle."""
    factors = mixed(np.arange(1, BANDS * ROWS_OF_BAND + 1, dtype=np.uint64)) | np.uint64(1)
    smallest = np.multiply.outer(factors, shingles).min(axis=1)  # odd factors reorder 64 bits without losing any
    bands = smallest.reshape(BANDS, ROWS_OF_BAND)
    keys = np.zeros(BANDS, np.uint64)
    for column in bands.T:
        keys = mixed(keys + column)
    return keys


def likeness(first: Shingles, second: Shingles) -> float:
    """The Jaccard index of two sets of shingles."""
    shared = len(np.intersect1d(first, second, assume_unique=True))
    return shared / (len(first) + len(second) - shared)


def near_pairs(
    keys: Shingles, splits: Sequence[str], shingles_of: Callable[[Iterable[int]], dict[int, Shingles]], least: float
) -> list[Pair]:
    """The pairs of different splits that are alike by `least` or more, up to eight for each text.

    keys: (texts, bands), of `band_keys`.
    shingles_of: the shingles of the texts at these places, which are read once more for the comparison.
    """
    pairs = sorted(_candidates(keys, splits))
    shingles = shingles_of(sorted({place for pair in pairs for place in pair}))
    compared = (Pair(first, second, likeness(shingles[first], shingles[second])) for first, second in pairs)
    return [pair for pair in compared if pair.likeness >= least]


def _candidates(keys: Shingles, splits: Sequence[str]) -> set[tuple[int, int]]:
    partners: dict[int, set[int]] = defaultdict(set)
    for band in keys.T:
        for places in _equal(band):
            for split in dict.fromkeys(splits[place] for place in places):
                others = [place for place in places if splits[place] != split][:PARTNERS]
                for place in (place for place in places if splits[place] == split):
                    partners[place].update(others[: PARTNERS - len(partners[place])])
    return {(min(place, other), max(place, other)) for place, found in partners.items() for other in found}


def _equal(band: Shingles) -> Iterator[list[int]]:
    """The places of equal values, where there are several."""
    order = np.argsort(band, kind="stable").tolist()
    for _, group in groupby(order, key=band.__getitem__):
        places = list(group)
        if len(places) > 1:
            yield places


IDS = ("subject_id", "hadm_id")
COLUMNS = (*IDS, "text")
FEWEST_WORDS = 20
ROWS_OF_BATCH = 512


class _Row(NamedTuple):
    """A row by its file and number from 1, with its split."""

    file: str
    number: int
    split: str

    def __str__(self) -> str:
        return f"{self.file} row {self.number:,}"


@dataclass
class _Seen:
    """What was met in the files: who stands in which splits, which texts are equal, and what may be alike."""

    subjects: dict[str, dict[str, _Row]] = field(default_factory=lambda: defaultdict(dict))
    admissions: dict[str, dict[str, _Row]] = field(default_factory=lambda: defaultdict(dict))
    texts: dict[bytes, dict[str, _Row]] = field(default_factory=lambda: defaultdict(dict))
    rows: list[_Row] = field(default_factory=list)  # those with a text that is long enough to be compared
    digests: list[bytes] = field(default_factory=list)
    keys: list[Shingles] = field(default_factory=list)
    short: int = 0


def run(settings: AuditSettings, context: StageContext) -> Metrics:
    """Writes `audit.json`; the counts of what is shared. Raises WorkError at a leak, unless they are only told."""
    if not context.process_group.is_main:
        return {}
    findings = look_for_leaks([Path(file) for file in settings.files], settings.near)
    write_json(context.output / "audit.json", {"findings": [finding_json(finding) for finding in findings]})
    for finding in findings:
        log(f"{finding.severity}  {finding.summary}")
    leaks = [finding.summary for finding in findings if finding.severity == "fail"]
    if leaks and settings.leaks == "stop":
        raise WorkError(
            f"the splits share what they should not: {'; '.join(leaks)}. Split by subject with the stage "
            'domain.cohort, or give leaks = "tell" to go on'
        )
    return {finding.check: finding.total for finding in findings}


def finding_json(finding: Finding) -> dict[str, Any]:
    """A finding as `audit.json` and the command line have it."""
    told, rows = finding.summary, list(finding.examples)
    return {"level": finding.severity, "name": finding.check, "told": told, "count": finding.total, "rows": rows}


@sensitive_data()
def look_for_leaks(files: Sequence[Path], near: float = NEAR) -> list[Finding]:
    """Looks through Parquet files with a column `split`, all of them together; what they do not have is not looked at.

    Raises RequestError for a file that cannot be read, or has none of the columns.
    """
    shingler, seen, columns = Shingler(), _Seen(), set[str]()
    with progress("audit", sum(_rows(file) for file in files), "rows") as bar:
        for file in files:
            columns |= _look(file, shingler, seen, bar)
    findings = []
    if "subject_id" in columns:
        findings.append(_shared("subjects", seen.subjects.values()))
    if "hadm_id" in columns:
        findings.append(_shared("admissions", seen.admissions.values()))
    if "text" in columns:
        findings.append(_shared("texts", seen.texts.values()))
        findings.append(_near(files, near, shingler, seen))
    return findings


def _look(file: Path, shingler: Shingler, seen: _Seen, bar: Bar) -> set[str]:
    """Takes in one file; the columns it has."""
    columns: set[str] = set()
    for rows in _batches(file, bar):
        columns = set(rows) - {"row"}
        for index, row in enumerate(rows["row"]):
            if "subject_id" in rows:
                _meet(seen.subjects, rows["subject_id"][index], row)
            if "hadm_id" in rows:
                _meet(seen.admissions, rows["hadm_id"][index], row)
            if "text" in rows:
                _take_text(rows["text"][index] or "", row, shingler, seen)
    return columns


def _batches(file: Path, bar: Bar) -> Iterator[dict[str, list[Any]]]:
    """The columns of a file that are looked at, some hundred rows at a time; `row` says where each stands."""
    import pyarrow as pa

    try:
        table = _opened(file)
        names = [name for name in COLUMNS if name in table.schema_arrow.names]
        done = 0
        for batch in table.iter_batches(ROWS_OF_BATCH, columns=["split", *names]):
            rows = {name: canonical_ids(batch[name]).to_pylist() for name in IDS if name in names}
            if "text" in names:
                rows["text"] = batch["text"].to_pylist()
            splits = enumerate(batch["split"].to_pylist(), done + 1)
            yield {**rows, "row": [_Row(str(file), number, str(split)) for number, split in splits]}
            done += batch.num_rows
            bar.advance(batch.num_rows)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file, error) from None


def _opened(file: Path) -> "pq.ParquetFile":
    """Raises RequestError for a file that has nothing to look at."""
    import pyarrow.parquet as pq

    if not file.is_file():
        raise RequestError(f"there is no file {file}. Give cohort.parquet, notes.parquet or files like them.")
    table = pq.ParquetFile(file)
    names = table.schema_arrow.names
    if "split" not in names or not set(COLUMNS).intersection(names):
        raise RequestError(
            f"{file}: expected a column split and one of {', '.join(COLUMNS)}, found {len(names)} columns without. "
            "Give cohort.parquet, notes.parquet or files like them."
        )
    return table


def _rows(file: Path) -> int:
    import pyarrow as pa

    try:
        return int(_opened(file).metadata.num_rows)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file, error) from None


def _unreadable(file: Path, error: Exception) -> RequestError:
    return RequestError(
        f"{file}: expected a Parquet file, found one that cannot be read ({type(error).__name__}). Run the stage that "
        "wrote it again, or give cohort.parquet, notes.parquet or files like them."
    )


def _meet(met: dict[Any, dict[str, _Row]], name: Hashable, row: _Row) -> None:
    """Notes that `name` stands in the row's split; the first row of each split is remembered."""
    if name:
        met[name].setdefault(row.split, row)


def _take_text(text: str, row: _Row, shingler: Shingler, seen: _Seen) -> None:
    words = text.lower().split()
    if len(words) < FEWEST_WORDS:
        seen.short += 1
        return
    digest = hashlib.blake2b(" ".join(words).encode(), digest_size=16).digest()
    _meet(seen.texts, digest, row)
    seen.rows.append(row)
    seen.digests.append(digest)
    seen.keys.append(band_keys(shingler(text)))


def _shared(name: str, met: Iterable[dict[str, _Row]]) -> Finding:
    """What stands in several splits."""
    leaks = [splits for splits in met if len(splits) > 1]
    examples = [[str(row) for row in splits.values()] for splits in leaks[:EXAMPLES]]
    if not leaks:
        return Finding(f"shared_{name}", "good", f"no {name} in two splits", {"count": 0})
    summary = f"{name} in two splits or more: {len(leaks):,}, such as {' and '.join(examples[0])}"
    return Finding(f"shared_{name}", "fail", summary, {"count": len(leaks)}, examples)


def _near(files: Sequence[Path], least: float, shingler: Shingler, seen: _Seen) -> Finding:
    """Texts that have a near-duplicate in another split; equal ones are told apart already."""

    def shingles_of(places: Iterable[int]) -> dict[int, Shingles]:
        wanted = {(seen.rows[place].file, seen.rows[place].number): place for place in places}
        found = {}
        for file in files if wanted else []:
            for rows in _batches(file, Bar()):
                for row, text in zip(rows["row"], rows.get("text", []), strict=False):
                    if (place := wanted.get((row.file, row.number))) is not None:
                        found[place] = shingler(text)
        return found

    keys = np.array(seen.keys, np.uint64).reshape(-1, BANDS)
    pairs = near_pairs(keys, [row.split for row in seen.rows], shingles_of, least)
    alike = [pair for pair in pairs if seen.digests[pair.first] != seen.digests[pair.second]]
    texts = {place for pair in alike for place in pair[:2]}
    short = f" ({seen.short:,} texts of fewer than {FEWEST_WORDS} words were not compared)" if seen.short else ""
    if not alike:
        return Finding("near_duplicates", "good", f"no near-duplicate texts in two splits{short}", {"count": 0})
    examples = [[str(seen.rows[place]) for place in pair[:2]] for pair in alike[:EXAMPLES]]
    summary = (
        f"texts with a near-duplicate in another split: {len(texts):,}, such as {' and '.join(examples[0])}{short}"
    )
    return Finding("near_duplicates", "warn", summary, {"count": len(texts)}, examples)
