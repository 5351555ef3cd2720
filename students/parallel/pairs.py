"""Pairs of an English sentence and its translation, read from any parallel source, filtered, and counted."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.records import Record, Rejects, Row, Unusable, aligned_rows, rows
from bertrelay.errors import RequestError
from students.settings import ENGLISH, AlignedFiles, Filters, ParallelSource

TRAIN, DEV = "train", "dev"

RATIO_FROM_CHARACTERS = 30
FIRST_WIDE = "\u1100"
WIDE = re.compile(
    "[\u1100-\u115f\u2e80-\ua4cf\ua960-\ua97c\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6"
    "\U0001f300-\U0001faff\U00020000-\U0003fffd]"
)


class Pair(NamedTuple):
    """An English sentence and its translation, both clean.

    stream: number of the source and language it came from, as `DropCounts` counts them.
    """

    stream: int
    english: str
    other: str


def clean(text: str) -> str:
    """`text` in Unicode NFC, with every run of white space one space and none around."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def read_pairs(sources: Sequence[ParallelSource], context_cache: Path | None, rejects: Rejects) -> Iterator[Pair]:
    """Streams the pairs of all `sources`, those with an empty side too.

    Raises RequestError for a source that cannot be read, and for files that are not row-aligned.
    """
    stream = 0
    for source in sources:
        for english, *others in _sentences(source, context_cache, rejects):
            for offset, other in enumerate(others):
                yield Pair(stream + offset, english, other)
        stream += len(source.languages)


def _sentences(source: ParallelSource, context_cache: Path | None, rejects: Rejects) -> Iterator[list[str]]:
    """Row by row the English sentence, then one for each other language of `source`; a missing one is empty."""
    for row in _rows(source, context_cache):
        fault = next((part for part in map(_as_text, row) if isinstance(part, Unusable)), None)
        if fault is not None:
            rejects.add(fault.file, fault.line, fault.reason)
            continue
        rejects.used()
        yield [clean(value or "") for part in row if isinstance(part, Record) for value in part.values]


def _rows(source: ParallelSource, context_cache: Path | None) -> Iterator[tuple[Row, ...]]:
    """The row of each table of `source` that hold the same sentence."""
    if isinstance(source, AlignedFiles):
        return aligned_rows(*source.tables(), ())
    return zip(rows(source.table(), (), context_cache))


def _as_text(row: Row) -> Row:
    if isinstance(row, Unusable) or all(isinstance(value, str | None) for value in row.values):
        return row
    return Unusable(row.file, row.line, "not text")


def drop_reason(english: str, other: str, filters: Filters) -> str | None:
    """Why this pair of clean sentences is left out of training, or None."""
    if not english or not other:
        return "empty side"
    if max(len(english), len(other)) > filters.max_characters:
        return "too long"
    short, long = sorted((_width(english), _width(other)))
    if long >= RATIO_FROM_CHARACTERS and long > filters.max_length_ratio * short:
        return "length ratio"
    if filters.drop_copies and english.casefold() == other.casefold():
        return "copy of the source"
    return None


def _width(text: str) -> int:
    """Characters, East Asian wide ones counted twice."""
    return len(text) if text.isascii() or max(text) < FIRST_WIDE else len(text) + len(WIDE.findall(text))


def filtered(pairs: Iterable[Pair], filters: Filters, counts: "DropCounts") -> Iterator[Pair]:
    """The pairs that pass; the others go into the counts."""
    for pair in pairs:
        reason = drop_reason(pair.english, pair.other, filters)
        if reason is None:
            yield pair
        else:
            counts.outcomes[pair.stream][reason] += 1


class DropCounts:
    """How many pairs were dropped, for which reason, and kept: by stream, which is one language of one source."""

    def __init__(self, sources: Sequence[ParallelSource]) -> None:
        self.streams = [(source.name, language) for source in sources for language in source.languages]
        self.outcomes: list[Counter[str]] = [Counter() for _ in self.streams]

    @property
    def languages(self) -> list[str]:
        """Each language once, in the order in which the sources name them."""
        return list(dict.fromkeys(language for _, language in self.streams))

    def language_of(self, stream: int) -> str:
        return self.streams[stream][1]

    def add(self, outcome: str, streams: NDArray[np.int16]) -> None:
        """Counts one pair of this outcome for each entry of `streams`."""
        for stream, count in enumerate(np.bincount(streams, minlength=len(self.streams)).tolist()):
            self.outcomes[stream][outcome] += count

    def total(self, language: str | None = None) -> dict[str, int]:
        """Counts by outcome, the most frequent first: of one language, or of all."""
        chosen = [
            outcomes
            for (_, spoken), outcomes in zip(self.streams, self.outcomes, strict=True)
            if language in (None, spoken)
        ]
        return {outcome: count for outcome, count in sum(chosen, Counter[str]()).most_common() if count}

    def check_trained(self) -> None:
        """Raises RequestError, with what became of the pairs, for a language that has none left to train on."""
        for language in self.languages:
            total = self.total(language)
            if not total.get(TRAIN):
                raise RequestError(
                    f"no pair of {ENGLISH} and {language} is left to train on; of those read, "
                    f"{listed(total) or 'none was usable'}. Check the sources, the filters and dev_sentences."
                )

    def by_source(self) -> list[dict[str, Any]]:
        """The counts as `corpus.json` keeps it."""
        return [
            {
                "source": name,
                "language": language,
                "pairs": outcomes.total(),
                **{k: n for k, n in sorted(outcomes.items()) if n},
            }
            for (name, language), outcomes in zip(self.streams, self.outcomes, strict=True)
        ]


def listed(counts: dict[str, int]) -> str:
    """Counts for a message: `12 × too long, 3 × duplicate`."""
    return ", ".join(f"{count:,} × {what}" for what, count in counts.items())
