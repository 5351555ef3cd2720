"""Findings of a data check: what was checked, how severe it is, counts, examples by place, and a line for each.

The checks of annotated entities, of questions and of what clinical splits share report these.
"""

import json
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from bertrelay.data.tables import Rejected
from bertrelay.errors import RequestError

Severity = Literal["good", "warn", "fail"]
Split = Literal["train", "dev", "test"]

SEVERITIES: tuple[Severity, ...] = ("good", "warn", "fail")
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
SPLIT_WORDS: tuple[tuple[Split, str], ...] = (("train", "train"), ("dev", "dev"), ("dev", "valid"), ("test", "test"))
EXAMPLES = 5
MOST_PLACES = 1000

MAX_UNUSABLE = 0.01  # of a file's records; where training stops as well


class Place(NamedTuple):
    """Where something is that a check has found.

    kind: what it is. record: the id of the document or question. start, end: its characters in the record.
    text: these characters; a check that a user runs shows them, nothing else does, and of sensitive data nothing.
    """

    kind: str
    file: str
    line: int
    record: str = ""
    start: int | None = None
    end: int | None = None
    text: str = ""

    def as_json(self) -> dict[str, object]:
        """What is known of it."""
        return {name: value for name, value in self._asdict().items() if value not in (None, "")}

    def __str__(self) -> str:
        where = f"{self.file}, line {self.line:,}" + (f", {self.record}" if self.record else "")
        span = "" if self.start is None else f", {self.start:,} to {self.end:,}"
        return where + span + (f" {json.dumps(self.text, ensure_ascii=False)}" if self.text else "")


class Finding(NamedTuple):
    """The result of one check.

    summary: what was found and what to do about it. counts: the numbers in it.
    examples: places, some of which belong together; never a text.
    places: of single findings, `MOST_PLACES` of a kind at most.
    """

    check: str
    severity: Severity
    summary: str
    counts: Mapping[str, float]
    examples: Sequence[Sequence[str]] = ()
    places: Sequence[Place] = ()

    @property
    def total(self) -> int:
        """The first of the counts."""
        return int(next(iter(self.counts.values())))


def row_places(rows: Sequence[Rejected]) -> list[Place]:
    """The places of records that cannot be used."""
    return [Place(row.reason, row.file, row.line, row.record) for row in rows[:MOST_PLACES]]


def worst(severities: Iterable[Severity]) -> Severity:
    """The most severe; good where there is none."""
    return max(severities, key=SEVERITIES.index, default="good")


def overall(findings: Sequence[Finding]) -> Severity:
    """The most severe of all findings."""
    return worst(finding.severity for finding in findings)


def exit_code(findings: Sequence[Finding]) -> int:
    """Of a command that reports these: 1 when something fails."""
    return int(overall(findings) == "fail")


def report(findings: Sequence[Finding]) -> Iterator[str]:
    """A line for each finding, below it one for the first place of each kind, and one for all of them."""
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        yield f"{finding.severity:4}  {finding.check:{width}}  {finding.summary}"
        for kind, first in {place.kind: place for place in reversed(finding.places)}.items():
            yield f"{'':4}  {'':{width}}  {kind}: {first}"
    counts = Counter[str](finding.severity for finding in findings)
    total = ", ".join(f"{counts[each]} {each}" for each in SEVERITIES)
    yield f"{overall(findings):4}  {'overall':{width}}  {total}"


def by_share(count: int, whole: int, most: float) -> Severity:
    """None is good; more than a share `most` of the whole fails."""
    return "good" if not count else "fail" if count > most * whole else "warn"


def duplicates(repeated: Mapping[Split, int], whole: Mapping[Split, int], what: str) -> Finding:
    """Records that a split has more than once."""
    counts = dict[str, float](repeated.items())
    listed = ", ".join(f"{split} {count:,} of {whole[split]:,}" for split, count in repeated.items())
    return Finding("duplicates", "warn" if any(repeated.values()) else "good", f"{what}: {listed}", counts)


def shown(places: Sequence[str]) -> str:
    """The first places."""
    return "; ".join([*places[:EXAMPLES], *(["…"] if len(places) > EXAMPLES else [])])


def spreads(lengths: Mapping[Split, Sequence[int]], limit: int | None = None) -> tuple[str, dict[str, float]]:
    """Median, 95th percentile and maximum of each split in words; the longest of all, and how many exceed the limit."""
    listed = []
    for split, ordered in ((split, sorted(each)) for split, each in lengths.items() if each):
        median, most = statistics.median_low(ordered), ordered[int(0.95 * (len(ordered) - 1))]
        listed.append(f"{split}: median {median:,}, 95 % up to {most:,}, longest {ordered[-1]:,}")
    longest = max(chain.from_iterable(lengths.values()), default=0)
    long = sum(length > (limit or longest) for length in chain.from_iterable(lengths.values()))
    return "; ".join(listed) or "none", {"longest": longest, "long": long}


def splits_of(files: Sequence[Path]) -> dict[Split, Path]:
    """Which split each file is: by its name where all names say so, else train, dev and test in this order.

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
    begun = {split for split, known in SPLIT_WORDS if any(word.startswith(known) for word in words)}
    return begun or {split for split, known in SPLIT_WORDS if known in name}
