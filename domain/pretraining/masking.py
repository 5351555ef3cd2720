"""Which tokens are hidden from the model, and by what: a function of (seed, epoch, item, place) and of nothing else."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from domain.pretraining.items import Booleans, Integers
from domain.pretraining.settings import Masking

Floats = NDArray[np.float64]
Numbers = NDArray[np.uint64]

DRAWS = 3  # whether a word is masked, the kind of replacement, the random token
GOLDEN_GAMMA = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Masker:
    """Chooses tokens and replaces them.

    Every word is chosen with the same chance, whatever its length and whatever else is chosen.

    maskable: which ids may be masked, and put in for others: all but special and protected ones, (vocabulary,).
    word_starts: ids of neighbouring tokens -> which of them begin a word, as what is not maskable always does; None
        makes each token a word.
    """

    settings: Masking
    mask_id: int
    maskable: Booleans
    word_starts: Callable[[Integers], Booleans] | None = None

    def __call__(self, ids: Integers, draws: Floats) -> tuple[Integers, Booleans]:
        """`ids` of sequences, end to end, as the model shall see them, and which are masked, (tokens,) each.

        draws: from 0 to 1, (tokens, DRAWS).
        """
        chosen = self.maskable[ids] & (draws[self._word_start(ids), 0] < self.settings.share)
        random = self._replacements[(draws[:, 2] * len(self._replacements)).astype(np.int64)]
        is_mask, is_random = (draws[:, 1] < bound for bound in np.cumsum([self.settings.mask, self.settings.random]))
        changed = np.where(is_mask, self.mask_id, np.where(is_random, random, ids))
        return np.where(chosen, changed, ids), chosen

    @cached_property
    def _replacements(self) -> Integers:
        return np.flatnonzero(self.maskable)

    def _word_start(self, ids: Integers) -> Integers:
        """The place at which each token's word begins, (tokens,)."""
        places = np.arange(len(ids))
        if self.word_starts is None:
            return places
        return np.maximum.accumulate(np.where(self.word_starts(ids), places, 0))


def uniform_draws(seed: int, epoch: int, items: Integers, places: Integers) -> Floats:
    """DRAWS numbers from 0 to 1 for each token, (tokens, DRAWS), equal wherever and with whatever else it is drawn.

    items, places: of each token, (tokens,). Each item has a SplitMix64 generator (Steele, Lea & Flood 2014) of its own,
    whose nth number is known without those before it.
    """
    epoch_seed = np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64).astype(np.uint64)
    item_seeds = nth_number(epoch_seed, items.astype(np.uint64))[:, None]
    indices = places.astype(np.uint64)[:, None] * np.uint64(DRAWS) + np.arange(DRAWS).astype(np.uint64)
    return (nth_number(item_seeds, indices) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def nth_number(seeds: Numbers, indices: Numbers) -> Numbers:
    """The numbers that SplitMix64 generators of these seeds give at these places, counted from 0."""
    mixed: Numbers = seeds + (indices + np.uint64(1)) * np.uint64(GOLDEN_GAMMA)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
