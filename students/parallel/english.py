"""English sentences without translations: read, filtered, and decided on by digests, as pairs are in `split.py`."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bertrelay.blocks import blocks_of
from bertrelay.cache import Cache
from bertrelay.data.arrow import DIGEST, Mask, number_distinct, text_digest
from bertrelay.data.records import Rejects
from bertrelay.data.sentences import clean, sentence_records
from bertrelay.data.tables import BLOCK_ROWS
from bertrelay.errors import RequestError
from students.parallel.language_check import LanguageCheck
from students.parallel.pairs import TRAIN, sentence_drop_reason
from students.parallel.settings import ENGLISH, EnglishSource, Filters
from students.parallel.split import (
    BEYOND_SENTENCES,
    DUPLICATE,
    IN_DEV,
    NEAR_DUPLICATE,
    OUTCOMES,
    TRANSLATED,
    UNDECIDED,
    Outcomes,
    decide,
    select,
    sentence_digest,
)

ENGLISH_SCHEMA = pa.schema(
    {"source": pa.int16(), "english": pa.string(), **dict.fromkeys(("target", "sentence", "near"), DIGEST)}
)
"""Digests: of a sentence; of it but for case, keyed by the seed; of its letters, which near duplicates share."""
NO_LETTERS = re.compile(r"[\W\d_]+")


class EnglishCounts:
    """Outcomes of sentences by source: used, or the reason why they were left out."""

    def __init__(self, sources: Sequence[EnglishSource]) -> None:
        self.names = [source.name for source in sources]
        self.outcomes: list[Counter[str]] = [Counter() for _ in sources]

    def add(self, sources: Any, outcomes: Outcomes) -> None:
        """Counts one sentence for each of `outcomes`; sources: the number of the source of each, (sentences,)."""
        for outcome in OUTCOMES:
            counts = np.bincount(sources[select(outcomes, outcome)], minlength=len(self.names))
            for counter, count in zip(self.outcomes, counts.tolist(), strict=True):
                counter[outcome] += count

    def by_source(self) -> list[dict[str, Any]]:
        """The counts of each source as `corpus.json` has them."""
        return [
            {"source": name, "sentences": counts.total(), **dict(sorted((+counts).items()))}
            for name, counts in zip(self.names, self.outcomes, strict=True)
        ]


def read_english(
    sources: Sequence[EnglishSource],
    cache: Cache | None,
    rejects: Rejects,
    filters: Filters,
    seed: int,
    counts: EnglishCounts,
) -> Iterator[dict[str, Any]]:
    """Streams the sentences of all `sources` that pass `filters`, in blocks of the columns of ENGLISH_SCHEMA.

    Raises RequestError for a source that cannot be read or has no record, or whose texts are in another language.
    """
    for number, source in enumerate(sources):
        check, counted = LanguageCheck([ENGLISH]), counts.outcomes[number]
        for block in blocks_of(sentence_records(source.table(), cache, rejects), BLOCK_ROWS):
            rejects.used(len(block))
            sentences = []
            for record in block:
                sentence = clean(record.values[0])
                if reason := sentence_drop_reason([sentence], filters):
                    counted[reason] += 1
                else:
                    check.add([sentence])
                    sentences.append(sentence)
            yield {
                "source": [number] * len(sentences),
                "english": sentences,
                "target": list(map(text_digest, sentences)),
                "sentence": [sentence_digest(sentence, seed) for sentence in sentences],
                "near": list(map(near_digest, sentences)),
            }
        check.check(source.name, source.max_misplaced)


def near_digest(sentence: str) -> bytes:
    """Identifies a sentence whatever its case, digits and punctuation: `Room 12.` and `room 7` have one digest."""
    letters = NO_LETTERS.sub(" ", sentence.casefold()).strip()
    return text_digest(letters or sentence)


def decide_english(
    sentences: pa.Table, translated: pa.Array, held_out: pa.Array, sources: Sequence[EnglishSource]
) -> Outcomes:
    """Decides every one of `sentences`, the columns of ENGLISH_SCHEMA; what no step takes is trained on.

    1. Held-out sentences are left out.
    2. Those that the parallel text has are left out here: they are trained on there.
    3. Of equal sentences, and of those that differ in case, digits or punctuation only, the first stays.
    4. Sentences beyond the limit of their source are left out, in the order of their digests.

    translated: digests of the English of the pairs to train on. held_out: digests of sentences but for case.
    Raises RequestError if no sentence is left.
    """
    outcomes = np.full(len(sentences), OUTCOMES.index(UNDECIDED), np.int8)
    outcomes = decide(outcomes, _is_in(sentences["sentence"], held_out), IN_DEV)
    outcomes = decide(outcomes, select(outcomes, UNDECIDED) & _is_in(sentences["target"], translated), TRANSLATED)
    for column, outcome in (("target", DUPLICATE), ("near", NEAR_DUPLICATE)):
        rows = np.flatnonzero(select(outcomes, UNDECIDED))
        repeated = np.ones(len(rows), bool)
        repeated[number_distinct(sentences[column].take(pa.array(rows)).combine_chunks())[1]] = False
        outcomes = decide(outcomes, rows[repeated], outcome)
    numbers = sentences["source"].to_numpy()
    for number, source in enumerate(sources):
        if source.max_sentences:
            rows = np.flatnonzero(select(outcomes, UNDECIDED) & (numbers == number))
            order = pc.sort_indices(sentences["sentence"].take(pa.array(rows))).to_numpy()
            outcomes = decide(outcomes, rows[order[source.max_sentences :]], BEYOND_SENTENCES)
    outcomes = decide(outcomes, select(outcomes, UNDECIDED), TRAIN)
    if sources and not select(outcomes, TRAIN).any():
        raise RequestError(
            f"english: expected sentences to train on, found none that is left of {len(sentences):,}; each is held out "
            "or in the parallel text. Leave `english` out, or give other text."
        )
    return outcomes


def _is_in(digests: pa.ChunkedArray, others: pa.Array) -> Mask:
    mask: Mask = pc.is_in(digests, value_set=others).to_numpy()
    return mask
