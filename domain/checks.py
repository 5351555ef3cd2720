"""Findings of a data check, their one JSON form, and the checks that entities, questions and clinical splits share."""

import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertrelay.data.tables import Rejected
from bertrelay.errors import RequestError
from domain.reading import MAX_LINES

Severity = Literal["good", "warn", "fail"]
Split = Literal["train", "dev", "test"]

SEVERITIES: tuple[Severity, ...] = ("good", "warn", "fail")
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
SPLIT_WORDS: tuple[tuple[Split, str], ...] = (("train", "train"), ("dev", "dev"), ("dev", "valid"), ("test", "test"))
EXAMPLES = 5
MOST_PLACES = 1000

MAX_UNUSABLE = 0.01  # of a file's records; where training stops as well


class Place(NamedTuple):
    """The place of something that a check reports.

    kind: what it is. line: in Parquet the row. record: the id of the document or question.
    start, end: its characters in the record. text: these characters.
    group: the same number for places that belong together, such as those of equal records.
    Of sensitive data, ids are withheld and text is empty.
    """

    kind: str
    file: str
    line: int
    record: str = ""
    start: int | None = None
    end: int | None = None
    text: str = ""
    group: int | None = None

    def as_json(self) -> dict[str, object]:
        """The fields that are not empty."""
        return {name: value for name, value in self._asdict().items() if value not in (None, "")}

    def __str__(self) -> str:
        unit = "row" if self.file.endswith(".parquet") else "line"
        where = f"{self.file}, {unit} {self.line:,}" + (f", {self.record}" if self.record else "")
        span = "" if self.start is None else f", {self.start:,} to {self.end:,}"
        return where + span + (f" {json.dumps(self.text, ensure_ascii=False)}" if self.text else "")


class Finding(NamedTuple):
    """The result of one check.

    summary: the result in words, and what to do. counts: the numbers in it.
    places: of single faults, `MOST_PLACES` of a kind at most.
    """

    check: str
    severity: Severity
    summary: str
    counts: Mapping[str, float]
    places: Sequence[Place] = ()

    @property
    def total(self) -> int:
        """The first of the counts."""
        return int(next(iter(self.counts.values())))

    @property
    def examples(self) -> dict[str, str]:
        """The first place of each kind, with the others of its group: `a.tsv, line 1 and b.tsv, line 3`."""
        first: dict[str, list[Place]] = {}
        for fault in self.places:
            faults = first.setdefault(fault.kind, [])
            if not faults or (fault.group is not None and fault.group == faults[0].group):
                faults.append(fault)
        return {kind: " and ".join(map(str, faults)) for kind, faults in first.items()}

    def as_json(self) -> dict[str, Any]:
        """The one form of `data check --json`, `data audit --json` and `audit.json`."""
        return {**self._asdict(), "counts": dict(self.counts), "places": [fault.as_json() for fault in self.places]}


def findings_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """All findings, and the most severe of them."""
    return {"severity": overall(findings), "findings": [finding.as_json() for finding in findings]}


