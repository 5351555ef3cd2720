"""The outcome of every pair of a corpus: trained on, held out, or left out with a reason.

It is one column, filled in named steps, and decided on digests: some 110 bytes of memory for each pair, no sentences.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bertrelay.data.arrow import DIGEST, Mask, number_distinct, text_digest
from students.parallel.pairs import DEV, TRAIN, Translations
from students.parallel.settings import CorpusSettings

UNDECIDED, DUPLICATE, LOW_MARGIN = "undecided", "duplicate", "low margin"
IN_DEV, BEYOND = "in the dev split", "beyond max_pairs"
TRANSLATED, NEAR_DUPLICATE, BEYOND_SENTENCES = "in the parallel text", "near duplicate", "beyond max_sentences"
OUTCOMES = (
    *(UNDECIDED, DUPLICATE, LOW_MARGIN, DEV, IN_DEV, BEYOND, TRAIN),
    *(TRANSLATED, NEAR_DUPLICATE, BEYOND_SENTENCES),  # only of English sentences without translations
)

Outcomes = NDArray[np.int8]
"""The outcome of each pair as its position in OUTCOMES, (pairs,)."""


def select(outcomes: Outcomes, outcome: str) -> Mask:
    """The pairs of this outcome, (pairs,)."""
    mask: Mask = outcomes == OUTCOMES.index(outcome)
    return mask


def decide(outcomes: Outcomes, pairs: Mask | NDArray[np.integer], outcome: str) -> Outcomes:
    """Returns the column with this outcome for `pairs`, a mask or positions."""
    decided = outcomes.copy()
    decided[pairs] = OUTCOMES.index(outcome)
    return decided


def deduplicate(pairs: pa.Table, drop_duplicates: bool) -> Outcomes:
    """The first column of outcomes: `undecided`, and `duplicate` for each pair that an earlier one equals."""
    outcomes = np.full(len(pairs), OUTCOMES.index(UNDECIDED), np.int8)
    if not drop_duplicates:
        return outcomes
    repeated = np.ones(len(pairs), bool)
    repeated[number_distinct(pairs["pair"].combine_chunks())[1]] = False
    return decide(outcomes, repeated, DUPLICATE)


def sentence_digest(english: str, seed: int) -> bytes:
    """Identifies an English sentence whatever its case, for the draw of dev sentences under `seed`."""
    return text_digest(english.casefold(), str(seed).encode())


def sentence_digests(sentences: Iterable[str], seed: int) -> pa.Array:
    """The `sentence_digest` of each, as a column of digests."""
    return pa.array([sentence_digest(sentence, seed) for sentence in sentences], DIGEST)


def split_pairs(
    pairs: pa.Table,
    outcomes: Outcomes,
    languages: Sequence[str],
    settings: CorpusSettings,
    held_out: Iterable[Translations],
) -> Outcomes:
    """Decides the undecided `pairs` in three steps; those that no step takes are trained on.

    1. Pairs whose English is in `held_out` are left out.
    2. Without a dev split of the settings, dev sentences are drawn.
    3. Pairs beyond the limit of their stream are left out.

    With one dev sentence, `A cat.`, and a limit of one pair:

        de  A dog.  Ein Hund.      train
        de  A dog.  Ein Hund.      duplicate, before
        de  A cat.  Eine Katze.    dev
        de  A cat.  Der Kater.     in the dev split
        de  A bird. Ein Vogel.     beyond max_pairs
        fr  A cat.  Un chat.       dev

    languages: of each stream.
    """
    english = {sentence for translations in held_out for sentence in translations.english}
    is_held_out = pc.is_in(pairs["sentence"], value_set=sentence_digests(english, settings.seed)).to_numpy()
    outcomes = decide(outcomes, select(outcomes, UNDECIDED) & is_held_out, IN_DEV)
    if not settings.dev:
        outcomes = _draw_dev(pairs, outcomes, languages, settings.dev_sentences)
    limits = [source.max_pairs or settings.filters.max_pairs for source in settings.parallel for _ in source.languages]
    outcomes = _limit_streams(pairs, outcomes, limits)
    return decide(outcomes, select(outcomes, UNDECIDED), TRAIN)


def _draw_dev(pairs: pa.Table, outcomes: Outcomes, languages: Sequence[str], count: int) -> Outcomes:
    """Holds out the `count` English sentences of the smallest digests, so that more data moves few of them.

    The first translation of one into each language is its dev pair. Further ones are left out.
    """
    undecided, sentences = select(outcomes, UNDECIDED), pairs["sentence"]
    distinct = pc.unique(sentences.filter(pa.array(undecided)))
    drawn = distinct.take(pc.sort_indices(distinct)[:count])
    rows = np.flatnonzero(undecided & pc.is_in(sentences, value_set=drawn).to_numpy())
    numbers, _ = number_distinct(sentences.take(pa.array(rows)).combine_chunks())
    language_numbers = np.unique(languages, return_inverse=True)[1][pairs["stream"].to_numpy()[rows]]
    first = np.unique([numbers, language_numbers], axis=1, return_index=True)[1]
    return decide(decide(outcomes, rows, IN_DEV), rows[first], DEV)


def _limit_streams(pairs: pa.Table, outcomes: Outcomes, limits: Sequence[int | None]) -> Outcomes:
    """Leaves out the undecided pairs beyond the limit of their stream, in the order of their English digests.

    So sources that translate the same English keep the same of it.
    """
    if not any(limits):
        return outcomes
    order, streams = pc.sort_indices(pairs["sentence"]).to_numpy(), pairs["stream"].to_numpy()
    order = order[select(outcomes, UNDECIDED)[order]]
    for stream, limit in enumerate(limits):
        if limit:
            outcomes = decide(outcomes, order[streams[order] == stream][limit:], BEYOND)
    return outcomes
