"""Pairs of an English sentence and its translation, read from any parallel source, filtered, and counted."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertrelay.cache import Cache
from bertrelay.data.records import Rejects, aligned_rows, rows
from bertrelay.data.sentences import clean
from bertrelay.data.tables import Record, Rejected, Row
from bertrelay.errors import RequestError
from bertrelay.progress import log
from students.parallel.files import EMPTY, FileCounts, Records, Translation, no_translations, read_translation_files
from students.parallel.language_check import LanguageCheck
from students.parallel.settings import ENGLISH, AlignedFiles, Filters, ParallelSource, TranslationFiles

TRAIN, DEV = "train", "dev"
INVISIBLE = "\u00ad\u200b\u200c\u200d\u2060\ufeff"
"""Characters without width, no sentence by themselves: soft hyphen, joiners, spaces."""

RATIO_FROM_CHARACTERS = 30
FIRST_WIDE = "\u1100"
WIDE = re.compile(
    "[\u1100-\u115f\u2e80-\ua4cf\ua960-\ua97c\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6"
    "\U0001f300-\U0001faff\U00020000-\U0003fffd]"
)


class Pair(NamedTuple):
    """An English sentence and its translation, both clean.

    stream: number of its source and language, as `PairCounts` counts them.
    """

    stream: int
    english: str
    other: str


class Translations(NamedTuple):
    """English sentences and their translations into one language, row by row."""

    english: list[str]
    other: list[str]


class PairCounts:
    """Outcomes of pairs by stream, which is one language of one source: used, or the reason why they were left out.

    names, languages: source and language of each stream. outcomes: number of pairs by outcome, of each stream.
    """

    def __init__(self, sources: Sequence[ParallelSource]) -> None:
        streams = [(source.name, language) for source in sources for language in source.languages]
        self.names, self.languages = [name for name, _ in streams], [language for _, language in streams]
        self.outcomes: list[Counter[str]] = [Counter() for _ in streams]
        self.checks = [LanguageCheck([ENGLISH, language]) for language in self.languages]

    def add(self, outcome: str, streams: NDArray[np.int16]) -> None:
        """Counts one pair of this outcome for each entry of `streams`."""
        for stream, count in enumerate(np.bincount(streams, minlength=len(self.outcomes)).tolist()):
            self.outcomes[stream][outcome] += count

    def total(self, language: str | None = None) -> dict[str, int]:
        """Counts by outcome, the most frequent first: of one language, or of all."""
        streams = zip(self.languages, self.outcomes, strict=True)
        chosen = [outcomes for code, outcomes in streams if language in (None, code)]
        return dict(sum(chosen, Counter[str]()).most_common())

    def by_source(self) -> list[dict[str, Any]]:
        """The counts of each stream as `corpus.json` has them."""
        streams = []
        for name, language, counts, check in zip(self.names, self.languages, self.outcomes, self.checks, strict=True):
            facts = {"source": name, "language": language, "pairs": counts.total(), **dict(sorted((+counts).items()))}
            misplaced = check.misplaced_fractions()
            streams.append({**facts, "misplaced": misplaced} if misplaced else facts)
        return streams

    def by_language(self, pairs: Iterable[Pair]) -> dict[str, Translations]:
        """Groups the sentences of `pairs` by the language of their stream."""
        translations: dict[str, Translations] = {}
        for stream, english, other in pairs:
            sentences = translations.setdefault(self.languages[stream], Translations([], []))
            sentences.english.append(english)
            sentences.other.append(other)
        return translations


def read_pairs(
    sources: Sequence[ParallelSource], cache: Cache | None, rejects: Rejects, counts: PairCounts
) -> Iterator[Pair]:
    """Streams the pairs of all `sources`, those with an empty text too; pairs that a reader drops are counted.

    Raises RequestError for a source that cannot be read, has no pair, or has texts in another language than it states,
    and for files that are not row-aligned.
    """
    first = 0
    for source in sources:
        streams = {language: stream for stream, language in enumerate(source.languages, first)}
        first += len(streams)
        files: dict[str, FileCounts] = {}
        complete = records = 0
        for record in _records(source, cache, files):
            if isinstance(record, Rejected):
                rejects.add(record.file, record.line, record.reason, detail=record.detail)
                continue
            rejects.used()
            records += 1
            for language, english, other, dropped in record:
                if dropped:
                    counts.outcomes[streams[language]][dropped] += 1
                    continue
                pair = Pair(streams[language], clean(english), clean(other))
                complete += bool(pair.english and pair.other)
                if pair.english != pair.other:  # a text that is not translated is no sign of another language
                    counts.checks[pair.stream].add(pair[1:])
                yield pair
        if records and not complete:
            raise _no_pairs(source, files)
        for stream in streams.values():
            counts.checks[stream].check(source.name, source.max_misplaced)


def _no_pairs(source: ParallelSource, files: dict[str, FileCounts]) -> RequestError:
    if isinstance(source, TranslationFiles):
        return no_translations(source, files)
    return RequestError(
        f"{source.name}: expected pairs of {ENGLISH} and {', '.join(source.languages)}, found none with text in both "
        "languages. Check the columns."
    )


def _records(source: ParallelSource, cache: Cache | None, files: dict[str, FileCounts]) -> Records:
    """Streams the translations of each record of `source`; a missing sentence is an empty text."""
    if isinstance(source, TranslationFiles):
        yield from read_translation_files(source, cache, files)
        return
    table_rows: Iterator[tuple[Row, ...]]
    if isinstance(source, AlignedFiles):
        table_rows = aligned_rows(*source.tables(), ())
    else:
        table_rows = zip(rows(source.table(), (), cache))
    for row in table_rows:
        unusable = next((part for part in map(_as_text, row) if isinstance(part, Rejected)), None)
        if unusable is not None:
            yield unusable
            continue
        english, *others = [value or "" for part in row if isinstance(part, Record) for value in part.values]
        yield [Translation(*pair) for pair in zip(source.languages, repeat(english), others, strict=False)]


def _as_text(row: Row) -> Row:
    if isinstance(row, Rejected) or all(isinstance(value, str | None) for value in row.values):
        return row
    return Rejected("not text", file=row.file, line=row.line)


def read_translations(
    sources: Sequence[ParallelSource], cache: Cache | None, rejects: Rejects, counts: PairCounts | None = None
) -> dict[str, Translations]:
    """Reads all pairs of held-out `sources`, by language; those without text in both are left out and counted."""
    counts = counts or PairCounts(sources)
    translations = counts.by_language(filter_pairs(read_pairs(sources, cache, rejects, counts), None, counts, DEV))
    if empty := counts.total().get(EMPTY):
        log(f"left out {empty:,} pairs with an empty text")
    return translations


def filter_pairs(
    pairs: Iterable[Pair], filters: Filters | None, counts: PairCounts, outcome: str | None = None
) -> Iterator[Pair]:
    """Streams the pairs that pass `filters`; the others are counted with their reason.

    outcome: of the pairs that pass, which are then counted too.
    """
    for pair in pairs:
        reason = drop_reason(pair.english, pair.other, filters)
        if reason is None:
            yield pair
        if counted := reason or outcome:
            counts.outcomes[pair.stream][counted] += 1


def drop_reason(english: str, other: str, filters: Filters | None) -> str | None:
    """The reason to leave out a pair of clean sentences, or None; without `filters` only an empty text is one.

    With the usual filters `Berlin is big`, `Berlin ist groß` pass, `OK`, `ok` is a copy of the source, and a sentence
    of 90 letters with a translation of 20 has the wrong length ratio.
    """
    if (reason := sentence_drop_reason((english, other), filters)) or filters is None:
        return reason
    short, long = sorted((_width(english), _width(other)))
    if long >= RATIO_FROM_CHARACTERS and long > filters.max_length_ratio * short:
        return "length ratio"
    if filters.drop_copies and english.casefold() == other.casefold():
        return "copy of the source"
    return None


def sentence_drop_reason(sentences: Sequence[str], filters: Filters | None) -> str | None:
    """The reason to leave out clean `sentences` because one of them is empty, too long or too short; or None."""
    if not all(sentence.strip(INVISIBLE) for sentence in sentences):
        return EMPTY
    if filters is None:
        return None
    if max(map(len, sentences)) > filters.max_characters:
        return "too long"
    return "too short" if min(map(_width, sentences)) < filters.min_characters else None


def _width(text: str) -> int:
    """Characters, East Asian wide ones counted twice."""
    return len(text) if text.isascii() or max(text) < FIRST_WIDE else len(text) + len(WIDE.findall(text))
