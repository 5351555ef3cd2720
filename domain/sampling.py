"""Reproducible splits, random numbers and samples."""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Numbers = NDArray[np.uint64]

Item = TypeVar("Item")
MOST_EXAMPLES = 12
"""Examples of each kind that an evaluation writes for the report."""

GOLDEN_GAMMA = 0x9E3779B97F4A7C15


def unit_hash(name: str, key: str) -> float:
    """A number from 0 to 1 for `name`: a keyed hash, uniform over names and independent for every key."""
    digest = hashlib.blake2b(name.encode(), key=hashlib.sha256(key.encode()).digest(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


def split_of(name: str, key: str, shares: Mapping[str, float]) -> str:
    """The split of a name: a key of `shares` with that probability, or else `train`.

    It depends on the name and the key only: other names change nothing.
    """
    position, ends = unit_hash(name, key), accumulate(shares.values())
    return next((split for split, end in zip(shares, ends, strict=True) if position < end), "train")


def uniform_draws(seed: int, epoch: int, items: Integers, positions: Integers, draws: int = 3) -> Floats:
    """`draws` numbers from 0 to 1 for each token, (tokens, draws).

    items, positions: the item of each token and its position in it, (tokens,). Each item has its own SplitMix64
    generator (Steele, Lea & Flood 2014), whose nth number is known without those before it.
    """
    epoch_seed = np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64).astype(np.uint64)
    item_seeds = nth_number(epoch_seed, items.astype(np.uint64))[:, None]
    indices = positions.astype(np.uint64)[:, None] * np.uint64(draws) + np.arange(draws).astype(np.uint64)
    return (nth_number(item_seeds, indices) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw_by_group(groups: Integers, temperature: float, seed: int, epoch: int) -> Integers:
    """Draws as many items as there are, sorted, for an epoch in which small groups have a larger part than their size.

    groups: number of the group of each item, (items,).
    temperature: the part of a group of n items is in proportion to n^(1/temperature) (Arivazhagan et al. 2019).
        At 1 each item is there once; without limit, all groups are equal.
    Groups of 100 and 10 items at 2 have 84 and 26: of the small one each item twice, and six a third time.
    """
    sizes = np.bincount(groups)
    parts = sizes ** (1 / temperature)
    counts = np.rint(len(groups) * parts / parts.sum()).astype(np.int64)
    generator, drawn = np.random.default_rng((seed, epoch)), list[Integers]()
    for group, (size, count) in enumerate(zip(sizes.tolist(), counts.tolist(), strict=True)):
        items = np.flatnonzero(groups == group)
        drawn += [np.tile(items, count // size), generator.permutation(items)[: count % size]] if size else []
    return np.sort(np.concatenate(drawn)) if drawn else groups[:0]


def nth_number(seeds: Numbers, indices: Numbers) -> Numbers:
    """The numbers with these indices, from 0, of SplitMix64 generators with these seeds."""
    return mixed(seeds + (indices + np.uint64(1)) * np.uint64(GOLDEN_GAMMA))


def mixed(values: Numbers) -> Numbers:
    """Spreads every bit of a value over all 64, by the finalizer of SplitMix64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def spread_evenly(items: Sequence[Item], limit: int = MOST_EXAMPLES) -> list[Item]:
    """At most `limit` of the items, evenly spaced: 3 of 0 to 8 are 0, 3 and 6."""
    count = min(limit, len(items))
    return [items[number * len(items) // count] for number in range(count)]
