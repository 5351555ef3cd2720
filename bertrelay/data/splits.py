"""Items that stand in two splits of one training: a model knows them, so that its scores on them are too high."""

from collections.abc import Hashable, Iterable

from bertrelay.progress import log

MAX_LEAKED = 0.01
"""Of the distinct items of a split: fewer are usual in published corpora."""


def count_shared(train: Iterable[Hashable], held_out: Iterable[Hashable], split: str, what: str) -> int:
    """How many distinct items of `held_out` are in `train` too. Logs it, with a warning where they are many.

    split: the name of `held_out`. what: the plural of an item.
    """
    distinct = set(held_out)
    shared = len(distinct & set(train))
    if shared:
        are_many = shared > MAX_LEAKED * len(distinct)
        warning = "; so many that scores on them are too high: leave them out of train" if are_many else ""
        log(f"{split}: of {len(distinct):,} distinct {what}, {shared:,} in train too{warning}")
    return shared
