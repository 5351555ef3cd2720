"""The items of each epoch: English sentences without translations are drawn from their sources by weight.

A large source of one kind of text would outweigh the others if each of its sentences came in each epoch. Sources are
drawn in proportion to the square root of their size, as languages are by Conneau & Lample (2019) with α = 0.5.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.arrow import Mask, mask_of
from bertrelay.progress import log
from bertrelay.training.batches import Items
from students.distill.settings import DistillSettings
from students.parallel.corpus import ParallelCorpus, restrict_corpus

EXPONENT = 0.5
MOST_TIMES = 4
"""Times that a sentence comes in an epoch at most, so that a small source is not learnt by heart."""


def source_quotas(sizes: NDArray[np.integer], weights: Sequence[float], total: int) -> NDArray[np.int64]:
    """The number of sentences that an epoch takes from each source, (sources,), `total` together.

    In proportion to weight · size^EXPONENT, but at most MOST_TIMES its size from a source; others then give more. For
    more than MOST_TIMES all sentences the limit rises.

    Sizes 10,000, 100, 4 and weights 1, 1, 1 give, for 1,120, the proportions 100 : 10 : 2, thus 1000, 100 and 20; but
    20 is more than 4 · 4, and the rest is divided anew: 1003.6 and 100.4, rounded 1004, 100 and 16.
    """
    sizes = sizes.astype(np.float64)
    limits = sizes * max(MOST_TIMES, total / sizes.sum())
    shares = np.asarray(weights) * sizes**EXPONENT
    quotas, is_limited = np.zeros(len(sizes)), sizes == 0
    while True:
        rest = total - limits[is_limited].sum()
        quotas = np.where(is_limited, limits, rest * shares / max(shares[~is_limited].sum(), np.finfo(float).tiny))
        exceeds = ~is_limited & (quotas > limits)
        if not exceeds.any():
            break
        is_limited |= exceeds
    return _rounded(quotas, total)


def _rounded(numbers: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Whole numbers that add up to `total`: those of the largest remainders are rounded up."""
    whole = np.floor(numbers + 1e-9).astype(np.int64)
    up = np.argsort(whole - numbers, kind="stable")[: total - int(whole.sum())]
    whole[up] += 1
    return whole


class EpochItems:
    """The items of each epoch, a pure function of its number.

    All items of the parallel text and all retained texts come once. Of the English sentences without translations each
    source gives its quota. It gives them in a random order and, when all have come, in another one, so that no sentence
    comes a second time before all have come once.

    quotas: sentences of each source in an epoch, (sources,); of a corpus without sources empty.
    """

    def __init__(self, corpus: ParallelCorpus, quotas: NDArray[np.int64], seed: int) -> None:
        self._quotas, self._seed = quotas, seed
        items = np.arange(len(corpus))
        is_drawn = (items >= corpus.translated) & (items < len(corpus.english))
        self._always = items[~is_drawn]
        self._by_source = [
            corpus.translated + np.flatnonzero(corpus.english_sources == source) for source in range(len(quotas))
        ]
        self._last: tuple[int, Items] = (-1, items[:0])

    def __call__(self, epoch: int) -> Items:
        """The items of `epoch`, (items,)."""
        last = self._last
        if last[0] != epoch:
            drawn = [self._draw(source, epoch) for source in range(len(self._quotas))]
            last = self._last = epoch, np.concatenate([self._always, *drawn])
        return last[1]

    def _draw(self, source: int, epoch: int) -> Items:
        items, quota = self._by_source[source], int(self._quotas[source])
        positions = np.arange(epoch * quota, (epoch + 1) * quota)
        cycles = positions // max(1, len(items))
        drawn = np.empty(quota, np.int64)
        for cycle in np.unique(cycles).tolist():
            in_cycle = cycles == cycle
            order = np.random.default_rng((self._seed, source, cycle)).permutation(items)
            drawn[in_cycle] = order[positions[in_cycle] % len(items)]
        return drawn