class Occurrences:
    """Values of one kind, such as sentences, with the first place of each in each split.

    Of a value, a hash, a file and a line are in memory, some 100 bytes. After `add("train", "a", "a.tsv", 1)`,
    `add("train", "a", "a.tsv", 2)` and `add("test", "a", "b.tsv", 1)`, `repeated("train")` is 1 and
    `shared("train", "test")` has one value.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.counts = Counter[str]()  # values of each split
        self._first: defaultdict[str, dict[int, int]] = defaultdict(dict)  # split → hash → position
        self._repeats: list[tuple[int, int]] = []  # places of some equal values of one split
        self._files: dict[str, int] = {}

    def add(self, split: str, value: Hashable, file: str, line: int) -> bool:
        """Counts a value; returns true for the first one of its split."""
        self.counts[split] += 1
        key, first = hash(value), self._first[split]
        position = self._files.setdefault(file, len(self._files)) * MAX_LINES + line
        if key not in first:
            first[key] = position
            return True
        if len(self._repeats) < EXAMPLES:
            self._repeats.append((first[key], position))
        return False

    def distinct(self, split: str) -> int:
        """The number of different values of a split."""
        return len(self._first[split])

    def repeated(self, split: str) -> int:
        """The number of values that occur earlier in the same split."""
        return self.counts[split] - self.distinct(split)

    def repeats(self) -> list[Place]:
        """The places of some repeated values, each with the first one."""
        return self._places(self._repeats)

    def shared(self, *splits: str) -> "Shared":
        """The values that two or more of `splits`, or of all splits, have."""
        firsts = [self._first[split] for split in splits or sorted(self._first)]
        splits_of_key = Counter(chain.from_iterable(firsts))
        keys = [key for key, count in splits_of_key.items() if count > 1]
        return Shared(
            len(keys), self._places([[first[key] for first in firsts if key in first] for key in keys[:EXAMPLES]])
        )

    def _places(self, groups: Sequence[Sequence[int]]) -> list[Place]:
        files = [*self._files]
        return [
            Place(self.kind, files[position // MAX_LINES], position % MAX_LINES, group=number)
            for number, positions in enumerate(groups, 1)
            for position in positions
        ]


@dataclass(frozen=True)
class Shared:
    """Values that splits share: how many, and the places of the first few in each split."""

    count: int
    places: list[Place]


def row_places(rows: Sequence[Rejected]) -> list[Place]:
    """The places of rejected records."""
    return [Place(row.reason, row.file, row.line, row.record) for row in rows[:MOST_PLACES]]


def worst(severities: Iterable[Severity]) -> Severity:
    """The most severe; good where there is none."""
    return max(severities, key=SEVERITIES.index, default="good")


def overall(findings: Sequence[Finding]) -> Severity:
    """The most severe of all findings."""
    return worst(finding.severity for finding in findings)


def exit_code(findings: Sequence[Finding]) -> int:
    """The exit code of a command that reports these: 1 when something fails."""
    return int(overall(findings) == "fail")


def report(findings: Sequence[Finding]) -> Iterator[str]:
    """Yields a line for each finding, below it one for the first place of each kind, and one for all of them."""
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        yield f"{finding.severity:4}  {finding.check:{width}}  {finding.summary}"
        for kind, example in finding.examples.items():
            yield f"{'':4}  {'':{width}}  {kind}: {example}"
    counts = Counter[str](finding.severity for finding in findings)
    total = ", ".join(f"{counts[severity]} {severity}" for severity in SEVERITIES)
    yield f"{overall(findings):4}  {'overall':{width}}  {total}"


def by_fraction(count: int, total: int, limit: float) -> Severity:
    """Good for none, and fail for more than a fraction `limit` of the total."""
    return "good" if not count else "fail" if count > limit * total else "warn"


def duplicates(values: Occurrences, splits: Iterable[str], title: str) -> Finding:
    """Values that a split has more than once."""
    counts: dict[str, float] = {split: values.repeated(split) for split in splits}
    listed = ", ".join(f"{split} {count:,} of {values.counts[split]:,}" for split, count in counts.items())
    severity: Severity = "warn" if any(counts.values()) else "good"
    return Finding("duplicates", severity, f"{title}: {listed}", counts, values.repeats())


def shown(names: Sequence[str]) -> str:
    """The first few names, with an ellipsis for others."""
    return "; ".join([*names[:EXAMPLES], *(["…"] if len(names) > EXAMPLES else [])])


def summarize_lengths(lengths: Mapping[Split, Sequence[int]], limit: int | None = None) -> tuple[str, dict[str, float]]:
    """Median, 95th percentile and maximum of each split; the longest of all, and the number above the limit.

    `{"train": [3, 5, 9]}` with limit 8 gives `train: median 5, 95 % up to 5, longest 9` and `{longest: 9, long: 1}`.
    """
    listed = []
    for split, ordered in ((split, sorted(numbers)) for split, numbers in lengths.items() if numbers):
        median, high = statistics.median_low(ordered), ordered[int(0.95 * (len(ordered) - 1))]
        listed.append(f"{split}: median {median:,}, 95 % up to {high:,}, longest {ordered[-1]:,}")
    longest = max(chain.from_iterable(lengths.values()), default=0)
    long = sum(length > (limit or longest) for length in chain.from_iterable(lengths.values()))
    return "; ".join(listed) or "none", {"longest": longest, "long": long}


def splits_of(files: Sequence[Path]) -> dict[Split, Path]:
    """The split of each file: by its name where all names say so, else train, dev and test in this order.

    Raises RequestError for none and for more than three.
    """
    if not 1 <= len(files) <= len(SPLITS):
        raise RequestError(f"expected one to three files (train, dev and test), found {len(files)}")
    possible = [_named_splits(file.name.lower()) for file in files]
    named = [split for splits in possible for split in splits if len(splits) == 1]
    return dict(zip(named if len(set(named)) == len(files) else SPLITS, files, strict=False))


def _named_splits(name: str) -> set[Split]:
    """The splits that words of a name begin with; where none does, those anywhere in it, as in `NCBItestset.txt`."""
    words = re.findall("[a-z]+", name)
    begun = {split for split, start in SPLIT_WORDS if any(word.startswith(start) for word in words)}
    return begun or {split for split, start in SPLIT_WORDS if start in name}
