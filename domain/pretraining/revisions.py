"""Which records of PubMed are out of date: of each citation only the newest record is read.

PubMed gives a baseline once a year and files of updates after it. A citation that was revised stands in several of
them, and one that was withdrawn is named in a `DeleteCitation`.
"""

import re
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertrelay.progress import progress
from domain.pretraining.papers import Citation, read_citations

REVISED, DELETED = "revised in a newer record", "deleted from PubMed"
PUBMED_FILE = re.compile(r"pubmed(\d\d)n(\d+)\.xml")  # the year, and a number that runs through baseline and updates
DELETION = -1


def outdated(files: Sequence[Path]) -> dict[tuple[int, int], str]:
    """The records in XML `files` that are out of date, with the reason: by the place of the file and of the item in it.

    Items are those of `read_papers`, from 1. The highest version of a citation is kept, and of equal ones that of the
    newest file; files are as old as PubMed's names say, others as they are ordered.
    """
    columns = [array("q") for _ in range(5)]
    by_age = sorted(range(len(files)), key=lambda place: _age(files[place]))
    with progress("looking for revised records", len(files), "files") as bar:
        for age, place in enumerate(by_age):
            for item, citation, is_deleted in _citations(files[place]):
                row = (*citation, age, item, DELETION if is_deleted else place)
                for column, value in zip(columns, row, strict=True):
                    column.append(value)
            bar.advance(1)
    numbers, versions, ages, items, places = (np.frombuffer(column, np.int64) for column in columns)
    order = np.lexsort((items, ages, versions, numbers))
    numbers, versions, items, places = (each[order] for each in (numbers, versions, items, places))
    is_last = _differs(numbers) | _differs(versions)  # of its version
    last = np.flatnonzero(is_last)
    is_deleted = (places[last] == DELETION)[np.cumsum(is_last) - is_last]  # by the last word on its version
    kept = last[places[last] != DELETION]
    kept = kept[_differs(numbers[kept])]
    is_outdated = places != DELETION
    is_outdated[kept] = False
    return {
        (int(places[row]), int(items[row])): DELETED if is_deleted[row] else REVISED
        for row in np.flatnonzero(is_outdated)
    }


def _citations(file: Path) -> Iterator[tuple[int, Citation, bool]]:
    """The citations of a file and those that it deletes, each with the number of the item it is, or stands after."""
    item = 0
    for found in read_citations(file):
        item += isinstance(found, Citation)
        for citation in [found] if isinstance(found, Citation) else found:
            if citation.number:
                yield item, citation, not isinstance(found, Citation)


def _age(file: Path) -> tuple[int, int]:
    found = PUBMED_FILE.match(file.name)
    return (int(found[1]), int(found[2])) if found else (-1, 0)


def _differs(values: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each value differs from the next one, which the last one does."""
    return np.append(values[1:] != values[:-1], np.ones(min(1, len(values)), bool))
