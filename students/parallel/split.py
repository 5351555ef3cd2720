"""The split of a corpus into training and dev pairs, without what is repeated, held out or beyond a limit.

It is decided on digests: some 110 bytes of memory for each pair, and no sentences.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bertrelay.data.arrow import DIGEST, Mask, number_distinct, text_digest
from students.parallel.pairs import DEV, TRAIN, Translations
from students.parallel.settings import CorpusSettings

DUPLICATE = "duplicate"
IN_DEV = "in the dev split"
BEYOND = "beyond max_pairs"


def sentence_digest(english: str, seed: int) -> bytes:
    return text_digest(english.casefold(), str(seed).encode())


def split_pairs(
    spool: pa.Table, languages: Sequence[str], settings: CorpusSettings, given: Sequence[Translations]
) -> dict[str, Mask]:
    """Masks over the pairs of `spool` by outcome.

    Held out are the English sentences of `given` and, without a dev split of the settings, the `dev_sentences` of the
    smallest digests under the seed, so that more data moves few of them. Of one that is drawn the first translation
    into each language is its dev pair, and further ones go nowhere.

    languages: of each stream.
    """
    repeated = np.full(len(spool), settings.filters.drop_duplicates)
    if settings.filters.drop_duplicates:
        repeated[number_distinct(spool["pair"].combine_chunks())[1]] = False
    sentences = spool["sentence"]
    english = {sentence for pairs in given for sentence in pairs.english}
    given_out = pa.array([sentence_digest(sentence, settings.seed) for sentence in english], DIGEST)
    held = ~repeated & pc.is_in(sentences, value_set=given_out).to_numpy()
    dev = np.zeros(len(spool), bool)
    if not settings.dev:
        distinct = pc.unique(sentences.filter(pa.array(~held)))
        drawn = distinct.take(pc.sort_indices(distinct)[: settings.dev_sentences])
        places = np.flatnonzero(~repeated & pc.is_in(sentences, value_set=drawn).to_numpy())
        held[places] = True
        numbers, _ = number_distinct(sentences.take(pa.array(places)).combine_chunks())
        language_numbers = np.unique(languages, return_inverse=True)[1][spool["stream"].to_numpy()[places]]
        dev[places[np.unique([numbers, language_numbers], axis=1, return_index=True)[1]]] = True
    train = ~repeated & ~held
    limits = [source.max_pairs or settings.filters.max_pairs for source in settings.parallel for _ in source.languages]
    beyond = _beyond(spool, train, limits)
    return {DUPLICATE: repeated, DEV: dev, IN_DEV: held & ~dev, BEYOND: beyond, TRAIN: train & ~beyond}


def _beyond(spool: pa.Table, train: Mask, limits: Sequence[int | None]) -> Mask:
    """The pairs of `train` beyond the limit of their stream, in the order of their English digests.

    So sources that translate the same English keep the same of it.
    """
    beyond = np.zeros(len(train), bool)
    if any(limits):
        order, streams = pc.sort_indices(spool["sentence"]).to_numpy(), spool["stream"].to_numpy()
        order = order[train[order]]
        for stream, limit in enumerate(limits):
            if limit:
                beyond[order[streams[order] == stream][limit:]] = True
    return beyond