class EpochValues:
    """Values of the items of an epoch, (items,), selected once an epoch from those of all items, (all items,)."""

    def __init__(self, values: NDArray[np.integer], epoch_items: EpochItems) -> None:
        self._values, self._epoch_items = values, epoch_items
        self._last: tuple[int, NDArray[np.integer]] = (-1, values[:0])

    def __call__(self, epoch: int) -> NDArray[np.integer]:
        last = self._last  # another thread may be in the next epoch already
        if last[0] != epoch:
            last = self._last = epoch, self._values[self._epoch_items(epoch)]
        return last[1]


def draw_english(
    corpus: ParallelCorpus, settings: DistillSettings, folder: Path, translated: int | None = None
) -> tuple[ParallelCorpus, EpochItems | None]:
    """The corpus without the English sentences that no epoch comes to, and the items of each epoch.

    The second is None where each epoch has all items. Sentences are left out evenly over the lengths of their source.
    folder: takes the smaller corpus; it belongs to the training.
    translated: English sentences with translations to use; all when None.
    """
    sources, sizes = corpus.english_sources, np.bincount(corpus.english_sources, minlength=len(settings.english))
    quotas = counts = np.zeros(len(sizes), np.int64)
    if len(sources):
        total = len(sources) if settings.english_per_epoch is None else settings.english_per_epoch
        quotas = source_quotas(sizes, [source.weight for source in settings.english], total)
        counts = np.minimum(sizes, quotas * settings.epochs)
    for source, size, quota, count in zip(settings.english, sizes, quotas, counts, strict=True):
        log(f"{source.name}: {quota:,} sentences an epoch, {count:,} of {size:,} in all epochs")
    english = np.ones(len(corpus.english), bool)
    english[corpus.translated :] = _spread(corpus, counts, settings.seed)
    if translated is not None:
        drawn = np.random.default_rng(settings.seed).permutation(corpus.translated)[:translated]
        english[: corpus.translated] = mask_of(drawn, corpus.translated)
    facts = dict(corpus.facts)
    if not english.all():
        corpus = restrict_corpus(corpus, english, folder)
        facts |= {"english": corpus.translated, "items": len(corpus), **_drawn_pairs(corpus)}
    if not len(sources):
        return replace(corpus, facts=facts), None
    by_source = zip(facts["english_sources"], counts.tolist(), strict=True)
    facts["english_sources"] = [{**source, "drawn": count} for source, count in by_source]
    facts["english_without_translations"] = len(corpus.english_sources)
    return replace(corpus, facts=facts), EpochItems(corpus, quotas, settings.seed)


def _drawn_pairs(corpus: ParallelCorpus) -> dict[str, Any]:
    """The facts about the pairs of a smaller corpus: how many are trained on, by language and by source."""
    sources, train = corpus.facts["sources"], dict.fromkeys(corpus.facts["train"], 0)
    counts = np.bincount(corpus.streams, minlength=len(sources)).tolist()
    for source, count in zip(sources, counts, strict=True):
        train[source["language"]] += count
    drawn = [{**source, "drawn": count} for source, count in zip(sources, counts, strict=True)]
    return {"train": train, "sources": drawn}


def _spread(corpus: ParallelCorpus, counts: NDArray[np.integer], seed: int) -> Mask:
    """Chooses `counts` sentences of each source, every n-th in the order of their lengths; (without translations,)."""
    chosen = np.zeros(len(corpus.english_sources), bool)
    lengths = corpus.english.lengths()[corpus.translated :]
    for source, count in enumerate(counts.tolist()):
        rows = np.flatnonzero(corpus.english_sources == source)
        random = np.random.default_rng((seed, source)).permutation(len(rows))  # sentences of one length
        ordered = rows[np.lexsort((random, lengths[rows]))]
        positions = ((np.arange(count) + 0.5) * len(rows) / max(1, count)).astype(np.int64)
        chosen[ordered[positions]] = True
    return chosen
