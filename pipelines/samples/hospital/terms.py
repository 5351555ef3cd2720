"""Terms that stand in the hospital's notes, each with its group, and how alike they are by rule.

By the rule two wordings of one condition score 4, a problem and the complaint that comes with it 3, other terms of one
group 2, and terms of different groups 0. A person would see it differently; a sample needs to be known.
"""

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

from pipelines.samples.hospital.phrases import CONDITIONS, HARMLESS, MEDICATIONS, PAST, PROBLEMS

TERMS, RATINGS = "terms.csv", "ratings.csv"
SAME, GOES_WITH, ONE_GROUP, APART = 4, 3, 2, 0


def groups() -> dict[str, list[str]]:
    """The terms of each group."""
    return {
        "raises the risk": [wording for condition in CONDITIONS for wording in condition],
        "harmless": list(HARMLESS),
        "problem": [problem.name for problem in PROBLEMS],
        "complaint": [problem.complaint.lower() for problem in PROBLEMS],
        "medicine": [line.split()[0].lower() for line in MEDICATIONS],
        "history": [line.partition(",")[0].lower() for line in PAST],
    }


def ratings() -> Iterator[tuple[str, str, int]]:
    """Pairs of terms with their scores: each term with the next of its group, and with one of the group after it."""
    yield from ((first, second, SAME) for first, second in CONDITIONS)
    yield from ((problem.name, problem.complaint.lower(), GOES_WITH) for problem in PROBLEMS)
    listed = list(groups().values())
    for terms, after in zip(listed, [*listed[1:], listed[0]], strict=True):
        for place, term in enumerate(terms):
            follower = terms[(place + 1) % len(terms)]
            if (term, follower) not in CONDITIONS:
                yield term, follower, ONE_GROUP
            yield term, after[-1 - place % len(after)], APART


def write_terms(folder: Path) -> dict[str, int]:
    """Writes `terms.csv` and `ratings.csv`; rows by file."""
    terms = [(term, group) for group, listed in groups().items() for term in listed]
    rated = list(ratings())
    _write(folder / TERMS, ("term", "group"), terms)
    _write(folder / RATINGS, ("term1", "term2", "score"), rated)
    return {TERMS: len(terms), RATINGS: len(rated)}


def _write(path: Path, header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])
